"""Present the demo's outcome as tables, plots, an HTML page and plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tidegate import __version__
from tidegate.cli import demo_stream
from tidegate.cli.demo_stream import Batch, Streams
from tidegate.cli.sweep import Point
from tidegate.policies import POLICIES
from tidegate.report import html, plots, tables
from tidegate.report.tables import Column, Table

#: File names of the plots, and of everything that `files` may return.
_PLOTS = {
    "auctions": "recall.png",
    "query": "query.png",
    "zipf": "recall-zipf.png",
}
FILES = ("report.html", *_PLOTS.values())


@dataclass(frozen=True)
class Sweep:
    """Recall against memory on one pair of streams."""

    name: str
    rows: tuple[int, int]
    #: The largest number of rows that an exact join holds.
    window: int
    exact_results: int
    points: Sequence[Point]

    def recall(self, policy: str, share: float) -> float:
        """Return the recall of one policy with one memory."""
        return next(p.recall for p in self.points if (p.policy, p.memory_share) == (policy, share))

    def table(self, title: str) -> Table:
        """Return a table with a row for each policy and a column for each memory."""
        rows = [p.as_row() for p in self.points]
        shares = list(dict.fromkeys(p.memory_share for p in self.points))
        return Table(
            title,
            [
                Column("policy", "policy", number=False),
                *(Column(str(share), tables.about(share), tables.percent) for share in shares),
            ],
            tables.pivot(rows, index="policy", across="memory_share", value="recall"),
            f"Columns: memory, as a share of the {self.window:,} rows that an exact join holds. "
            f"Cells: share of the {self.exact_results:,} exact results delivered.",
        )

    def series(self) -> dict[str, list[tuple[float, float]]]:
        """Return the lines of a plot: (memory, recall) pairs by policy."""
        lines: dict[str, list[tuple[float, float]]] = {}
        for p in self.points:
            lines.setdefault(p.policy, []).append((p.memory_share, p.recall))
        return lines


@dataclass(frozen=True)
class Query:
    """The outcome of the streaming query."""

    policy: str
    memory: int
    memory_share: float
    recall: float
    #: Delivered rows that are not in the exact result, or not as often.
    wrong: int
    batches: Sequence[Batch]
    #: Delivered results, and exact results, whose bid came in each batch.
    delivered: Sequence[int]
    due: Sequence[int]

    @property
    def most_held(self) -> int:
        """The largest number of rows held after a batch."""
        return max(batch.held for batch in self.batches)

    def rows(self) -> list[dict[str, Any]]:
        """Return the measurements of each batch."""
        return [
            {
                "batch": index,
                **asdict(batch),
                "exact_results": due,
                "recall": got / due if due else 1.0,
            }
            for index, (batch, got, due) in enumerate(
                zip(self.batches, self.delivered, self.due, strict=True)
            )
        ]


@dataclass(frozen=True)
class Outcome:
    """The whole outcome of the demo."""

    TABLES: ClassVar[tuple[str, ...]] = ("auctions", "bids", "results", "exact")

    seed: int
    streams: Streams
    results: pa.Table
    exact: pa.Table
    query: Query
    sweeps: tuple[Sweep, Sweep]
    seconds: dict[str, float]

    def table(self, name: str) -> pa.Table:
        """Return one of the tables that the demo writes to files."""
        of = self.streams if name in ("auctions", "bids") else self
        found: pa.Table = getattr(of, name)
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        query = self.query
        return {
            "tidegate": __version__,
            "settings": {
                "auctions": len(self.streams.auctions),
                "bids": len(self.streams.bids),
                "batches": self.streams.batches,
                "seed": self.seed,
                "popularity_skew": demo_stream.SKEW,
                "within": list(demo_stream.JOIN["within"]),
                "window_rows": self.streams.window,
            },
            "query": {
                "policy": query.policy,
                "memory": query.memory,
                "memory_share": query.memory_share,
                "shards": demo_stream.SHARDS,
                "results": len(self.results),
                "exact_results": len(self.exact),
                "recall": query.recall,
                "wrong": query.wrong,
                "most_held": query.most_held,
                "batches": query.rows(),
            },
            "sweeps": {
                sweep.name: {
                    "rows": list(sweep.rows),
                    "window_rows": sweep.window,
                    "exact_results": sweep.exact_results,
                    "points": [p.as_row() for p in sweep.points],
                }
                for sweep in self.sweeps
            },
            "seconds": self.seconds,
        }


def show(outcome: Outcome, folder: Path, took: float) -> None:
    """Print the outcome to the terminal."""
    from rich.console import Console

    console = Console(highlight=False)

    def say(text: str) -> None:
        console.print(text, markup=False)

    auctions, keys = outcome.sweeps
    console.print()
    say(_summary(outcome))
    console.print()
    console.print(tables.as_rich(auctions.table("Recall against memory: auctions and bids")))
    console.print()
    say(_on_auctions(auctions))
    console.print()
    console.print(tables.as_rich(keys.table("Recall against memory: Zipf keys")))
    console.print()
    say(_on_zipf(keys))
    console.print()
    say(_how(outcome))
    say(f"Took {took:.0f} s. The report: {folder / 'report.html'}")


def files(outcome: Outcome) -> dict[str, bytes | str]:
    """Return the page and, if matplotlib is installed, the plots: contents by file name."""
    drawn = _plots(outcome) if plots.available() else {}
    pictures = {name: light for name, (light, _) in drawn.items()}
    found: dict[str, bytes | str] = {_PLOTS[name]: png for name, png in pictures.items()}
    return {"report.html": _page(outcome, drawn)} | found


def _plots(outcome: Outcome) -> dict[str, tuple[bytes, bytes]]:
    """Return each plot, drawn for light and for dark pages."""
    query, (auctions, keys) = outcome.query, outcome.sweeps
    point = {f"the query on Spark ({query.policy})": (query.memory_share, query.recall)}
    batches = query.rows()
    panels = [
        plots.Steps(
            "rows held",
            [batch["held"] for batch in batches],
            limit=(query.memory, f"memory: {query.memory:,} rows"),
        ),
        plots.Steps("recall", [batch["recall"] for batch in batches], share=True),
    ]

    def recall(sweep: Sweep, title: str, points: Any, theme: plots.Theme) -> bytes:
        return plots.recall_against_memory(
            sweep.series(), title=title, points=points, names=list(POLICIES), theme=theme
        )

    def each(theme: plots.Theme) -> dict[str, bytes]:
        return {
            "auctions": recall(auctions, "Auctions and bids: recall by policy", point, theme),
            "query": plots.over_time(
                outcome.streams.hours(),
                panels,
                title="The streaming query, batch by batch",
                unit="hours of stream time since the first auction",
                theme=theme,
            ),
            "zipf": recall(keys, "Zipf keys: recall by policy", None, theme),
        }

    light, dark = (each(theme) for theme in plots.THEMES)
    return {name: (light[name], dark[name]) for name in _PLOTS}


def _page(outcome: Outcome, drawn: dict[str, tuple[bytes, bytes]]) -> str:
    auctions, keys = outcome.sweeps
    streams, query = outcome.streams, outcome.query

    def picture(name: str, description: str) -> list[html.Part]:
        if name not in drawn:
            return []
        light, dark = drawn[name]
        return [html.Picture(light, description, dark)]

    call = (
        'tidegate.join(auctions, bids, on="auction_id", time="ts",\n'
        '              within=("2 hours", "1 us"),\n'
        f'              memory={query.memory}, policy="{query.policy}")'
    )
    settings = {
        "auctions": f"{len(streams.auctions):,}, opened evenly over a day, each open for 2 hours",
        "bids": f"{len(streams.bids):,}, most of them late in the auction's life; popularity "
        f"Zipf({demo_stream.SKEW:g})",
        "arrival": f"{streams.batches} Parquet files a stream, while the query runs",
        "memory": f"{query.memory:,} rows, {tables.about(query.memory_share)} of the "
        f"{streams.window:,} that an exact join holds at most; in {demo_stream.SHARDS} shards",
        "policy": query.policy,
        "seed": str(outcome.seed),
        "tidegate": __version__,
    }
    parts: list[html.Part] = [
        html.Text(_summary(outcome), lead=True),
        html.Heading("Recall against memory"),
        *picture("auctions", "Recall against memory for each policy; the table has the figures."),
        auctions.table("Auctions and bids"),
        html.Text(_on_auctions(auctions)),
        html.Text(_how(outcome)),
        html.Heading("The streaming query"),
        html.Code(call),
        *picture("query", "Rows held and recall, batch by batch; the table has the figures."),
        html.Text(
            "Held: rows in memory after the batch. Recall: of the exact results whose bid came "
            "in the batch, the share delivered."
        ),
        html.Folded(_batch_table(query)),
        html.Heading("Streams of another kind: recurring keys"),
        *picture("zipf", "Recall against memory for each policy; the table has the figures."),
        keys.table("Zipf keys"),
        html.Text(_on_zipf(keys)),
        html.Heading("How this was made"),
        Table(
            "Settings",
            [Column("name", "setting", number=False), Column("value", "value", number=False)],
            [{"name": name, "value": value} for name, value in settings.items()],
        ),
        html.Text("The exact result, by Spark's own join of the same files:"),
        html.Code(demo_stream.SQL),
        Table(
            "Time taken",
            [Column("part", "part", number=False), Column("seconds", "seconds", tables.seconds)],
            [{"part": part, "seconds": taken} for part, taken in outcome.seconds.items()],
        ),
    ]
    return html.page("tidegate demo: how much of the answer fits in how much memory", parts)


def _batch_table(query: Query) -> Table:
    return Table(
        "Every batch in figures",
        [
            Column("batch", "batch"),
            Column("rows", "rows in", tables.whole),
            Column("held", "held", tables.whole),
            Column("results", "results", tables.whole),
            Column("exact_results", "exact", tables.whole),
            Column("recall", "recall", tables.percent),
            Column("seconds", "time", tables.seconds),
        ],
        query.rows(),
    )


def _summary(outcome: Outcome) -> str:
    query = outcome.query
    wrong = f"and {query.wrong:,} rows that it does not have" if query.wrong else "and no other row"
    return (
        f"With memory for {query.memory:,} rows, {tables.about(query.memory_share)} of the "
        f"{outcome.streams.window:,} that an exact join holds, the streaming query delivered "
        f"{tables.percent(query.recall)} of the answer: {len(outcome.results) - query.wrong:,} of "
        f"the {len(outcome.exact):,} rows of Spark's own join, {wrong}. After a batch it held "
        f"at most {query.most_held:,} rows."
    )


def _on_auctions(sweep: Sweep) -> str:
    """Explain the figures; every sentence depends on what these figures show."""
    least = min(point.memory_share for point in sweep.points)
    said = [
        "Every auction is a key of its own, and most bids come late in its life. PROB ranks an "
        "auction by the bids it has had: it keeps the popular ones, but knows nothing of an "
        "auction before its first bid, and nothing of age. So this is not its best case: a "
        "ranking by age would know more."
    ]
    if sweep.recall("until-expiry", least) > sweep.recall("prob", least):
        said.append(
            f"With {tables.about(least)} of the window hardly an auction lasts until its first "
            "bid, and keeping the first comers to their end does better."
        )
    if "auto" in sweep.series():
        share = 0.25
        prob, auto = (tables.percent(sweep.recall(name, share)) for name in ("prob", "auto"))
        said.append(
            "AUTO has no settings and has to learn, within one day, that ages and keys both "
            f"matter: with {tables.about(share)} of the window it delivers {auto}, PROB {prob}."
        )
    if sweep.series()["prob"] == sweep.series()["life"]:
        said.append(
            "LIFE comes out the same here: the victim is always an auction without a bid, which "
            "both rank at zero."
        )
    return " ".join(said)


def _on_zipf(sweep: Sweep) -> str:
    share = 0.1
    prob, rand = (tables.percent(sweep.recall(name, share)) for name in ("prob", "rand"))
    return (
        "Keys that return again and again, some far more often than others, are what PROB is made "
        f"for: with {tables.about(share)} of the window it delivers {prob} of the answer, where "
        f"dropping at random delivers {rand}. (Two streams of {sweep.rows[0]:,} rows, joined "
        "without Spark.)"
    )


def _how(outcome: Outcome) -> str:
    query = outcome.query
    return (
        "The figures by policy are tidegate.join's: the same engine, without Spark. The "
        f"query on Spark splits its memory over {demo_stream.SHARDS} shards by key and delivered "
        f"{tables.percent(query.recall)}; undivided, the same memory delivers "
        f"{tables.percent(outcome.sweeps[0].recall(query.policy, query.memory_share))}."
    )
