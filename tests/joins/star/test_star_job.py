"""Test how the links and the memory of a star join are divided among shards."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.star_shards import sharded
from tidegate.joins.star.job import LocalRelation, StarJob, _placed, in_order
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
    one, other = (job_of(table)._indexed() for table in (facts, facts.take(order)))
    assert _placed(one, 3).tolist() == _placed(other, 3).tolist()


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
