"""Every setting that changes results, state or the result's columns belongs to the checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import tidegate as tg
from tidegate.engine.base import Job
from tidegate.joins.constrained.cql_plan import RelationPlan, planned
from tidegate.joins.constrained.engine import ConstrainedJob
from tidegate.joins.constrained.shed_log import archived
from tidegate.joins.constrained.spec import constrained_join
from tidegate.joins.sampled.engine import SampledJob
from tidegate.joins.sampled.spec import sampled_join
from tidegate.joins.star.job import StarJob
from tidegate.joins.star.spec import star_join
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join
from tidegate.policies.base import Policy, Ranks
from tidegate.spark.operator import settings_of

ROWS = pa.schema([("k", pa.int64()), ("j", pa.int64()), ("t", pa.int64()), ("w", pa.int64())])
STREAMS = {"A": ROWS, "B": ROWS}
NUMBERS = [(name, pa.int64()) for name in ("a", "b", "at", "begin", "end")]
RELATION = pa.schema([*NUMBERS, ("op", pa.string())])
QUERY = "Select A.w, B.t From A [Range 9], B [Range 9] Where A.k = B.k"


def window(**settings: Any) -> Job:
    return WindowJob(window_join(ROWS, ROWS, **settings))


def sampled(**settings: Any) -> Job:
    return SampledJob(sampled_join(ROWS, ROWS, **settings))


def star(**settings: Any) -> Job:
    return StarJob(star_join(STREAMS, RELATION, **settings), None)


def constrained(**settings: Any) -> Job:
    archive = settings.pop("shed_to", None)
    spec = constrained_join(STREAMS, **settings)
    return ConstrainedJob(spec if archive is None else archived(spec))


def cql(*, query: str, **settings: Any) -> Job:
    plan = planned(query, STREAMS, **settings)
    return plan.relation if isinstance(plan, RelationPlan) else plan.job()


#: For each call: how its job is made, settings to begin with, and another value of each.
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Job], dict[str, Any], dict[str, Any]]] = {
    "join": (
        tg.join,
        window,
        {"on": "k", "time": "t", "within": 9, "memory": 20, "importance": "w"},
        {
            "on": "j",
            "time": "w",
            "within": (9, 8),
            "count_from": 3,
            "closed": True,
            "where": "l.w < r.w",
            "memory": "20 kB",
            "policy": "prob",
            "split": "fixed",
            "shed_when": "before-probe",
            "importance": ("w", "j"),
            "combine": "max",
            "lateness": 1,
            "cpu": tg.SlowCPU(rate=1, queue=9),
            "suffixes": ("_l", "_r"),
            "seed": 1,
        },
    ),
    "sample_join": (
        tg.sample_join,
        sampled,
        {"on": "k", "time": "t", "within": 9, "memory": 20},
        {
            "on": "j",
            "time": "w",
            "within": 8,
            "closed": True,
            "where": "l.w < r.w",
            "memory": 21,
            "fraction": 0.5,
            "method": "uniform",
            "model": "age",
            "value": "w_left",
            "margin": 2.0,
            "reach": 2.0,
            "lateness": 1,
            "suffixes": ("_left", "_r"),
            "seed": 1,
        },
    ),
    "star_join": (
        tg.star_join,
        star,
        {
            "on": {"A": {"k": "a"}, "B": {"k": "b"}},
            "time": "t",
            "within": 9,
            "changes": ("op", "at"),
            "memory": 20,
            "importance": "w",
        },
        {
            "on": {"A": {"j": "a"}, "B": {"k": "b"}},
            "time": "w",
            "within": 8,
            "closed": True,
            "interval": ("begin", "end"),
            "changes": ("op", "begin"),
            "fact": "a",
            "memory": 21,
            "split": "fixed",
            "policy": "rand",
            "shed_when": "before-probe",
            "importance": "j",
            "importance_limit": 5,
            "combine": "max",
            "lateness": 1,
            "suffixes": ("_1", "_2", "_f"),
            "seed": 1,
        },
    ),
    "constrained_join": (
        tg.constrained_join,
        constrained,
        {"joins": "A.k -> B.k", "time": "t", "within": 9, "constraints": tg.RIDS("A -> B", k=5)},
        {
            "joins": "A.k <-> B.k",
            "time": "w",
            "within": {"A": 9, "B": 8},
            "closed": True,
            "suffixes": ("_1", "_2"),
            "filters": {"A": "w > 1"},
            "select": ["A.k"],
            "constraints": tg.RIDS("A -> B", k=6),
            "monitor": tg.Monitor(),
            "lateness": 1,
            "lag": 1,
            "choose": False,
            "eliminate": False,
            "shed_to": "folder",
        },
    ),
    "cql": (
        tg.cql,
        cql,
        {"query": QUERY, "time": "t", "unique": "B.k"},
        {
            "query": QUERY.replace("A.w", "A.w As x"),
            "time": "w",
            "unique": ["A.k", "B.k"],
            "closed": True,
            "constraints": tg.RIDS("A -> B", k=6),
            "monitor": tg.Monitor(),
            "lateness": 1,
            "lag": 1,
            "choose": False,
            "eliminate": False,
        },
    ),
}
#: Settings that may change. The operator itself compares the number of shards; an archive may move,
#: but whether there is one is compared; whether a table may differ is tested with star joins; the
#: others are for local data.
FREE = {"shards", "shed_to", "relation_changes", "batch_rows", "keep_shed"}
#: Settings that do not fit the others of their call: they are tested below.
ALONE = {"cql": {"changes"}}
#: With another value of one setting, another one cannot stay.
WITHOUT = {"interval": ["changes"], "eliminate": ["constraints"]}


def told(job: Job) -> dict[str, Any]:
    return settings_of(job, from_arrow_schema(job.result_schema))


@pytest.mark.parametrize("call", CALLS)
def test_every_setting_is_part_of_the_checkpoint(call: str) -> None:
    public, made, given, others = CALLS[call]
    parameters = inspect.signature(public).parameters.values()
    names = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert names - FREE - ALONE.get(call, set()) <= set(others)
    for name, value in others.items():
        kept = {n: v for n, v in given.items() if n not in WITHOUT.get(name, ())}
        assert told(made(**kept)) == told(made(**kept))
        assert told(made(**{**kept, name: value})) != told(made(**kept)), name


def test_aggregates_are_part_of_the_checkpoint() -> None:
    texts = [
        QUERY.replace("A.w, B.t", each)
        for each in ("sum(A.w)", "sum(A.j)", "avg(A.w)", "count(*)", "sum(A.w), B.k")
    ]
    texts[-1] += " Group By B.k"
    every = [told(cql(query=text, time="t", unique="B.k")) for text in texts]
    assert all(one != other for i, one in enumerate(every) for other in every[:i])


def test_queries_inside_are_part_of_the_checkpoint() -> None:
    given: dict[str, Any] = {
        "query": "Select distinct w From A [Range 9]",
        "time": "t",
        "unique": [],
        "lateness": 0,
    }
    others: list[dict[str, Any]] = [
        {"query": "Select distinct k From A [Range 9]"},
        {"query": "Select distinct w From A [Range 8]"},
        {"query": "Select distinct w From B [Range 9]"},
        {"time": "w"},
        {"lateness": 1},
        {"lag": 1},
        {"closed": True},
    ]
    spaced = told(cql(**{**given, "query": "Select  distinct w -- all\nFrom A [Range 9]"}))
    assert spaced == told(cql(**given))
    for other in others:
        assert told(cql(**{**given, **other})) != spaced, other
    wide = {"A": ROWS.append(pa.field("op", pa.string())).append(pa.field("way", pa.string()))}
    plans = [
        planned("Select distinct w From A", wide, time="t", unique=[], changes=changes)
        for changes in (None, {"A": "op"}, {"A": "way"})
    ]
    jobs = [told(plan.relation) for plan in plans if isinstance(plan, RelationPlan)]
    assert all(one != other for one, other in pairwise([*jobs, jobs[0]]))


def test_types_of_columns_are_part_of_the_checkpoint() -> None:
    wider = pa.schema([(f.name, pa.float64() if f.name == "w" else f.type) for f in ROWS])
    jobs = [
        WindowJob(window_join(left, ROWS, on="k", time="t", within=9)) for left in (ROWS, wider)
    ]
    assert told(jobs[0]) != told(jobs[1])


@dataclass(frozen=True)
class Mine(Policy):
    """A policy of a user, with a setting that has the name of one of the join."""

    memory: Any = None
    name: ClassVar[str] = "mine"
    ranks: ClassVar[Ranks] = "row"
    order_weight: ClassVar[float] = 1.0


def test_a_policy_s_settings_hide_none_of_the_join_s() -> None:
    same = Mine(7)
    made = [window(on="k", time="t", within=9, memory=m, policy=same) for m in (20, 30)]
    assert told(made[0]) != told(made[1])
    other = window(on="k", time="t", within=9, memory=20, policy=Mine(8))
    assert told(made[0]) != told(other)


def test_a_long_array_of_a_policy_counts_as_a_whole() -> None:
    one, other = np.zeros(5_000), np.zeros(5_000)
    other[2_500] = 1.0
    assert Mine(one).settings() != Mine(other).settings()
