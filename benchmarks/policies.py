"""Run every policy on every kind of stream: recall, fairness and speed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tidegate as tg
from benchmarks import flights, long_windows, moving
from benchmarks.measure import Step
from benchmarks.report import Figure, Section, Table
from tidegate.policies import POLICIES
from tidegate.quality import fairness
from tidegate.streams import auctions, bursts, echoes, uniform, zipf

Tables = tuple[pa.Table, pa.Table]


@dataclass(frozen=True)
class Data:
    """A pair of streams, how to join them, and whether importance counts instead of results."""

    make: Callable[[int, int], Tables]
    settings: dict[str, Any] = field(default_factory=lambda: {"on": "key", "time": "time"})
    within: Any = 400
    window: float = 400.0
    weighed: bool = False

    def live(self, tables: Tables) -> float:
        """The mean number of rows in the windows, if all are held."""
        spans = self.within if isinstance(self.within, tuple) else (self.within, self.within)
        column = self.settings["time"]
        total = 0.0
        for table, span in zip(tables, spans, strict=True):
            times = _numbers(table.column(column))
            width = self.window if span == spans[0] else 1.0
            total += len(table) * width / max(float(times.max() - times.min()), width)
        return total


def _numbers(column: pa.ChunkedArray) -> Any:
    """Return times as numbers; timestamps in microseconds."""
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_numpy()


def _zipf(skew: float, correlation: str = "none", shuffles: int = 0) -> Data:
    def make(n: int, seed: int) -> Tables:
        return zipf(n, domain=200, skew=skew, correlation=correlation, shuffles=shuffles, seed=seed)

    return Data(make)


def _auctions(shape: str, skew: float = 0.0, seconds: int = 15, bids: float = 4.0) -> Data:
    """Return auctions of which one opens every so many seconds; each lasts two hours."""

    def make(n: int, seed: int) -> Tables:
        every = timedelta(seconds=seconds)
        return auctions(n, every=every, bids=bids, shape=shape, skew=skew, seed=seed)

    return Data(
        make,
        {"on": "auction_id", "time": "ts"},
        ("2 hours", "1 us"),
        7_200e6,
    )


def _important(n: int, seed: int) -> Tables:
    """Generate iJoin's data: rare values are important."""
    tables = []
    for side, table in enumerate(zipf(n, domain=200, skew=1.0, seed=seed)):
        key = table.column("key").to_numpy()
        count = np.bincount(key, minlength=200)
        rank = np.argsort(np.argsort(-count, kind="stable"), kind="stable")
        noise = np.random.default_rng([seed, side]).random(len(key))
        tables.append(table.append_column("importance", pa.array((rank[key] + 1) * (0.5 + noise))))
    return tables[0], tables[1]


DATA: dict[str, Data] = {
    **{f"Zipf({skew:g})": _zipf(skew) for skew in (0.5, 1.0, 1.5)},
    "Zipf(1), same keys hot": _zipf(1.0, "same"),
    "Zipf(1), opposite": _zipf(1.0, "opposite"),
    "uniform": Data(lambda n, seed: uniform(n, domain=200, seed=seed)),
    "drift": _zipf(1.0, shuffles=1),
    "bursts": Data(lambda n, seed: bursts(n, seed=seed)),
    "auctions (INC)": _auctions("inc"),
    "orders (DEC)": _auctions("dec"),
    "sensors (BELL)": _auctions("bell"),
    "many sensors (BELL)": _auctions("bell", seconds=3, bids=0.5),
    "popular auctions": _auctions("inc", skew=1.0),
    "replies": Data(lambda n, seed: echoes(n, seed=seed), within=(400, 1)),
    "importance": Data(
        _important, {"on": "key", "time": "time", "importance": "importance"}, weighed=True
    ),
    "flights, weather": Data(
        flights.weather, {"on": "origin", "time": "time"}, ("1 hour", "3 hours"), 3_600e6
    ),
    "flights, same plane": Data(
        flights.planes, {"on": "tailnum", "time": "time"}, ("12 hours", "1 us"), 43_200e6
    ),
}


@dataclass(frozen=True)
class Scale:
    """Ticks of a stream, shares of memory, seeds, and which streams."""

    ticks: int = 20_000
    shares: tuple[float, ...] = (0.05, 0.10, 0.25, 0.50)
    seeds: int = 4
    data: tuple[str, ...] = tuple(DATA)
    moving: moving.Scale = moving.FULL


FULL = Scale()
QUICK = Scale(2_000, (0.25,), 1, ("Zipf(1)", "auctions (INC)"), moving.QUICK)


@dataclass(frozen=True)
class Kept:
    """The result of a policy on one pair of streams: recall, Jain's index, rows per second.

    Also the number of results of the second half of the streams.
    """

    share: float
    fairness: float
    speed: float
    late: int


def _worth(data: Data, result: tg.Result) -> float:
    return result.importance if data.weighed else float(result.results)


def _stays(data: Data, tables: Tables, result: tg.Result) -> Any:
    """Return how long each row was held: to the end of its window unless it was shed."""
    shed = result.shed
    column = data.settings["time"]
    rows = [shed.column(side).combine_chunks().field(column) for side in ("left", "right")]
    came = pc.coalesce(*[pc.cast(row, pa.int64()) for row in rows]).to_numpy()
    early = shed.column("shed_at").to_numpy() - came
    total = sum(map(len, tables))
    return np.concatenate([np.maximum(early, 0), np.full(total - len(early), data.window)])


def _times(data: Data, result: tg.Result) -> Any:
    """Return the time of each result: that of its later row."""
    column = data.settings["time"]
    return np.maximum(
        *(_numbers(result.table.column(f"{column}_{side}")) for side in ("left", "right"))
    )


def measure(data: Data, tables: Tables, memory: int, policy: str, exact: float) -> Kept:
    """Run one policy on one pair of streams."""
    start = time.perf_counter()
    bound = {**data.settings, "within": data.within, "memory": memory, "policy": policy}
    result = tg.join(*tables, **bound, keep_shed=True)
    speed = sum(map(len, tables)) / (time.perf_counter() - start)
    times = _numbers(tables[0].column(data.settings["time"]))
    half = (int(times.min()) + int(times.max())) / 2
    return Kept(
        _worth(data, result) / exact,
        fairness(_stays(data, tables, result)),
        speed,
        int((_times(data, result) >= half).sum()),
    )


def measure_all(scale: Scale, step: Step) -> dict[tuple[str, float], dict[str, list[Kept]]]:
    """Run all policies; return figures for each seed by streams and memory, then by policy."""
    found: dict[tuple[str, float], dict[str, list[Kept]]] = {}
    for name in scale.data:
        data = DATA[name]
        for seed in range(scale.seeds):
            step(f"{name}, seed {seed}")
            tables = data.make(scale.ticks, seed)
            exact = _worth(data, tg.join(*tables, **data.settings, within=data.within))
            for share in scale.shares:
                memory = max(round(share * data.live(tables)), 2)
                for policy in POLICIES:
                    kept = measure(data, tables, memory, policy, exact)
                    found.setdefault((name, share), {}).setdefault(policy, []).append(kept)
    return found


def _mean(kept: list[Kept], what: str) -> float:
    return float(statistics.mean(getattr(each, what) for each in kept))


def _best(cell: dict[str, list[Kept]]) -> tuple[float, str]:
    """Return the best policy except `auto`."""
    return max((_mean(kept, "share"), name) for name, kept in cell.items() if name != "auto")


def _rows(
    found: dict[tuple[str, float], dict[str, list[Kept]]], what: str, form: str
) -> tuple[tuple[str, ...], ...]:
    rows = []
    for (name, share), cell in found.items():
        shown = [form.format(_mean(kept, what)) for kept in cell.values()]
        rows.append((name, f"{share:.0%}", *shown))
    return tuple(rows)


def _once_learned(cell: dict[str, list[Kept]]) -> str:
    """Return `auto`'s results of the second half relative to the best policy's."""
    results = {name: _mean(kept, "late") for name, kept in cell.items()}
    best = max(value for name, value in results.items() if name != "auto")
    return f"{results['auto'] / best:.1%}"


def after_drift(scale: Scale, step: Step, width: int, seeds: int) -> Table:
    """Return recall by window before and after the keys' popularity is shuffled."""
    data, rivals = DATA["drift"], ("auto", "prob", "heeb", "greedy-dual")
    share, windows, ticks = 0.25, 10, scale.ticks * width // int(DATA["drift"].window)
    memory, change = max(round(share * 2 * width), 2), ticks // 2
    totals = dict.fromkeys(("exact", *rivals), np.zeros(windows + 1))
    for seed in range(seeds):
        step(f"after the drift, windows of {2 * width:,} rows, seed {seed}")
        tables = data.make(ticks, seed)
        for name in totals:
            bound = (
                data.settings
                if name == "exact"
                else data.settings | {"memory": memory, "policy": name}
            )
            result = tg.join(*tables, **bound, within=width)
            since = (_times(data, result) - change) // width
            before = ((since >= -windows) & (since < 0)).sum()
            after = [(since == window).sum() for window in range(windows)]
            totals[name] = totals[name] + np.array([before, *after])
    names = (f"{windows} windows before", *(f"window {at + 1} after" for at in range(windows)))
    rows = tuple(
        (name, *(f"{totals[rival][at] / totals['exact'][at]:.1%}" for rival in rivals))
        for at, name in enumerate(names)
        if totals["exact"][at]
    )
    title = "Recall before and after all keys change places (drift), windows of "
    title += f"{2 * width:,} rows, memory {share:.0%}, {seeds} seeds"
    return Table(title, ("when", *rivals), rows)


def run(scale: Scale, step: Step) -> Section:
    """Measure the whole table."""
    found = measure_all(scale, step)
    ratios = {at: _mean(cell["auto"], "share") / _best(cell)[0] for at, cell in found.items()}
    worst = min(ratios, key=lambda at: ratios[at])
    good = sum(ratio >= 0.98 for ratio in ratios.values())
    figure = Figure(
        "`auto` against the best fixed policy of each of "
        f"{len(ratios)} cells; {good} reach 98%, median {statistics.median(ratios.values()):.1%}",
        f"at worst {ratios[worst]:.1%} ({worst[0]}, {worst[1]:.0%})",
        ratios[worst],
        bar=0.98,
        aim=1.0,
        form="{:.0%}",
    )
    best = tuple(
        (
            name,
            f"{share:.0%}",
            f"{_mean(found[name, share]['auto'], 'share'):.1%}",
            f"{_best(found[name, share])[0]:.1%}",
            _best(found[name, share])[1],
            f"{ratio:.1%}",
            "" if DATA[name].weighed else _once_learned(found[name, share]),
        )
        for (name, share), ratio in ratios.items()
    )
    moved, moved_table = moving.compare(scale.moving, step)
    names = ("streams", "memory", *POLICIES)
    return Section(
        title="every policy on every kind of stream",
        workload=(
            f"{scale.ticks:,} ticks (auctions, orders and sensors: as many, with four bids each; "
            f"flights: as many departures), mean of {scale.seeds} seeds. Memory is a "
            "share of the rows that are live on average; shared between the sides. "
            "*Second half*: its results over those of the policy that has most of them there."
        ),
        figures=(figure, moved),
        tables=(
            Table(
                "`auto` and the best of the others",
                ("streams", "memory", "auto", "best", "which", "auto over it", "second half"),
                best,
            ),
            after_drift(scale, step, 400, 2 * scale.seeds),
            after_drift(scale, step, 50, 16 * scale.seeds),
            long_windows.table(scale.seeds, step),
            moved_table,
            Table(
                "Share of the exact results (of importance)", names, _rows(found, "share", "{:.1%}")
            ),
            Table(
                "Jain's fairness of the time in memory", names, _rows(found, "fairness", "{:.2f}")
            ),
            Table(
                "Thousand rows a second",
                names,
                tuple(
                    (*row[:2], *(f"{float(cell) / 1000:.0f}" for cell in row[2:]))
                    for row in _rows(found, "speed", "{}")
                ),
            ),
        ),
    )
