"""The benchmarks of approximate ranks and of iJoin's schemes, at a tiny size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tidegate as tg
from benchmarks import approximation, ijoin
from tidegate.streams import zipf

CELL = approximation.Cell("Zipf", 60, 0.7, "shared", "heeb")


def test_exact_is_what_a_small_memory_has() -> None:
    memory = approximation.Memory(60, 1, windows=5)
    window = approximation.STREAMS["Zipf"].window(60, 0.7)
    tables = zipf(5 * window, domain=window // 2, seed=3)
    public = tg.join(*tables, on="key", time="time", within=window, memory=60, policy="heeb")
    assert approximation.measure(memory, CELL, 3, "exact").results == public.results
    assert {"auto", "life", "prob, window", "lfu-aging"} < set(approximation.moving())


def test_runs_in_the_file_are_not_repeated(tmp_path: Path) -> None:
    scale = replace(
        approximation.QUICK,
        memories=(approximation.Memory(60, 2, splits=("shared",), streams=("Zipf",)),),
        policies=("heeb",),
        file=tmp_path / "cells" / "runs.csv",
    )
    steps: list[str] = []
    runs = approximation.complete(scale, steps.append)
    assert len(steps) == len(runs) == 4
    assert [run[:4] for run in approximation.complete(scale, steps.append)] == [
        run[:4] for run in runs
    ]
    assert len(steps) == 4
    [(cell, compared)] = approximation.compared(runs).items()
    assert cell == CELL
    assert 0.9 < compared.share < 1.1
    assert 0 < compared.error < 0.1
    [row] = approximation.run(scale, steps.append).tables[0].rows
    assert row[5] == f"{sum(run.results for run in runs if run.ranking == 'exact') / 2:,.0f}"


def test_every_scheme_of_ijoin_has_its_row() -> None:
    scale = ijoin.Scale(ticks=300, seeds=1, settings=((10, 25),))
    [table] = ijoin.run(scale, lambda what: None).tables
    rows = {row[0]: row for row in table.rows}
    assert list(rows) == list(ijoin.SCHEMES)
    drops, anew = (int(rows["every 10 drops"][at].replace(",", "")) for at in (5, 6))
    assert anew == -(-drops // 10)
    assert rows["successive"][5] == rows["successive"][6]
