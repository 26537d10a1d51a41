"""Test how the links and the memory of a star join are divided among shards."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from benchmarks.star_shards import sharded
from tidegate.joins.star.job import LocalRelation, StarJob, in_order
from tidegate.joins.star.spec import star_join

STREAMS = {
    name: pa.schema([(key, pa.int64()), ("t", pa.int64())])
    for name, key in (("r", "a"), ("s", "b"))
}
SETTINGS: dict[str, Any] = {"on": ["a", "b"], "time": "t", "within": 20}
#: Relations: one component, one large component of two, many components, and a few.
RELATIONS: dict[str, list[tuple[int, int]]] = {
    "one": [(0, k) for k in range(12)] + [(k, 0) for k in range(1, 12)],
    "uneven": [(0, k) for k in range(9)] + [(1, 9), (2, 9)],
    "many": [(k, k ^ 1) for k in range(40)],
    "two": [(0, 0), (1, 1)],
    "none": [],
}


def relation(name: str) -> pa.Table:
    pairs = np.array(RELATIONS[name], np.int64).reshape(-1, 2)
    return pa.table({"a": pairs[:, 0], "b": pairs[:, 1]})


def job_of(facts: pa.Table, **settings: Any) -> StarJob:
    spec = star_join(STREAMS, facts.schema, **SETTINGS, **settings)
    return StarJob(spec, LocalRelation(*in_order(facts)))


def facts_in(job: StarJob, shards: int) -> list[int]:
    return [int(job.engine_at(at, shards).take_counters()["facts"]) for at in range(shards)]


@pytest.mark.parametrize(
    ("name", "shards", "expected"),
    [
        ("one", 2, [12, 11]),
        ("uneven", 2, [6, 5]),
        ("many", 4, [10, 10, 10, 10]),
        ("two", 3, [1, 1, 0]),
        ("none", 2, [0, 0]),
    ],
)
def test_every_shard_has_its_share_of_the_links(
    name: str, shards: int, expected: list[int]
) -> None:
    assert facts_in(job_of(relation(name)), shards) == expected


def test_the_shard_of_a_link_depends_on_its_content_only() -> None:
    facts = relation("many")
    order = pa.array(np.random.default_rng(0).permutation(len(facts)))
    for settings in ({}, {"relation_changes": "apply"}):
        jobs = [job_of(table, **settings) for table in (facts, facts.take(order))]
        one, other = (job._placed(job._indexed(), 3).tolist() for job in jobs)
        assert one == other


@pytest.mark.parametrize("split", ["shared", "fixed"])
@pytest.mark.parametrize(("name", "shards", "memory"), [*product(RELATIONS, (2, 3), (6, 100))])
def test_shards_have_all_the_memory_and_no_more(
    name: str, shards: int, memory: int, split: str
) -> None:
    """Memory is divided by the number of keys; a shard without links gets none."""
    job = job_of(relation(name), memory=memory, split=split)
    held = [job.engine_at(at, shards)._tables.rules.budgets for at in range(shards)]
    assert sum(int(one.sum()) for one in held) == (memory if RELATIONS[name] else 0)
    for one, facts in zip(held, facts_in(job, shards), strict=True):
        assert (one.min() > 0) == (facts > 0)
        if (name, memory) == ("many", 100):
            assert abs(int(one.sum()) - 100 / shards) <= 4


@pytest.mark.parametrize("name", RELATIONS)
def test_shards_together_deliver_what_one_delivers(name: str) -> None:
    rng = np.random.default_rng(1)
    tables = {
        stream: pa.table({schema.names[0]: rng.integers(0, 12, 150), "t": np.arange(150)})
        for stream, schema in STREAMS.items()
    }
    one, two, five = (sharded(tables, relation(name), n, **SETTINGS) for n in (1, 2, 5))
    assert one.results == two.results == five.results
    assert (one.copies, two.copies > 0) == (0, name in ("one", "uneven"))
    # With memory for every copy, the budget sheds nothing.
    enough = 40 + int(40 * five.copies / max(five.rows, 1)) * 5
    assert sharded(tables, relation(name), 5, memory=5 * enough, **SETTINGS).results == one.results


@pytest.mark.parametrize(
    ("old", "mine", "shards", "outcome"),
    [
        (None, None, 1, "relation relation_changes"),
        ("apply", None, 1, "relation relation_changes"),
        ("apply", "apply", 2, "relation relation_changes"),
        (None, "refuse", 1, 'relation_changes="refuse"'),
        ("refuse", None, 1, "written without the relation's links"),
        (None, None, 2, "would move between 2 shards"),
        (None, "apply", 2, "would move between 2 shards"),
        ("apply", None, 2, "would move between 2 shards"),
    ],
)
def test_when_a_table_may_differ_after_a_restart(
    old: str | None, mine: str | None, shards: int, outcome: str
) -> None:
    before = job_of(relation("many"), relation_changes=old)
    written_with = {**before.fingerprint(), "shards": shards}
    after = job_of(relation("two"), relation_changes=mine)
    if outcome.startswith("relation r"):
        assert after.changeable(written_with) == set(outcome.split())
    else:
        with pytest.raises(tg.TidegateError, match=f"differs from that of .*{outcome}"):
            after.changeable(written_with)
    # The same table goes on, unless its links would be in other shards.
    same = job_of(relation("many"), relation_changes=mine).changeable(written_with)
    moves = shards == 2 and "apply" in (old, mine) and old != mine
    assert ("relation_changes" in same) == (not moves)


def test_state_without_links_goes_on_with_the_same_table_only() -> None:
    """Earlier versions stored no links, and an engine that refuses other tables stores none."""
    before = job_of(relation("many"), relation_changes="refuse")
    records = before.engine_at(0, 1).snapshot()
    after = job_of(relation("two")).engine_at(0, 1)
    with pytest.raises(tg.TidegateError, match="written without the relation's links"):
        after.restore(records, before.fingerprint())
    same = job_of(relation("many")).engine_at(0, 1)
    same.restore(records)
    heavy = [same.log_is_heavy]
    again = same.snapshot()
    assert [*heavy, same.log_is_heavy] == [True, False]
    after = job_of(relation("two")).engine_at(0, 1)
    after.restore(again, job_of(relation("many")).fingerprint())
    assert after.take_counters()["facts"] == 2


def test_relation_changes_is_for_tables_on_spark() -> None:
    changing = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("op", pa.string())])
    changing = changing.append(pa.field("at", pa.int64()))
    with pytest.raises(tg.TidegateError, match="leave one of them out"):
        star_join(STREAMS, changing, **SETTINGS, changes=("op", "at"), relation_changes="apply")
    facts = relation("two")
    with pytest.raises(tg.TidegateError, match='must be one of "apply", "refuse", not .yes.'):
        star_join(STREAMS, facts.schema, **SETTINGS, relation_changes="yes")
    tables = [schema.empty_table() for schema in STREAMS.values()]
    with pytest.raises(tg.TidegateError, match="relation_changes='apply' is about restarts"):
        tg.star_join(tables, facts, **SETTINGS, relation_changes="apply")
