"""Give odd values to every setting of every call: a TidegateError or a result must come."""

from __future__ import annotations

import inspect
import json
import math
import traceback
from collections.abc import Callable
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidegate as tg
from tidegate import policies, streams
from tidegate.joins.constrained.cql_plan import planned, repaired_spec
from tidegate.joins.constrained.shed_log import shed_schema
from tidegate.joins.constrained.spec import constrained_join
from tidegate.joins.sampled.estimates import estimation
from tidegate.joins.sampled.spec import sampled_join
from tidegate.joins.star.spec import star_join
from tidegate.joins.truncated.spec import truncated_join
from tidegate.joins.window.shed_log import shed_schema as window_shed
from tidegate.joins.window.spec import window_join


class Hostile:
    """A value whose every operation fails."""

    def _fail(self, *_: Any) -> Any:
        raise RuntimeError("hostile")

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __str__ = __repr__ = __bool__ = __len__ = _fail
    __hash__ = __iter__ = __float__ = __int__ = __index__ = _fail


#: By name, because test ids must not call anything of a value.
ODD: dict[str, Any] = {
    "huge": 10**400,
    "too long to write": 10**5_000,
    "minus huge": -(10**400),
    "large": 2**63,
    "negative": -1,
    "zero": 0,
    "nan": math.nan,
    "inf": math.inf,
    "sNaN": Decimal("sNaN"),
    "huge decimal": Decimal("1e999999"),
    "fraction": Fraction(1, 3),
    "complex": 1j,
    "numpy nan": np.float64("nan"),
    "numpy int": np.int64(5),
    "numpy bool": np.bool_(True),
    "numpy length": np.timedelta64(5, "s"),
    "numpy month": np.timedelta64(5, "M"),
    "numpy nat": np.timedelta64("NaT"),
    "numpy time": np.datetime64("2024-05-01T12:00"),
    "numpy array": np.array([1.0, 2.0]),
    "numpy scalar array": np.array(3),
    "numpy pairs": np.ones((2, 2)),
    "list": [],
    "tuple": (),
    "dict": {},
    "set": set(),
    "list of hostile": [Hostile(), Hostile()],
    "dict of hostile": {"left": Hostile(), "k": Hostile()},
    "schedule of hostile": [(0, Hostile()), (Hostile(), 5)],
    "nested": [[[]]],
    "pair of huge": (10**400, 10**400),
    "numbers as names": {1: 2},
    "bytes": b"k",
    "text": "x" * 100_000,
    "digits": "9" * 5_000,
    "long duration": "9" * 5_000 + " s",
    "empty": "",
    "null": "\0",
    "surrogate": "\ud800",
    "brackets": "(" * 5_000,
    "true": True,
    "none": None,
    "type": int,
    "call": len,
    "table": pa.table({"k": [1]}),
    "hostile": Hostile(),
}

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("x", pa.float64()), ("s", pa.string())])
TIMED = SCHEMA.set(1, pa.field("t", pa.timestamp("us", "UTC")))
SAMPLE = pa.schema([*SCHEMA, ("sample_probability", pa.float64()), ("sample_cluster", pa.int64())])
FACTS = pa.schema([("k", pa.int64()), ("j", pa.int64()), ("b", pa.int64()), ("e", pa.int64())])
OTHER = pa.schema([("j", pa.int64()), ("t", pa.int64()), ("x", pa.float64())])
TWO = {"a": SCHEMA, "b": OTHER}
QUERY = "Select A.k From A [Rows 5], B [Rows 5] Where A.k = B.j"

ROWS = pa.table({"k": [1], "t": [1], "x": [0.5], "s": ["a"]}, schema=SCHEMA)
LATER = pa.table({"k": [1], "t": [9], "x": [0.5], "s": ["a"]}, schema=SCHEMA)
OTHERS = pa.table({"j": [1], "t": [1], "x": [0.5]}, schema=OTHER)
LINKS = pa.table({"k": [1], "j": [1], "b": [0], "e": [9]}, schema=FACTS)
JOIN: dict[str, Any] = {"on": "k", "time": "t", "within": 5}
STAR: dict[str, Any] = {"on": ["k", "j"], "time": "t", "within": 5, "interval": ("b", "e")}
CONSTRAINED: dict[str, Any] = {"joins": ["a.k -> b.j"], "time": "t", "within": 5}
CQL: dict[str, Any] = {"query": QUERY, "time": "t", "unique": "B.j"}
SHED = shed_schema(repaired_spec(TWO, CONSTRAINED)[1]).empty_table()
WINDOW_SHED = window_shed(window_join(SCHEMA, SCHEMA, **JOIN)).empty_table()
Call = Callable[..., Any]


def join(**settings: Any) -> Any:
    return window_join(SCHEMA, SCHEMA, **settings)


def timed(**settings: Any) -> Any:
    return window_join(TIMED, TIMED, **settings)


def star(**settings: Any) -> Any:
    return star_join(TWO, FACTS, **settings)


def sample(**settings: Any) -> Any:
    return sampled_join(SCHEMA, SCHEMA, **settings)


def constrained(**settings: Any) -> Any:
    return constrained_join(TWO, **settings)


def query(**settings: Any) -> Any:
    return planned(settings.pop("query"), {"A": SCHEMA, "B": OTHER}, **settings)


def share(**settings: Any) -> Any:
    return tg.MemoryPool(memory=5).share(**settings)


#: A call, whose keywords are tried, and settings with which it works. Calls that read rows are
#: tried by what checks their settings.
CALLS: dict[str, tuple[Call, Call, dict[str, Any]]] = {
    "join": (join, window_join, JOIN),
    "bounded join": (join, window_join, JOIN | {"memory": 9, "policy": "prob"}),
    "timed join": (timed, window_join, JOIN | {"within": "5 s", "memory": "64 kB"}),
    "star join": (star, star_join, STAR | {"memory": 9}),
    "weighed star join": (star, star_join, STAR | {"memory": 9, "importance": "x"}),
    "sample": (sample, sampled_join, JOIN | {"memory": 9}),
    "truncated": (
        lambda **s: truncated_join((SCHEMA, SCHEMA), **s),
        truncated_join,
        {"on": "k", "keep": 5},
    ),
    "truncated windows": (
        lambda **s: truncated_join((SCHEMA, SCHEMA), **s),
        truncated_join,
        {"on": "k", "keep": 5, "time": "t", "per": 5},
    ),
    "truncated chain": (
        lambda **s: truncated_join((SCHEMA, SCHEMA, SCHEMA), ("a", "b", "c"), **s),
        truncated_join,
        {"on": [{"k": "k"}, {"k": "k"}], "keep": {"a": 1, "b": 2, "c": 3}},
    ),
    "constrained": (constrained, constrained_join, CONSTRAINED),
    "cql": (query, planned, CQL),
    "estimate": (
        lambda **s: estimation(SAMPLE, **s),
        estimation,
        {"value": "x", "by": "s", "time": "t", "per": 5, "every": 2},
    ),
    "optimal": (
        lambda **s: tg.optimal(s.pop("left"), s.pop("right"), **s),
        tg.optimal,
        JOIN | {"memory": 3, "left": ROWS, "right": ROWS},
    ),
    "local join": (
        lambda **s: tg.join(s.pop("left"), s.pop("right"), **s),
        tg.join,
        JOIN | {"left": ROWS, "right": ROWS},
    ),
    "learn": (
        lambda **s: tg.learn(s.pop("left"), s.pop("right"), **s),
        tg.learn,
        JOIN | {"left": ROWS, "right": pa.concat_tables([ROWS, LATER])},
    ),
    "local star join": (
        lambda **s: tg.star_join(s.pop("streams"), s.pop("relation"), **s),
        tg.star_join,
        STAR | {"streams": [ROWS, OTHERS], "relation": LINKS},
    ),
    "local constrained join": (
        lambda **s: tg.constrained_join(s.pop("streams"), **s),
        tg.constrained_join,
        CONSTRAINED | {"streams": {"a": ROWS, "b": OTHERS}},
    ),
    "profile": (
        lambda **s: tg.profile(s.pop("streams"), **s),
        tg.profile,
        CONSTRAINED | {"streams": {"a": ROWS, "b": OTHERS}},
    ),
    "local truncated join": (
        lambda **s: tg.truncated_join(s.pop("left"), s.pop("right"), **s),
        tg.truncated_join,
        {"on": "k", "keep": 5, "left": ROWS, "right": ROWS},
    ),
    "truncated histograms": (
        lambda **s: tg.truncated_join(s.pop("left"), s.pop("right"), **s),
        tg.truncated_join,
        {"on": "k", "keep": 5, "left": ROWS, "right": ROWS, "counts": "k"},
    ),
    "optimal star": (
        lambda **s: tg.optimal_star(s.pop("streams"), s.pop("relation"), **s),
        tg.optimal_star,
        STAR | {"streams": [ROWS, OTHERS], "relation": LINKS, "memory": 2},
    ),
    "repair": (
        lambda **s: tg.repair(s.pop("streams"), s.pop("shed"), **s),
        tg.repair,
        CONSTRAINED | {"streams": {"a": ROWS, "b": OTHERS}, "shed": SHED},
    ),
    "window repair": (
        lambda **s: tg.repair(s.pop("streams"), s.pop("shed"), **s),
        tg.repair,
        JOIN | {"streams": [ROWS, LATER], "shed": WINDOW_SHED},
    ),
    "share": (share, tg.MemoryPool.share, {"name": "a"}),
    "pool": (tg.MemoryPool, tg.MemoryPool, {"memory": 5}),
    "slow cpu": (tg.SlowCPU, tg.SlowCPU, {"rate": 1, "queue": 5}),
    "rows": (tg.Rows, tg.Rows, {"n": 5}),
    "monitor": (tg.Monitor, tg.Monitor, {}),
    **{kind.__name__: (kind, kind, {"on": "a.k"}) for kind in (tg.CA, tg.OAP, tg.OAC)},
    "RIDS": (tg.RIDS, tg.RIDS, {"on": "a -> b"}),
    "zipf": (streams.zipf, streams.zipf, {"n": 5}),
    "uniform": (streams.uniform, streams.uniform, {"n": 5}),
    "many_one": (streams.many_one, streams.many_one, {"n": 5, "kind": "ca"}),
    "links": (streams.links, streams.links, {"seconds": 2}),
    "bursts": (streams.bursts, streams.bursts, {"n": 5}),
    "echoes": (streams.echoes, streams.echoes, {"n": 5}),
    "auctions": (streams.auctions, streams.auctions, {"n": 5}),
    "car_reports": (streams.car_reports, streams.car_reports, {"seconds": 60}),
}
#: Policies, made and then given to a join whose times are numbers, and to one whose are times.
POLICIES = [kind for kind in policies.POLICIES.values() if fields(kind)]


def tried(call: Call, settings: dict[str, Any], name: str) -> list[str]:
    """Return an error that is no TidegateError, or that is longer than a screen."""
    raw = []
    for odd, value in ODD.items():
        try:
            made = call(**settings | {name: value})
            if hasattr(made, "settings"):
                json.dumps(made.settings())
        except tg.TidegateError as error:
            if len(str(error)) > 2_000 or str(error).count("\n") > 24:
                raw.append(f"{name}={odd}: an error of {len(str(error)):,} letters")
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            own = [f"{f.filename}:{f.lineno}" for f in frames if "/tidegate/" in f.filename]
            where = own[-1] if own else "the call"
            raw.append(f"{name}={odd}: {type(error).__name__} at {where}")
    return raw


def keywords(signed: Call, settings: dict[str, Any]) -> list[str]:
    parameters = inspect.signature(signed).parameters.values()
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return [name for name in dict.fromkeys([*named, *settings]) if name not in _GIVEN]


#: Keywords that the calls above give themselves.
_GIVEN = ("self", "schemas", "schema")


@pytest.mark.parametrize("name", CALLS)
def test_no_setting_gives_a_raw_error(name: str) -> None:
    call, signed, settings = CALLS[name]
    call(**settings)
    skipped = (
        ("left", "right", "streams", "relation") if call in (join, timed, star, sample) else ()
    )
    every = [each for each in keywords(signed, settings) if each not in skipped]
    raw = [line for each in every for line in tried(call, settings, each)]
    assert not raw, "\n".join(raw)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_no_setting_of_a_policy_gives_a_raw_error(policy: type[tg.Policy]) -> None:
    def used(**settings: Any) -> None:
        made = policy(**settings)
        json.dumps(made.settings())
        join(**JOIN, memory=9, policy=made)
        join(**JOIN, memory=9, policy=made, split="predicted")

    def used_in_time(**settings: Any) -> None:
        timed(**JOIN | {"within": "5 s"}, memory=9, policy=policy(**settings))

    parameters = inspect.signature(policy).parameters
    raw = [
        line for use in (used, used_in_time) for name in parameters for line in tried(use, {}, name)
    ]
    assert not raw, "\n".join(raw)


@pytest.mark.parametrize("call", [streams.read_parquet, streams.cut_by_time])
def test_no_setting_of_a_reader_gives_a_raw_error(call: Call, tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    good: dict[str, Any] = {"path": tmp_path / "rows.parquet"}
    if call is streams.cut_by_time:
        good = {"table": ROWS, "time": "t", "batches": 1}
    call(**good)
    raw = [line for name in keywords(call, good) for line in tried(call, good, name)]
    assert not raw, "\n".join(raw)
