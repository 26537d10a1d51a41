"""`tg.star_join`: errors for bad input, changes of the relation, and a million facts."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.policies import POLICIES

R = pa.table({"a": [1, 2], "t": [1, 2], "w": [1.0, 2.0], "x": ["p", "q"]})
S = pa.table({"b": [1, 2], "t": [1, 2], "w": [3.0, 4.0], "y": [0.5, 1.5]})
F = pa.table({"a": [1, 2], "b": [2, 2], "begin": [0, 0], "end": [5, 9], "note": ["m", "n"]})
GOOD: dict[str, Any] = {"on": ["a", "b"], "time": "t", "within": 10}
SPAN: dict[str, Any] = {"interval": ("begin", "end")}

#: A wrong setting, and words that its error must contain.
BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({"on": 3}, ["on must have columns for each of the 2 streams", '"s1", "s2"', "not 3"]),
    ({"on": "a"}, ['the s2 input has no column "a"']),
    ({"on": {"s1": "a"}}, ["for each of the 2 streams", "not {'s1': 'a'}"]),
    ({"on": ["a"]}, ["for each of the 2 streams", "not ['a']"]),
    ({"on": ["a", "c"]}, ['the s2 input has no column "c"']),
    ({"on": [{"a": "z"}, "b"]}, ['the relation has no column "z"']),
    ({"on": [{"x": "a"}, "b"]}, ['s1 "x" is string', 'the relation "a" is int64', "cast one"]),
    ({"time": ["t", "u"]}, ['has no column "u"']),
    ({"time": 3}, ["time must have a column for each", "not 3"]),
    ({"time": ["t", "y"]}, ["of one kind", "cast one"]),
    ({"within": None}, ["within is missing", '"unbounded"']),
    ({"within": [1, 2, 3]}, ["a window for each of the 2 streams", "not [1, 2, 3]"]),
    ({"within": 0}, ["longer than zero", "not 0"]),
    ({"within": [(0, 5), (9, 7)]}, ["does not change with time", "not the schedule [(0, 5)"]),
    ({"within": [[(0, 5), (9, 7)], 3]}, ["within of a star join does not change with time"]),
    ({"interval": "begin"}, ["interval must be a pair of columns", "not 'begin'"]),
    ({"interval": ("end", "end")}, ["two columns like", "not ('end', 'end')"]),
    ({"interval": ("begin", "stop")}, ['the relation has no column "stop"']),
    (
        {"interval": ("begin", "note")},
        ["timestamps, dates or numbers", 'the relation "note" is string'],
    ),
    ({**SPAN, "changes": ("note", "begin")}, ["not both", "inserts begin and deletes end"]),
    ({"changes": ("begin", "end")}, ["a column of strings", '"begin" is int64', "cast it"]),
    ({"fact": ["id"]}, ['the relation has no column "id"']),
    ({"fact": 3}, ["a column name or a list", "not 3"]),
    ({"changes": ("note", "begin"), "fact": ["a", "begin"]}, ['"begin" is of the change']),
    ({"memory": 0}, ["a positive number of rows", "not 0"]),
    ({"memory": "64 MB"}, ["a positive number of rows", "not '64 MB'", "takes no sizes"]),
    ({"memory": [(0, 5), (9, 7)]}, ["memory of a star join does not change", "the schedule"]),
    ({"memory": 2**70}, ["larger than any machine's", "None keeps everything"]),
    ({"memory": 1, "split": "fixed"}, ["at least 2 rows", "not 1"]),
    ({"split": 0.5}, ['"shared", "fixed"', "not 0.5"]),
    ({"policy": "life"}, ['policy "life" does not know of a relation', '"auto"']),
    ({"policy": tg.Life()}, ['policy "life" does not know of a relation', '"auto"']),
    ({"policy": "probb"}, ['did you mean "prob"?']),
    ({"policy": tg.Prob("whole")}, ["leave frequencies and keys"]),
    ({"policy": tg.Prob("window")}, ["leave frequencies and keys"]),
    ({"policy": "dgl", "within": "unbounded", "memory": 5}, ["DGL weighs the life that is left"]),
    ({"importance": ["w", "z"]}, ['has no column "z"']),
    ({"importance": ["w", "b"], "importance_limit": 0}, ["a number above 0", "not 0"]),
    ({"importance_limit": 3}, ["none is given"]),
    ({"importance": ["x", "w"]}, ['s1 "x" is string', "cast it"]),
    ({"suffixes": ("_x", "_y")}, ["3 strings, one for each input"]),
    ({"shed_when": "later"}, ["shed_when must be one of", "not 'later'"]),
    ({"importance": "w", "combine": "mean"}, ["combine must be one of"]),
    ({"combine": "min"}, ["combine='min'", "give importance, or leave combine out"]),
    ({"colour": 1}, ["there is no setting 'colour'"]),
]


@pytest.mark.parametrize(("settings", "words"), BAD, ids=lambda case: str(case)[:40])
def test_bad_settings(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(tg.TidegateError) as error:
        tg.star_join([R, S], F, **GOOD | settings)
    for word in words:
        assert word in str(error.value)


def facts(**columns: Any) -> pa.Table:
    return pa.table({"a": [1, 1], "b": [2, 2], "note": ["m", "m"], **columns})


def changes(*rows: tuple[Any, ...]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table(dict(zip(("op", "at", "a", "b"), map(list, columns), strict=True)))


OPS: dict[str, Any] = {"changes": ("op", "at")}
#: Wrong data: the streams, the relation, the settings, and the error.
WRONG: list[tuple[list[pa.Table], pa.Table, dict[str, Any], str]] = [
    ([R, S], facts(begin=[0, 3], end=[5, 9]), SPAN, "overlap; merge their intervals"),
    ([R, S], facts(begin=[0, 3], end=[None, 9]), SPAN, "twice for one time"),
    ([R, S], facts(begin=[7, 9], end=[6, 12]), SPAN, "a fact begins after it ends"),
    ([R, S], facts(), {}, "the relation has a fact twice: .* drop duplicates first"),
    ([R, S], facts(id=[4, 4]), {"fact": "id"}, 'a fact twice: .*by "id"; fact= names other'),
    ([R, S], facts(x=[7, 8]), {"fact": "a"}, "a fact twice: .*'x': [78]} and .*; drop one of them"),
    ([R, S], changes(("upsert", 0, 1, 2)), OPS, 'one of "insert", "delete", "update", .*upsert'),
    ([R, S], changes(("insert", 0, 1, 2), ("insert", 1, 1, 2)), OPS, "a fact that is there"),
    ([R, S], changes(("delete", 0, 1, 2)), OPS, "of a fact that is not there: insert it first"),
    ([R, S], changes(("update", 0, 1, 2)), OPS, "of a fact that is not there"),
    ([R, S], changes(("insert", None, 1, 2), ("insert", 1, 1, 1)), OPS, "a change needs a time"),
    (
        [R.set_column(1, "t", pa.array([1.0, 2.0])), S.set_column(1, "t", pa.array([1.0, 2.0]))],
        changes(("insert", float("nan"), 1, 2)),
        OPS,
        'a change needs a time, and column "at" has nan',
    ),
    (
        [R.set_column(2, "w", pa.array([0.0, 1.0])), S],
        F,
        {"importance": "w"},
        'importance must be a finite number above 0, and column "w" of "s1" has 0.0',
    ),
    (
        [R, S.set_column(2, "w", pa.array([1.0, None]))],
        F,
        {"importance": "w"},
        'a finite number above 0, and column "w" of "s2" has None; filter such rows',
    ),
    ([R, S], F, {"importance": "w", "importance_limit": 3}, r'at most 3 .*"w" of "s2" has 4.0'),
]


@pytest.mark.parametrize(("streams", "relation", "settings", "words"), WRONG)
def test_bad_data(
    streams: list[pa.Table], relation: pa.Table, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(tg.TidegateError) as error:
        tg.star_join(streams, relation, **GOOD | settings)
    assert re.search(words, str(error.value), re.DOTALL)


def test_policies_that_are_offered_are_taken() -> None:
    """The docstring names them; other policies of `tg.join` are refused."""
    with pytest.raises(tg.TidegateError) as error:
        tg.star_join([R, S], F, **GOOD, policy="best", memory=3)
    assert isinstance(tg.star_join.__doc__, str)
    for name in POLICIES:
        taken = f'"{name}"' in str(error.value)
        assert taken or f'``"{name}"``' not in tg.star_join.__doc__
        if taken:
            tg.star_join([R, S], F, **GOOD, policy=name, memory=3)
        else:
            with pytest.raises(tg.TidegateError, match="does not know of a relation"):
                tg.star_join([R, S], F, **GOOD, policy=name, memory=3)


def test_an_importance_is_checked_for_the_optimum_too() -> None:
    none = S.set_column(2, "w", pa.array([1.0, 0.0]))
    with pytest.raises(tg.TidegateError, match='above 0, and column "w" of "s2" has 0.0'):
        tg.optimal_star([R, none], F, **GOOD, importance="w", memory=2)
    with pytest.raises(tg.TidegateError, match='above 0 and at most 3 .*"s2" has 4.0'):
        tg.optimal_star([R, S], F, **GOOD, importance="w", importance_limit=3, memory=2)


@pytest.mark.parametrize("on", ["k", {"k": "k"}, ["k", "k"], {"s1": "k", "s2": {"k": "k"}}])
def test_one_key_for_all_streams(on: Any) -> None:
    r = pa.table({"k": [1, 2, 3], "t": [1, 2, 3]})
    rooms = pa.table({"k": [1, 3], "room": ["hall", "attic"]})
    found = tg.star_join([r, r], rooms, on=on, time="t", within=1).table
    assert sorted(found["room"].to_pylist()) == ["attic", "hall"]


@pytest.mark.parametrize("at", [0, 3, 5, 7])
def test_a_fact_that_ends_as_it_begins_plays_no_part(at: int) -> None:
    """It may lie before, in, at the end of or after another interval of the same fact."""
    plain, more = facts(begin=[0, 8], end=[5, 9]), facts(begin=[at, at], end=[at, at])
    with_it = pa.concat_tables([plain, more])
    one, other = (
        tg.star_join([R, S], f, **GOOD, **SPAN, policy="prob", memory=3) for f in (plain, with_it)
    )
    assert one.table.equals(other.table)
    assert one.results == 1
    optimum = tg.optimal_star([R, S], with_it, **GOOD, **SPAN, memory=3)
    assert optimum.results == 1


def test_a_change_after_the_rows_it_is_for() -> None:
    """Rows are put in order of time here, so an engine is fed by hand."""
    from tidegate.joins.star.job import StarJob
    from tidegate.joins.star.spec import star_join

    late = changes(("insert", 1, 1, 2))
    spec = star_join({"r": R.schema, "s": S.schema}, late.schema, **GOOD, **OPS)
    job = StarJob(spec, None)
    engine = job.engine_at(0, 1)
    batches = [[job.prepare(s, t.to_batches()[0])[0]] for s, t in enumerate((R, S))]
    assert list(engine.feed([*batches, []])) == []
    before = engine.snapshot()
    with pytest.raises(tg.TidegateError, match="comes after rows of the time 1 have been joined"):
        list(engine.feed([[], [], [job.prepare(2, late.to_batches()[0])[0]]]))
    # It was refused as a whole.
    assert engine.snapshot() == before


def test_one_stream_holds_nothing() -> None:
    with pytest.raises(tg.TidegateError, match="without a window"):
        tg.star_join([R], F, on=["a"], time="t", within=5)
    with pytest.raises(tg.TidegateError, match="leave memory=5 out"):
        tg.star_join([R], F, on=["a"], time="t", memory=5)
    found = tg.star_join([R], F, on=["a"], time="t", **SPAN)
    assert found.table.schema.names == ["a", "t", "w", "x", "b", "begin", "end", "note"]
    assert (found.results, found.counters["held"]) == (2, 0)


@pytest.mark.parametrize("streams", [None, [], {}, 7, {"fact": R}])
def test_no_streams(streams: Any) -> None:
    with pytest.raises(tg.TidegateError, match="a list of one or more streams"):
        tg.star_join(streams, F, **GOOD)


def test_an_update_changes_what_results_carry_from_its_time_on() -> None:
    history = pa.table(
        {
            "op": ["insert", "update", "delete"],
            "at": [0, 4, 8],
            "a": [1, 1, 1],
            "b": [2, 2, 2],
            "price": [10, 20, None],
        }
    )
    r = pa.table({"a": [1, 1, 1], "t": [1, 5, 9]})
    s = pa.table({"b": [2, 2, 2], "t": [2, 6, 10]})
    found = tg.star_join([r, s], history, **GOOD, **OPS).table
    got = {(row["t_s1"], row["t_s2"]): row["price"] for row in found.to_pylist()}
    # A fact must be active at the times of both: not across the update, not after the delete.
    assert got == {(1, 2): 10, (5, 6): 20}


def test_a_fact_may_be_named_otherwise_than_by_its_keys() -> None:
    history = pa.table(
        {
            "op": ["insert", "update", "delete"],
            "at": [0, 4, 8],
            "id": [7, 7, 7],
            "a": [1, 3, None],
            "b": [2, 2, None],
        }
    )
    r = pa.table({"a": [1, 3, 3], "t": [1, 5, 9]})
    s = pa.table({"b": [2, 2, 2], "t": [2, 6, 10]})
    found = tg.star_join([r, s], history, **GOOD, **OPS, fact="id").table
    assert {(row["a"], row["t_s2"]) for row in found.to_pylist()} == {(1, 2), (3, 6)}


@pytest.mark.parametrize("changing", [False, True])
def test_a_fact_without_a_key_holds_no_rows(changing: bool) -> None:
    """It never joins, but its changes are checked as those of other facts are."""
    history = pa.table(
        {
            "op": pa.array(["insert", "insert", "update", "delete"], pa.large_string()),
            "at": [0, 0, 1, 9],
            "a": pa.array([None, 2, None, None], pa.int64()),
            "b": [1, 2, 1, 1],
        }
    )
    relation = history if changing else history.slice(0, 2).select(["a", "b"])
    found = tg.star_join([R, S], relation, **GOOD, **OPS if changing else {})
    assert (found.results, found.counters["filtered"], found.counters["held"]) == (1, 2, 2)


def test_a_million_facts() -> None:
    rng = np.random.default_rng(0)
    n, keys = 1_000_000, 400_000
    pairs = np.unique(rng.integers(0, keys, n) * keys + rng.integers(0, keys, n))
    relation = pa.table({"a": pairs // keys, "b": pairs % keys})
    times = np.arange(20_000)
    r = pa.table({"a": rng.integers(0, keys, len(times)), "t": times})
    s = pa.table({"b": rng.integers(0, keys, len(times)), "t": times})
    found = tg.star_join([r, s], relation, on=["a", "b"], time="t", within=5_000)
    assert found.counters["facts"] == len(pairs)
    facts_of: dict[int, list[int]] = {}
    wanted = set(r["a"].to_pylist())
    for a, b in zip((pairs // keys).tolist(), (pairs % keys).tolist(), strict=True):
        if a in wanted:
            facts_of.setdefault(a, []).append(b)
    when: dict[int, list[int]] = {}
    for b, t in zip(s["b"].to_pylist(), s["t"].to_pylist(), strict=True):
        when.setdefault(b, []).append(t)
    expected = sum(
        abs(t - u) < 5_000
        for a, t in zip(r["a"].to_pylist(), r["t"].to_pylist(), strict=True)
        for b in facts_of.get(a, ())
        for u in when.get(b, ())
    )
    assert found.results == expected > 500
