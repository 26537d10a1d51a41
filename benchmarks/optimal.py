"""Measure time and memory of the optimum, against the paper's graph with the same solver."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tidegate as tg
from benchmarks.measure import Samples, Step, samples
from benchmarks.report import Figure, Section, Table
from tidegate.streams import zipf


@dataclass(frozen=True)
class Scale:
    """Pairs of a length and a window, for `tidegate.optimal` and for the paper's graph."""

    settings: tuple[tuple[int, int], ...]
    paper: tuple[tuple[int, int], ...]
    repeats: int = 3


LENGTHS = (5_600, 20_000, 50_000, 100_000, 1_000_000)
FULL = Scale(settings=tuple(product(LENGTHS, (400, 5_000))), paper=((1_400, 100), (1_400, 400)))
QUICK = Scale(settings=((2_000, 100),), paper=((300, 40),), repeats=1)

#: Streams of at least these lengths are solved only once, and with only one split.
_LONG, _LONGEST = 20_000, 1_000_000
#: Time limit for the paper's graph, in seconds.
_PATIENCE = 300


@dataclass(frozen=True)
class Solved:
    """The cost of one solution: seconds, processor seconds, peak MiB; and what it found."""

    seconds: float
    busy: float
    memory: float
    results: int
    bound: float

    @property
    def gap(self) -> float:
        """Upper bound of the distance to the optimum."""
        return self.bound / self.results - 1


def ours(length: int, window: int, split: Any) -> tuple[int, float]:
    """Return results and bound of the public call."""
    found = tg.optimal(
        *zipf(length, domain=50, skew=1.0, seed=1),
        on="key",
        time="time",
        within=window,
        memory=window,
        split=split,
    )
    return found.results, found.upper_bound


def of_paper(length: int, window: int) -> tuple[int, float]:
    """Solve the graph of section 4.1.1: a node for every row and every time it may be held."""
    from ortools.graph.python import min_cost_flow

    keys = [t.column("key").to_numpy() for t in zipf(length, domain=50, skew=1.0, seed=1)]
    results = int((keys[0] == keys[1]).sum())
    shares = (window // 2, window - window // 2)
    for own, other, places in zip(keys, keys[::-1], shares, strict=True):
        solver = min_cost_flow.SimpleMinCostFlow()
        tail, head, cost = paper_arcs(own, other, window)
        nodes = 2 + length * window
        solver.add_arcs_with_capacity_and_unit_cost(tail, head, np.ones_like(tail), cost)
        # Unused memory flows along a timeline. The paper needs none: it fills the memory with the
        # first rows.
        solver.add_arc_with_capacity_and_unit_cost(0, 1, places, 0)
        supply = np.zeros(nodes, np.int64)
        supply[0], supply[1] = places, -places
        solver.set_nodes_supplies(np.arange(nodes), supply)
        if solver.solve() != solver.OPTIMAL:
            raise AssertionError("the paper's graph always has a solution")
        results -= solver.optimal_cost()
    return results, float(results)


def paper_arcs(
    own: NDArray[Any], other: NDArray[Any], window: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return tails, heads and costs: source 0, sink 1, then a node per row and time."""
    n = len(own)
    rows, ages = (a.ravel() for a in np.indices((n, window)))
    node = 2 + rows * window + ages
    now = rows + ages
    stays = (ages + 1 < window) & (now + 1 < n)
    replaced = (ages > 0) & (now < n)
    earns = own[rows[stays]] == other[now[stays] + 1]
    first = 2 + np.arange(n) * window
    tail = [node[stays], node[replaced], np.zeros(n, np.int64), node[now < n]]
    head = [node[stays] + 1, 2 + now[replaced] * window, first, np.ones((now < n).sum(), np.int64)]
    cost = [-earns.astype(np.int64)] + [np.zeros(len(t), np.int64) for t in tail[1:]]
    return np.concatenate(tail), np.concatenate(head), np.concatenate(cost)


def apart(kind: str, length: int, window: int, patience: float | None = None) -> Solved | None:
    """Solve in a new process, so that its memory can be measured; None if it takes too long."""
    command = [sys.executable, "-m", "benchmarks.optimal", kind, str(length), str(window)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return None
    return Solved(**json.loads(done.stdout))


def alone(kind: str, length: int, window: int) -> Solved:
    """Solve in this process, after everything is compiled."""

    def solve(n: int, w: int) -> tuple[int, float]:
        return of_paper(n, w) if kind == "paper" else ours(n, w, kind)

    solve(60, 10)
    start, idle = time.perf_counter(), time.process_time()
    results, bound = solve(length, window)
    seconds, busy = time.perf_counter() - start, time.process_time() - idle
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Solved(seconds, busy, most, results, bound)


def run(scale: Scale, step: Step) -> Section:
    """Measure all lengths and windows, then the paper's graph."""
    rows, seconds, gaps = [], {}, {}
    for length, window in scale.settings:
        for split in ("fixed", "shared") if length < _LONGEST else ("fixed",):
            step(f"N {length:,}, w {window:,}, {split}")
            repeats = scale.repeats if length < _LONG else 1
            found = [apart(split, length, window) for _ in range(repeats)]
            solved = [one for one in found if one is not None]
            took = samples([one.seconds for one in solved])
            seconds[length, window, split] = took
            gaps[length, window, split] = solved[0].gap
            rows.append(_row(length, window, split, took, solved[0]))
    paper_rows = []
    for length, window in scale.paper:
        step(f"the paper's graph, N {length:,}, w {window:,}")
        fixed, theirs = apart("fixed", length, window), apart("paper", length, window, _PATIENCE)
        if fixed is not None:
            paper_rows.append(_against(length, window, fixed, theirs))
    return Section(
        title="the best any policy could have done",
        workload=(
            "`tg.optimal` on two streams of Zipf(1) keys, domain 50, a row a side at every "
            "time, with memory for w rows, half of what a full window has. Seconds are those of "
            "the whole call, on one core; memory is the highest of the process, which starts with "
            "about 200 MiB of libraries. `above` is how far the certified bound is above the "
            "result: 0 % is optimal."
        ),
        figures=tuple(_figures(seconds, gaps)),
        tables=(
            Table(
                "Seconds and memory",
                (
                    "N a side",
                    "w = M",
                    "split",
                    "seconds",
                    "processor",
                    "peak MiB",
                    "results",
                    "above",
                ),
                tuple(rows),
            ),
            Table(
                "Against a node for every row and time",
                ("N a side", "w = M", "processor", "peak MiB", "paper's graph", "its MiB", "same"),
                tuple(paper_rows),
                "The graph of paper 1, section 4.1.1, with w times N nodes a side, solved by "
                f"OR-tools (fixed split), given {_PATIENCE} s. Seconds of the processor.",
            ),
        ),
    )


def _row(length: int, window: int, split: str, took: Samples, one: Solved) -> tuple[str, ...]:
    return (
        f"{length:,}",
        f"{window:,}",
        split,
        took.show(),
        f"{one.busy:.2f}",
        f"{one.memory:,.0f}",
        f"{one.results:,}",
        f"{one.gap:.2%}",
    )


def _against(length: int, window: int, one: Solved, paper: Solved | None) -> tuple[str, ...]:
    theirs = ("too long", "", "")
    if paper is not None:
        same = "yes" if paper.results == one.results else f"no, {paper.results:,}"
        theirs = (f"{paper.busy:.2f}", f"{paper.memory:,.0f}", same)
    return f"{length:,}", f"{window:,}", f"{one.busy:.2f}", f"{one.memory:,.0f}", *theirs


def _figures(
    seconds: dict[tuple[int, int, str], Samples], gaps: dict[tuple[int, int, str], float]
) -> list[Figure]:
    """Return the design's rows from the measurements."""
    figures = []
    for length, goals in {5_600: (1.0, 1.0), 50_000: (140.0, 10.0)}.items():
        if (length, 400, "fixed") in seconds:
            took = seconds[length, 400, "fixed"]
            what = f"OPT-offline, N = {length:,}, w = M = 400, fixed"
            shown = took.show() + " s"
            figures.append(Figure(what, shown, took.median, *goals, "{:g} s", higher=False))
    for (length, window, split), gap in gaps.items():
        if length == _LONGEST:
            what = f"OPT-offline, N = {length:,}, w = M = {window:,}, {split}, above the result"
            took = seconds[length, window, split]
            shown = f"{gap:.2%} in {took.median:.0f} s"
            figures.append(Figure(what, shown, gap, 0.01, 0.01, "{:.0%}", higher=False))
    return figures


if __name__ == "__main__":
    print(json.dumps(asdict(alone(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
