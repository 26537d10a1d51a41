"""Run all benchmarks, or those that are named."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import (
    approximation,
    bands,
    combined,
    constrained,
    figures,
    growth,
    ijoin,
    kernel,
    linear_road,
    measure,
    optimal,
    paper1,
    paper2_sampling,
    picture,
    policies,
    pools,
    recall,
    report,
    spark,
    star,
    state,
    static,
    store,
    wide,
)

#: The function that runs each part, in full or quickly.
PARTS: dict[str, Callable[[bool, measure.Step], report.Section]] = {
    "spark": lambda quick, step: spark.run(spark.QUICK if quick else spark.FULL, step),
    "kernel": lambda quick, step: kernel.run(kernel.QUICK if quick else kernel.FULL, step),
    "growth": lambda quick, step: growth.run(growth.QUICK if quick else growth.FULL, step),
    "state": lambda quick, step: state.run(state.QUICK if quick else state.FULL, step),
    "wide": lambda quick, step: wide.run(wide.QUICK if quick else wide.FULL, step),
    "recall": lambda quick, step: recall.run(recall.QUICK if quick else recall.FULL, step),
    "approximation": lambda quick, step: approximation.run(
        approximation.QUICK if quick else approximation.FULL, step
    ),
    "ijoin": lambda quick, step: ijoin.run(ijoin.QUICK if quick else ijoin.FULL, step),
    "policies": lambda quick, step: policies.run(policies.QUICK if quick else policies.FULL, step),
    "bands": lambda quick, step: bands.run(bands.QUICK if quick else bands.FULL, step),
    "optimal": lambda quick, step: optimal.run(optimal.QUICK if quick else optimal.FULL, step),
    "paper1": lambda quick, step: paper1.run(paper1.QUICK if quick else paper1.FULL, step),
    "star": lambda quick, step: star.run(star.QUICK if quick else star.FULL, step),
    "sampling": lambda quick, step: paper2_sampling.run(
        paper2_sampling.QUICK if quick else paper2_sampling.FULL, step
    ),
    "pools": lambda quick, step: pools.run(pools.QUICK if quick else pools.FULL, step),
    "static": lambda quick, step: static.run(static.QUICK if quick else static.FULL, step),
    "constrained": lambda quick, step: constrained.run(
        constrained.QUICK if quick else constrained.FULL, step
    ),
    "combined": lambda quick, step: combined.run(combined.QUICK if quick else combined.FULL, step),
    "linear_road": lambda quick, step: linear_road.run(
        linear_road.QUICK if quick else linear_road.FULL, step
    ),
    "picture": lambda quick, step: picture.run(picture.QUICK if quick else picture.FULL, step),
}


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Parts to run: {', '.join(PARTS)}; all by default.")
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Small sizes, to see that all works; keeps no results.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write all figures as JSON.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The folder for CSV files instead of benchmarks/results.")
    ] = None,
) -> None:
    """Measure, write the tables as CSV files, and draw the figures of the documentation from them.

    Parts that do not run keep their earlier files. All parts take about 20 minutes on two cores
    of an otherwise idle machine. `python -m benchmarks.figures` draws the figures again.
    """
    for name in names or ():
        if name not in PARTS:
            raise typer.BadParameter(f"there is no part {name!r}; there are {', '.join(PARTS)}")
    chosen = [name for name in PARTS if not names or name in names]
    target = output if output is not None or quick else store.RESULTS
    console = Console()
    machine = measure.machine()
    command = " ".join(["python -m benchmarks", *(names or ()), *(["--quick"] if quick else ())])
    done: dict[str, report.Section] = {}
    for number, name in enumerate(chosen):
        done[name] = _run(console, name, f"{number + 1}/{len(chosen)}", quick)
        for table in report.tables_on_screen(done[name]):
            console.print(table)
        if target is not None:
            # Write after every part, so that an interrupted run keeps its results.
            store.write(target, name, done[name], machine, command, list(PARTS))
    console.print(report.on_screen(done))
    if target == store.RESULTS:
        for file in figures.draw(of_parts=chosen):
            console.print(f"drew {file}")
    if json_file is not None:
        parts = {name: asdict(section) for name, section in done.items()}
        json_file.write_text(json.dumps({"machine": machine, "parts": parts}, indent=2) + "\n")


def _run(console: Console, name: str, place: str, quick: bool) -> report.Section:
    """Run a part, and show what it measures and how long it takes."""
    start = time.monotonic()

    def elapsed() -> str:
        minutes, seconds = divmod(int(time.monotonic() - start), 60)
        return f"{minutes}:{seconds:02d}"

    with console.status(f"{place} {name}") as status:

        def step(what: str) -> None:
            line = f"{place} {name} {elapsed()}: {what}"
            if console.is_terminal:
                status.update(line)
            else:
                console.print(line)

        section = PARTS[name](quick, step)
    console.print(f"{place} {name} done in {elapsed()}")
    return section


if __name__ == "__main__":
    typer.run(main)
