"""`tidegate demo`: run a bounded join on Spark and show how memory and policy affect recall."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from tidegate import quality
from tidegate.api.join import join as join_streams
from tidegate.cli import demo_report, demo_stream
from tidegate.cli.demo_report import Outcome, Query, Sweep
from tidegate.cli.folder import OutFolder
from tidegate.cli.screen import Screen
from tidegate.cli.sweep import best_first, sweep, window_rows
from tidegate.errors import TidegateError, require
from tidegate.policies import POLICIES
from tidegate.report import plots
from tidegate.streams import zipf

#: The memories to try, as shares of the rows that an exact join holds.
SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
#: Memory and policy of the query on Spark.
QUERY_SHARE = 0.25
QUERY_POLICY = "prob"

_RECORD = "demo.json"
_LIMITS = {"auctions": (100, 1_000_000), "batches": (1, 1_000), "seed": (0, 2**32 - 1)}


@dataclass(frozen=True)
class Settings:
    """The command's options."""

    out: Path
    auctions: int
    batches: int
    seed: int

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise TidegateError(
                    f"--{name} must be a number from {least:,} to {most:,}, not {value:,}"
                )


def main(settings: Settings, *, as_json: bool) -> None:
    """Run the demo: progress goes to stderr, the outcome to stdout, files to the folder."""
    begin = time.perf_counter()
    require("pyspark", "spark", "the demo")
    screen = Screen()
    names = [_RECORD, *demo_report.FILES, *(f"{name}.parquet" for name in Outcome.TABLES)]
    folder = OutFolder(settings.out, names, record=_RECORD, made_by="tidegate demo")
    try:
        if not plots.available():
            screen.say("No plots: matplotlib is missing (pip install 'tidegate[plots]')")
        outcome = _run(settings, screen)
        with screen.waiting("Writing the report"):
            _write(folder, outcome)
    finally:
        folder.withdraw()
    if as_json:
        typer.echo(json.dumps(outcome.as_json(), indent=2))
    else:
        demo_report.show(outcome, folder.path, time.perf_counter() - begin)


def _run(settings: Settings, screen: Screen) -> Outcome:
    seconds: dict[str, float] = {}
    streams = demo_stream.make(settings.auctions, settings.batches, settings.seed)
    memory = max(demo_stream.SHARDS, round(QUERY_SHARE * streams.window))
    screen.say(
        f"A day of {len(streams.auctions):,} auctions and {len(streams.bids):,} bids, arriving as "
        f"{settings.batches} files each; memory for {memory:,} of {streams.window:,} rows"
    )
    with tempfile.TemporaryDirectory(prefix="tidegate-demo-") as temporary, ExitStack() as stack:
        work = Path(temporary)
        with screen.waiting("Starting Spark"), _timed(seconds, "starting Spark"):
            spark, interrupts = stack.enter_context(demo_stream.spark())
        with _timed(seconds, "streaming query"), screen.step("batch", settings.batches) as step:
            results, batches = demo_stream.bounded(
                spark,
                streams,
                work,
                memory=memory,
                policy=QUERY_POLICY,
                step=step,
                interrupts=interrupts,
            )
        with screen.waiting("Spark's own join of the same files"), _timed(seconds, "Spark's join"):
            exact = demo_stream.exact(spark, work)
    with _timed(seconds, "other memories and policies"):
        sweeps = _sweeps(settings, screen, streams, exact)
    query = Query(
        policy=QUERY_POLICY,
        memory=memory,
        memory_share=QUERY_SHARE,
        recall=quality.recall(results, exact),
        wrong=len(results) - quality.matching(results, exact),
        batches=batches,
        delivered=streams.by_batch(results).tolist(),
        due=streams.by_batch(exact).tolist(),
    )
    return Outcome(settings.seed, streams, results, exact, query, sweeps, seconds)


def _sweeps(
    settings: Settings, screen: Screen, streams: demo_stream.Streams, exact: pa.Table
) -> tuple[Sweep, Sweep]:
    """Measure recall against memory, on the demo's streams and on streams with recurring keys."""
    ticks, window = 2 * settings.auctions, settings.auctions // 10
    left, right = zipf(ticks, domain=max(20, settings.auctions // 20), seed=settings.seed)
    zipf_join: dict[str, Any] = {"on": "key", "time": "time", "within": window}
    times = left["time"].to_numpy(), right["time"].to_numpy()
    tried = [
        ("auctions", (streams.auctions, streams.bids), exact, streams.window, demo_stream.JOIN),
        (
            "zipf",
            (left, right),
            join_streams(left, right, **zipf_join).table,
            window_rows(times, (window, window)),
            zipf_join,
        ),
    ]
    done = []
    with screen.step("setting", len(tried) * len(POLICIES) * len(SHARES)) as step:
        if not screen.live:
            screen.say(f"Trying {len(POLICIES)} policies with {len(SHARES)} memories on two inputs")
        for name, inputs, whole, held, join in tried:
            points = []
            for point in sweep(
                *inputs, whole, policies=list(POLICIES), shares=SHARES, window=held, **join
            ):
                points.append(point)
                step.done(f"{name}, {point.policy}", line=False)
            rows = len(inputs[0]), len(inputs[1])
            done.append(Sweep(name, rows, held, len(whole), best_first(points)))
    return done[0], done[1]


def _write(folder: OutFolder, outcome: Outcome) -> None:
    """Write the files. The record comes first: it allows the next run to replace the others."""
    folder.write_record(outcome.as_json())
    for name in Outcome.TABLES:
        with folder.replacing(f"{name}.parquet") as path:
            pq.write_table(outcome.table(name), path)
    for name, content in demo_report.files(outcome).items():
        folder.write(name, content)


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds[part] = round(time.perf_counter() - begin, 2)
