"""Test the small copies of a star join, which estimate its results with other budgets."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.joins.star.job import LocalRelation, StarJob, in_order
from tidegate.joins.star.shadow import ChangingCopies, ShardCopies, StarCopies, component_names
from tidegate.joins.star.spec import star_join
from tidegate.pool.curves import of_points
from tidegate.pool.member import Member, PooledJob
from tidegate.pool.shadow_joins import Sample, ShadowJoins
from tidegate.streams import zipf

WINDOW = 60
Tables = tuple[pa.Table, pa.Table]


def streams(ticks: int, domain: int, skew: float = 1.0) -> Tables:
    """Return two streams with one row at every time, in which the same keys are frequent."""
    left, right = zipf(ticks, domain=domain, skew=skew, correlation="same", seed=4)
    return left.rename_columns({"key": "a", "value": "w"}), right.rename_columns(
        {"key": "b", "value": "w"}
    )


def relation(domain: int, ties: int) -> pa.Table:
    """Return links that connect all pairs of keys in groups of `ties` keys."""
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
    return StarJob(spec, LocalRelation(*in_order(facts)))


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
def test_copies_estimate_what_a_star_join_delivers(policy: str, importance: str | None) -> None:
    tables, facts = streams(1_200, 30), facts_of(30, 3)
    tables = tuple(t.set_column(2, "w", pa.array(1.0 + np.abs(t["w"].to_numpy()))) for t in tables)
    settings = {**SETTINGS, "policy": policy, "importance": importance}
    every = tg.star_join(list(tables), facts, **settings)
    job = job_of(tables, facts, policy=policy, importance=importance)
    live = 2 * WINDOW
    sizes = [round(live * 2 ** (-step / 2)) for step in range(7, -1, -1)]
    small = ShadowJoins(ShardCopies(job, 0, 1), sizes, settle=False)
    for inputs in feeds(job, tables, 5):
        small.feed(inputs, None)
    found = small.take()
    assert small.sample == Sample()
    assert found.total == pytest.approx(every.importance, rel=0.01)
    curve = of_points(sizes, [hits / found.total for hits in found.hits], need=found.need)
    for share in (0.2, 0.45, 0.6):
        memory = round(share * live)
        measured = tg.star_join(list(tables), facts, **settings, memory=memory)
        recall = measured.importance / every.importance
        assert curve.at(memory) == pytest.approx(recall, abs=0.03)


def test_a_sample_has_whole_components() -> None:
    """With many components a sample takes whole ones; otherwise it takes rows of all."""
    tables, facts = streams(3_000, 6_000, skew=0.0), facts_of(6_000, 2)
    job = job_of(tables, facts)
    copies = ShardCopies(job, 0, 1)
    small = ShadowJoins(copies, [60, 100], settle=False, held=60)
    for inputs in feeds(job, tables, 3):
        small.feed(inputs, None)
    assert small.sample.key_group < 1 == small.sample.seen
    sampled = copies.copy(5, small.sample)
    assert sampled._index.count < 0.8 * len(facts)
    every = tg.star_join(list(tables), facts, **SETTINGS)
    assert small.take().total == pytest.approx(every.results, rel=0.5)
    few = job_of(streams(600, 6), facts_of(6, 3))
    small = ShadowJoins(ShardCopies(few, 0, 1), [60], settle=False, held=40)
    for inputs in feeds(few, streams(600, 6), 6):
        small.feed(inputs, None)
    assert small.sample.key_group == 1 > small.sample.seen


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


# ---- a relation that changes ---------------------------------------------------------------------


def changing(tables: Tables, domain: int, **settings: Any) -> tuple[StarJob, pa.Table]:
    """Return the same relation as changes: all links are inserted, and some deleted later."""
    facts = facts_of(domain, 3).to_pylist()
    rows = [("insert", each["begin"], each["a"], each["b"]) for each in facts]
    rows += [("delete", 500, each["a"], each["b"]) for each in facts if each["end"] is not None]
    kinds = [("op", pa.string()), ("at", pa.int64()), ("fa", pa.int64()), ("fb", pa.int64())]
    changes = pa.table(dict(zip(["op", "at", "fa", "fb"], zip(*rows, strict=True), strict=True)))
    spec = star_join(
        {"r": tables[0].schema, "s": tables[1].schema},
        pa.schema(kinds),
        **{
            "on": [{"a": "fa"}, {"b": "fb"}],
            "time": "time",
            "within": WINDOW,
            "changes": ("op", "at"),
            "fact": ["fa", "fb"],
            "memory": 50,
            **settings,
        },
    )
    return StarJob(spec, None), changes


def changing_feeds(job: StarJob, tables: Tables, changes: pa.Table, batches: int) -> list[Any]:
    """Return feeds in which changes come in the batch of their time."""
    found: list[Any] = feeds(job, tables, batches)
    ends = np.linspace(0, len(tables[0]), batches + 1).astype(int)
    times = changes["at"].to_numpy()
    for inputs, first, end in zip(found, ends[:-1], ends[1:], strict=True):
        own = changes.filter(pa.array((times >= first) & (times < end))).combine_chunks()
        inputs.append([job.prepare(2, b)[0] for b in own.to_batches()])
    return found


def results(job: StarJob, inputs: list[Any]) -> int:
    engine = job.engine_at(0, 1)
    found = [b for each in inputs for b in engine.feed(each)]
    return sum(len(b) for b in [*found, *engine.finish()])


def test_copies_take_the_changes_of_their_relation() -> None:
    tables = streams(1_200, 30)
    job, changes = changing(tables, 30)
    given = changing_feeds(job, tables, changes, 5)
    engine = job.engine_at(0, 1)
    small = ShadowJoins(ChangingCopies(job.spec, engine), [20, 40, 80], settle=False)
    for inputs in given:
        list(engine.feed(inputs))
        small.feed(inputs, None)
    found = small.take()
    every, _ = changing(tables, 30, memory=None)
    assert found.total == pytest.approx(results(every, given), rel=0.01)
    for size, hits in zip(found.sizes, found.hits, strict=True):
        measured = results(changing(tables, 30, memory=size)[0], given)
        assert hits == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("rows", [1 << 15, 200])
def test_copies_that_begin_later_know_the_links(rows: int) -> None:
    """The engine was moved, and the copies see only some of the batches."""
    tables = streams(1_200, 30)
    job, changes = changing(tables, 30)
    given = changing_feeds(job, tables, changes, 6)
    first, second = job.engine_at(0, 1), job.engine_at(0, 1)
    for inputs in given[:3]:
        list(first.feed(inputs))
    small = ShadowJoins(ChangingCopies(job.spec, second), [40], settle=False, rows=rows)
    second.restore(first.snapshot())
    whole = ShadowJoins(ChangingCopies(job.spec, first), [40], settle=False, rows=rows)
    for inputs in given[3:]:
        for engine, copies in ((first, whole), (second, small)):
            list(engine.feed(inputs))
            copies.feed(inputs, None)
    found = small.take()
    assert found.total > 0
    assert (found.total, found.hits) == (whole.take().total, found.hits)


def test_a_changing_relation_in_a_pool() -> None:
    """A pool with budget updates, moved after every batch, delivers what the engine alone does."""
    tables = streams(900, 30)
    job, changes = changing(tables, 30)
    member = Member("pool", "star", (20, 40), 1.0)
    shared = PooledJob(job, StarCopies(job), member)
    engine, alone = shared.engine_at(0, 1), job.engine_at(0, 1)
    engine.apply_budget(1, [40])
    alone.resize(1, 40)
    for inputs in changing_feeds(job, tables, changes, 6):
        rows = [b.num_rows for b in engine.feed(inputs)]
        assert sum(rows) == sum(b.num_rows for b in alone.feed(inputs))
        engine.take_counters()
        report = json.loads(engine.report())
        assert report["allowed"] == 40
        moved = shared.engine_at(0, 1)
        moved.restore(engine.snapshot())
        engine = moved if inputs[2] else engine
    assert report["total"] > 0
    assert report["hits"][0] < report["hits"][1] <= report["total"]
