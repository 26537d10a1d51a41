"""Small copies of a star join: what other memories would find, through the relation."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.engines.miniature import Miniature, Sample
from tidegate.engines.star_copies import ShardCopies, StarCopies, component_names
from tidegate.engines.star_job import InHand, StarJob, in_order
from tidegate.memory.curves import of_points
from tidegate.star_spec import star_join
from tidegate.streams import zipf

WINDOW = 60
Tables = tuple[pa.Table, pa.Table]


def streams(ticks: int, domain: int, skew: float = 1.0) -> Tables:
    """One tuple of a stream at every time; keys of the same rank are as frequent."""
    left, right = zipf(ticks, domain=domain, skew=skew, correlation="same", seed=4)
    return left.rename_columns({"key": "a", "value": "w"}), right.rename_columns(
        {"key": "b", "value": "w"}
    )


def relation(domain: int, ties: int) -> pa.Table:
    """Facts that connect keys in groups of `ties`, all with all."""
    pairs = [(a, a - a % ties + at) for a in range(domain) for at in range(ties)]
    table = {"a": [a for a, _ in pairs], "b": [b for _, b in pairs]}
    return pa.table({**table, "end": [None if a % 3 else 500 for a, _ in pairs]})


SETTINGS: dict[str, Any] = {
    "on": ["a", "b"],
    "time": "time",
    "within": WINDOW,
    "interval": ("begin", "end"),
    "fact": ["a", "b"],
}


def facts_of(domain: int, ties: int) -> pa.Table:
    table = relation(domain, ties)
    begin = pa.array([0] * len(table))
    return table.append_column("begin", begin).select(["a", "b", "begin", "end"])


def job_of(tables: Tables, facts: pa.Table, **settings: Any) -> StarJob:
    given = SETTINGS | {"memory": 50} | settings
    spec = star_join(
        {"r": tables[0].schema, "s": tables[1].schema},
        facts.schema,
        suffixes=["_r", "_s", "_f"],
        **given,
    )
    return StarJob(spec, InHand(*in_order(facts)))


def feeds(job: StarJob, tables: Tables, batches: int) -> list[list[list[pa.RecordBatch]]]:
    ends = max(len(t) for t in tables)
    cuts = np.linspace(0, ends, batches + 1).astype(int)
    return [
        [
            [job.prepare(s, b)[0] for b in t.slice(a, b - a).combine_chunks().to_batches()]
            for s, t in enumerate(tables)
        ]
        for a, b in pairwise(cuts)
    ]


@pytest.mark.parametrize("policy", ["auto", "fifo"])
@pytest.mark.parametrize("importance", [None, "w"])
def test_copies_foresee_what_a_star_join_finds(policy: str, importance: str | None) -> None:
    tables, facts = streams(1_200, 30), facts_of(30, 3)
    tables = tuple(t.set_column(2, "w", pa.array(1.0 + np.abs(t["w"].to_numpy()))) for t in tables)
    settings = {**SETTINGS, "policy": policy, "importance": importance}
    every = tg.local.star_join(list(tables), facts, **settings)
    job = job_of(tables, facts, policy=policy, importance=importance)
    live = 2 * WINDOW
    sizes = [round(live * 2 ** (-step / 2)) for step in range(7, -1, -1)]
    small = Miniature(ShardCopies(job, 0, 1), sizes, settle=False)
    for inputs in feeds(job, tables, 5):
        small.feed(inputs, None)
    found = small.take()
    assert small.sample == Sample()
    assert found.total == pytest.approx(every.importance, rel=0.01)
    curve = of_points(sizes, [hits / found.total for hits in found.hits], need=found.need)
    for share in (0.2, 0.45, 0.6):
        memory = round(share * live)
        measured = tg.local.star_join(list(tables), facts, **settings, memory=memory)
        recall = measured.importance / every.importance
        assert curve.at(memory) == pytest.approx(recall, abs=0.03)


def test_a_sample_has_whole_components() -> None:
    """Where there are many; else some tuples of all."""
    tables, facts = streams(3_000, 6_000, skew=0.0), facts_of(6_000, 2)
    job = job_of(tables, facts)
    copies = ShardCopies(job, 0, 1)
    small = Miniature(copies, [60, 100], settle=False, held=60)
    for inputs in feeds(job, tables, 3):
        small.feed(inputs, None)
    assert small.sample.kin < 1 == small.sample.seen
    sampled = copies.copy(5, small.sample)
    assert sampled._index.count < 0.8 * len(facts)
    every = tg.local.star_join(list(tables), facts, **SETTINGS)
    assert small.take().total == pytest.approx(every.results, rel=0.5)
    few = job_of(streams(600, 6), facts_of(6, 3))
    small = Miniature(ShardCopies(few, 0, 1), [60], settle=False, held=40)
    for inputs in feeds(few, streams(600, 6), 6):
        small.feed(inputs, None)
    assert small.sample.kin == 1 > small.sample.seen


def test_keys_have_the_name_of_their_component() -> None:
    facts = facts_of(12, 3)
    job = job_of(streams(20, 12), facts)
    names = component_names(job.facts_at(0, 1)[1])
    assert [len(set(own.tolist()) - {0}) for own in names] == [4, 4]
    own = [set(component_names(job.facts_at(at, 2)[1])[0].tolist()) - {0} for at in range(2)]
    assert own[0] | own[1] == set(names[0].tolist()) - {0}
    assert not own[0] & own[1]


def test_star_joins_that_cannot_be_copied() -> None:
    tables, facts = streams(20, 12), facts_of(12, 3)
    with pytest.raises(tg.TidegateError, match="window never ends cannot be foreseen"):
        StarCopies(job_of(tables, facts, within="unbounded"))
    changing = pa.schema(
        [("a", pa.int64()), ("b", pa.int64()), ("op", pa.string()), ("t", "int64")]
    )
    spec = star_join(
        {"r": tables[0].schema, "s": tables[1].schema},
        changing,
        on=["a", "b"],
        time="time",
        within=5,
        memory=5,
        changes=("op", "t"),
    )
    with pytest.raises(tg.TidegateError, match="whose relation changes cannot share a memory"):
        StarCopies(StarJob(spec, None))
