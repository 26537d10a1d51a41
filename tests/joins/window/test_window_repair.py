"""The archive of a window join and its repair: what was delivered and what is repaired is exact."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins import window as naive

from tidegate.errors import TidegateError
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.repair import ALL, RepairJob, Slice
from tidegate.joins.window.shed_log import LATE, OUT_OF_ORDER
from tidegate.joins.window.spec import SHED_WHEN, WindowJoin, window_join
from tidegate.settings.slow_cpu import SlowCPU

from .cases import INTEGERS, Case, cases, naive_rows, pairs_of, prepared, raw, windows_of

Pairs = Counter[tuple[int, int]]


def online(case: Case, crashes: set[int] = frozenset()) -> tuple[Pairs, pa.Table]:  # type: ignore[assignment]
    """Run a join, and return its pairs and its archive; some feeds fail once and are run again."""
    job = WindowJob(case.spec)
    engine: Any = job.engine_at(0, 1, keep_shed=True)
    found: Pairs = Counter()
    archive = []
    log: list[bytes] = []
    for i, cells in enumerate(case.feeds):
        inputs = [[prepared(case.spec, cells, side)] for side in range(2)]
        clocks = case.clocks[i] if case.clocks else (None, None)
        if i in crashes | case.restarts:
            if i in crashes:
                list(engine.feed(inputs, clocks))
            engine = job.engine_at(0, 1, keep_shed=True)
            if log:
                engine.restore(log)
        found += pairs_of(engine.feed(inputs, clocks))
        archive.append(engine.take_shed())
        log.append(engine.changes())
    found += pairs_of(engine.finish())
    return found, pa.concat_tables([*archive, engine.take_shed()])


def repaired(spec: WindowJoin, cells: list[Any], archive: pa.Table, span: Slice = ALL) -> Pairs:
    job = RepairJob(spec, span)
    engine = job.engine_at(0, 1)
    inputs = [[job.prepare(side, raw(spec, cells, side))[0]] for side in range(2)]
    lines = [job.prepare(2, b)[0] for b in archive.select(["side", "mark"]).to_batches()]
    return pairs_of([*engine.feed([*inputs, lines]), *engine.finish()])


def check(case: Case, crashes: set[int]) -> None:
    case = replace(case, spec=replace(case.spec, closed=case.closed))
    found, archive = online(case, crashes)
    cells = [cell for feed in case.feeds for cell in feed]
    every = naive.exact(naive_rows(case.spec, cells), windows_of(case.spec), case.closed)
    missing = every - found
    assert found + missing == every  # nothing is delivered that does not exist, or twice
    assert repaired(case.spec, cells, archive) == missing
    cut = 5 if case.spec.unit.kind == "whole number" else 1.25
    halves = [repaired(case.spec, cells, archive, Slice(*s)) for s in ((None, cut), (cut, None))]
    assert halves[0] + halves[1] == missing


@given(cases(), st.sets(st.integers(0, 5)), st.integers(1, 28))
def test_delivered_and_repaired_pairs_are_the_exact_result(
    case: Case, crashes: set[int], kinds: int
) -> None:
    feeds = [[(s, k, t, uid % kinds) for s, k, t, uid in feed] for feed in case.feeds]
    check(replace(case, feeds=feeds), crashes)


@given(cases(order="any", closed=True), st.sets(st.integers(0, 5)))
def test_windows_with_their_end_are_repaired(case: Case, crashes: set[int]) -> None:
    check(case, crashes)


@given(
    cases(),
    st.sets(st.integers(0, 5)),
    st.builds(
        SlowCPU,
        rate=st.sampled_from([0.5, 1, 3]),
        queue=st.integers(1, 5),
        mode=st.sampled_from(["modular", "integrated"]),
    ),
)
def test_a_slow_cpu_is_repaired(case: Case, crashes: set[int], cpu: SlowCPU) -> None:
    check(replace(case, spec=replace(case.spec, cpu=cpu)), crashes)


def spec_of(**settings: Any) -> WindowJoin:
    given: dict[str, Any] = {"on": "k", "time": "t", "within": 10, "policy": "fifo"}
    return window_join(INTEGERS, INTEGERS, **given | settings)


def whys(archive: pa.Table) -> list[tuple[str, int, str]]:
    return [(row["side"], row[row["side"]]["uid"], row["why"]) for row in archive.to_pylist()]


@pytest.mark.parametrize("shed_when", SHED_WHEN)
def test_who_probes_before_it_leaves(shed_when: str) -> None:
    # At time 1 the right row takes the place of the first left row; at time 2 the left row does not
    # fit beside them.
    cells = [(0, 1, 0, 0), (1, 1, 1, 1), (0, 1, 2, 2)]
    case = Case(spec_of(memory=1, shed_when=shed_when), [cells])
    found, archive = online(case)
    expected = {(0, 1), (2, 1)} if shed_when == "after-probe" else set()
    assert set(found) == expected
    assert set(repaired(case.spec, cells, archive)) == {(0, 1), (2, 1)} - expected


def test_rows_out_of_order_are_archived_only_if_rows_left_since() -> None:
    in_order = [(0, 1, 0, 0), (1, 1, 4, 1), (1, 2, 6, 3)]
    late = [(1, 1, 2, 2)]
    roomy = Case(spec_of(memory=9, lateness=5), [in_order, late])
    assert whys(online(roomy)[1]) == []
    tight = Case(spec_of(memory=1, lateness=5), [in_order, late])
    found, archive = online(tight)
    assert ("right", 2, OUT_OF_ORDER) in whys(archive)
    assert found == {(0, 1): 1}
    assert repaired(tight.spec, in_order + late, archive) == {(0, 2): 1}


def test_late_rows_are_archived_with_what_they_missed() -> None:
    early, late = [(0, 1, 0, 0), (1, 2, 20, 1)], [(1, 1, 3, 2)]
    case = Case(spec_of(memory=None), [early, late])
    found, archive = online(case)
    assert (sum(found.values()), whys(archive)) == (0, [("right", 2, LATE)])
    assert repaired(case.spec, early + late, archive) == {(0, 2): 1}


def test_archived_rows_must_be_among_the_rows() -> None:
    cells = [(0, 1, 0, 0), (1, 1, 1, 1), (0, 1, 2, 2)]
    case = Case(spec_of(memory=1), [cells])
    _, archive = online(case)
    with pytest.raises(TidegateError, match="1 of 1 archived rows of the left are not among"):
        repaired(case.spec, cells[1:], archive)


@pytest.mark.parametrize(
    "later", [{"memory": 3}, {"memory": 9, "policy": "prob"}, {"memory": None}]
)
def test_a_join_whose_budget_changed_at_a_restart_is_repaired(later: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    cells = [(int(s), int(k), at // 3, at) for at, (s, k) in enumerate(rng.integers(0, 2, (60, 2)))]
    before, after = (spec_of(**{"memory": 6} | more) for more in ({}, later))
    found: Pairs = Counter()
    archive = []
    log: list[bytes] = []
    for spec, part in ((before, cells[:31]), (after, cells[31:])):
        engine: Any = WindowJob(spec).engine_at(0, 1, keep_shed=True)
        if log:
            engine.restore(log, before.settings())
        found += pairs_of(engine.feed([[prepared(spec, part, side)] for side in range(2)]))
        log = engine.snapshot()
        if spec is after:
            found += pairs_of(engine.finish())
        archive.append(engine.take_shed())
    missing = repaired(after, cells, pa.concat_tables(archive))
    assert missing.total() > 0
    assert found + missing == naive.exact(naive_rows(after, cells), windows_of(after))
