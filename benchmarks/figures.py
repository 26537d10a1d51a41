"""Draw the figures of the documentation from the CSV files: `python -m benchmarks.figures`.

Figures have no background, and colours of medium brightness, so that they can be read on light and
on dark pages. Lines are labelled where they end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import matplotlib as mpl
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import store

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
INK = "#7d8590"
BLUE, ORANGE, GREEN, PINK, RED, PURPLE = (
    "#2f81f7",
    "#e36209",
    "#2da160",
    "#d16ba5",
    "#e5534b",
    "#986ee2",
)
_STYLE: Any = {
    "font.size": 10,
    "font.family": "sans-serif",
    "svg.hashsalt": "tidegate",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "xtick.color": INK,
    "ytick.color": INK,
}

Rows = list[dict[str, str]]
Results = Callable[[str], Rows]


def _axes(columns: int = 1, width: float = 7.2, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def _label_ends(axes: Axes, ends: Mapping[str, tuple[float, float, str]], gap: float) -> None:
    """Write the name of each line beside its end, at least `gap` apart."""
    names = sorted(ends, key=lambda name: -ends[name][1])
    # Groups of labels that would overlap: each is centred on the ends of its lines.
    groups: list[list[str]] = []
    for name in names:
        groups.append([name])
        while len(groups) > 1 and _bottom(groups[-2], ends, gap) - gap < _top(
            groups[-1], ends, gap
        ):
            groups[-2:] = [groups[-2] + groups[-1]]
    for group in groups:
        for place, name in enumerate(group):
            x, _, colour = ends[name]
            axes.annotate(
                name,
                (x, _top(group, ends, gap) - place * gap),
                xytext=(6, 0),
                textcoords="offset points",
                color=colour,
                fontweight="bold" if name == "Auto" else "normal",
                va="center",
                annotation_clip=False,
            )


def _top(group: list[str], ends: Mapping[str, tuple[float, float, str]], gap: float) -> float:
    """Return the height of the first label of a group."""
    return sum(ends[name][1] for name in group) / len(group) + gap * (len(group) - 1) / 2


def _bottom(group: list[str], ends: Mapping[str, tuple[float, float, str]], gap: float) -> float:
    """Return the height of the last label of a group."""
    return _top(group, ends, gap) - gap * (len(group) - 1)


def recall_against_memory(results: Results) -> Figure:
    """Draw recall against memory for `Auto`, the papers' policies and the optimum."""
    looks: dict[str, tuple[str, dict[str, Any]]] = {
        "optimum": ("the optimum", {"color": INK, "linestyle": (0, (4, 2)), "linewidth": 1.6}),
        "rand": ("Rand", {"color": RED, "linewidth": 1.4}),
        "fifo": ("Fifo", {"color": PURPLE, "linewidth": 1.4}),
        "age": ("Age", {"color": PINK, "linewidth": 1.4}),
        "life": ("Life", {"color": "#b08800", "linewidth": 1.4}),
        "ijoin": ("IJoin", {"color": ORANGE, "linewidth": 1.4}),
        "prob": ("Prob", {"color": GREEN, "linewidth": 1.4}),
        "auto": ("Auto", {"color": BLUE, "linewidth": 5.0, "zorder": 1.5}),
    }
    titles = {
        "Zipf(1)": "Some keys are far more frequent",
        "orders (DEC)": "Partners mostly come soon",
    }
    figure, panels = _axes(2, width=8.6, height=3.8)
    for axes, (streams, title) in zip(panels, titles.items(), strict=True):
        rows = [row for row in results("picture.csv") if row["streams"] == streams]
        memory = [float(row["memory [%]"]) for row in rows]
        axes.set(title=title, xlim=(0, memory[-1]), ylim=(0, 100))
        axes.set_xlabel("memory, % of the rows in the windows")
        axes.set_xticks(range(0, 51, 10))
        ends = {}
        for name, (label, look) in looks.items():
            recall = [float(row[f"{name} [%]"]) for row in rows]
            axes.plot(memory, recall, clip_on=False, solid_capstyle="round", **look)
            ends[label] = (memory[-1], recall[-1], look["color"])
        _label_ends(axes, ends, gap=5.5)
    panels[0].set_ylabel("recall, % of the exact join")
    return figure


def auto_against_the_best(results: Results) -> Figure:
    """Draw `Auto` over the best other policy, a row of points for each kind of stream."""
    cells: dict[str, list[float]] = {}
    for row in results("policies-auto_and_the_best_of_the_others.csv"):
        cells.setdefault(row["streams"], []).append(float(row["auto over it [%]"]))
    for row in results("policies-windows_far_longer_than_what_matters.csv"):
        name = f"{row['streams']}, window {int(row['window']):,}"
        cells.setdefault(name, []).append(min(float(row["auto over it [%]"]), 150.0))
    figure, [axes] = _axes(width=7.6, height=5.2)
    for place, values in enumerate(cells.values()):
        for value in values:
            colour = RED if value < 98 else BLUE
            axes.plot(value, -place, "o", color=colour, alpha=0.75, markersize=6, clip_on=False)
    axes.axvline(100, color=INK, linewidth=1.2)
    axes.set_yticks([-place for place in range(len(cells))], list(cells))
    axes.set(
        xlim=(65, 150), xlabel="results of Auto, % of the best other policy's (150: 150 or more)"
    )
    return figure


def rows_a_second(results: Results) -> Figure:
    """Draw the throughput of tidegate and of Spark's own join, end to end."""
    rows = results("spark-seconds_a_batch.csv")
    names = [row["way"] for row in rows]
    values = [float(row["rows a second"]) / 1000 for row in rows]
    figure, [axes] = _axes(height=2.6)
    _bars(axes, names, values, [BLUE if name.startswith("tidegate") else INK for name in names])
    axes.set_xlabel("thousand rows a second, batches after the first")
    return figure


def first_batch(results: Results) -> Figure:
    """Draw how long the first batch of a query takes, in a fresh process and in a second query."""
    rows = results("spark-first_batch.csv")
    figure, panels = _axes(2, width=8.6, height=2.4)
    for axes, column, title in zip(
        panels,
        ("first query: batch", "second query: batch"),
        ("First query of a process", "Second query"),
        strict=True,
    ):
        names = [row["way"].replace(" on this machine yet", "") for row in rows]
        colours = [BLUE if name.startswith("tidegate") else INK for name in names]
        _bars(axes, names, [float(row[column]) for row in rows], colours, form="{:.1f}")
        axes.set(title=title, xlabel="seconds for the first batch")
    panels[1].set_yticklabels([])
    return figure


def _bars(
    axes: Axes,
    names: Sequence[str],
    values: Sequence[float],
    colours: Sequence[str],
    form: str = "{:,.0f}",
) -> None:
    """Draw horizontal bars from the top, with their values."""
    bars = axes.barh(range(len(names)), values, color=colours, height=0.62)
    axes.bar_label(bars, [form.format(value) for value in values], padding=4, color=INK)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)


def cost_of_a_row(results: Results) -> Figure:
    """Draw what a row costs as memory grows, for some policies."""
    colours = {"auto": BLUE, "prob": GREEN, "ijoin": ORANGE, "age": PINK, "fifo": PURPLE}
    figure, [axes] = _axes()
    axes.set_xscale("log")
    ends = {}
    for name, colour in colours.items():
        rows = [row for row in results("growth-with_memory.csv") if row["policy"] == name]
        memory = [float(row["memory"]) for row in rows]
        cost = [float(row["whole feed, ns"]) for row in rows]
        label = name.capitalize() if name != "ijoin" else "IJoin"
        axes.plot(memory, cost, "o-", color=colour, linewidth=3 if name == "auto" else 1.4)
        ends[label] = (memory[-1], cost[-1], colour)
    axes.set(ylim=(0, 1500), xlabel="memory in rows", ylabel="ns a row, one core")
    _label_ends(axes, ends, gap=95)
    return figure


def paper_1(results: Results) -> Figure:
    """Draw PROB, LIFE and RAND over the optimum, in the settings of paper 1."""
    rows = [row for row in results("paper1.csv") if row["memory [w]"] == "1"]
    figure, [axes] = _axes(width=7.6, height=4.0)
    for name, colour in (("PROB", GREEN), ("LIFE", ORANGE), ("RAND", RED)):
        column = f"{name}/OPT [%]"
        for place, row in enumerate(rows):
            low, high = float(row[f"{column} low"]), float(row[f"{column} high"])
            axes.plot([low, high], [-place, -place], color=colour, linewidth=2, alpha=0.6)
            axes.plot(float(row[column]), -place, "o", color=colour)
        axes.annotate(
            name,
            (float(rows[0][column]), 0),
            xytext=(0, 9),
            textcoords="offset points",
            color=colour,
            ha="center",
        )
    axes.set_yticks([-place for place in range(len(rows))], [row["setting"] for row in rows])
    axes.set(xlim=(40, 100), ylim=(-len(rows) + 0.5, 1.0))
    axes.set_xlabel("results, % of the optimum's; mean and range of 10 seeds")
    return figure


def state_of_constraints(results: Results) -> Figure:
    """Draw the rows held with each constraint against k."""
    colours = {"RIDS": BLUE, "CA": ORANGE, "OAP": GREEN, "OAC": PURPLE}
    figure, panels = _axes(2, width=8.6, height=3.4)
    for axes, column, title in zip(
        panels,
        ("most held: ratio", "us a row: ratio"),
        ("Rows held", "Time a row"),
        strict=True,
    ):
        ends = {}
        for kind, colour in colours.items():
            rows = [
                row
                for row in results("constrained-state_and_cost_against_k.csv")
                if row["kind"] == kind
            ]
            k = [float(row["k"]) / 1000 for row in rows]
            ratio = [float(row[column]) for row in rows]
            axes.plot(k, ratio, "o-", color=colour, markersize=4, linewidth=1.6)
            ends[kind] = (k[-1], ratio[-1], colour)
        axes.axhline(1, color=INK, linestyle=(0, (4, 2)), linewidth=1.2)
        axes.set(title=title, xlim=(0, 20), ylim=(0, 1.5), xlabel="k in thousand rows")
        _label_ends(axes, ends, gap=0.1)
    panels[0].set_ylabel("of the sliding window join's")
    return figure


def error_of_samples(results: Results) -> Figure:
    """Draw the error of an estimated sum against memory, for each way to sample."""
    columns = {
        "UNIFORM, as in the paper": ("UNIFORM [%]", GREEN),
        "UNIFORM, reach 3": ("UNIFORM, reach 3 [%]", ORANGE),
        "EQ-CLUSTER": ("EQ-CLUSTER [%]", RED),
        "PPS-CLUSTER": ("PPS-CLUSTER [%]", PURPLE),
        "auto": ("auto [%]", BLUE),
    }
    rows = results("sampling-figure_8.csv")
    figure, [axes] = _axes()
    memory = [float(row["memory [%]"]) for row in rows]
    for label, (column, colour) in columns.items():
        error = [float(row[column]) for row in rows]
        axes.plot(memory, error, "o-", color=colour, markersize=4, linewidth=1.6, label=label)
    axes.set(ylim=(0, 50), xlabel="memory, % of the window", ylabel="error of a sum, %")
    axes.legend(frameon=False, labelcolor="linecolor")
    return figure


def predicted_recall(results: Results) -> Figure:
    """Draw the recall that a pool predicts against the recall that was measured."""
    figure, [axes] = _axes(width=5.2, height=4.2)
    axes.plot([0, 100], [0, 100], color=INK, linewidth=1)
    for row in results("pools-predicted_measured_recall.csv"):
        for share in ("5%", "10%", "25%", "50%"):
            predicted = float(row[f"{share} [%]"])
            measured = float(row[f"{share} [%] no. 2"])
            colour = RED if abs(predicted - measured) > 1 else BLUE
            axes.plot(measured, predicted, "o", color=colour, alpha=0.6, markersize=5)
    axes.set(xlim=(0, 100), ylim=(0, 100), aspect="equal")
    axes.set(xlabel="measured recall, %", ylabel="predicted recall, %")
    return figure


def star_joins(results: Results) -> Figure:
    """Draw the importance that star join policies keep, over the optimum's, against memory."""
    looks = {
        "auto": ("Auto", BLUE),
        "prob": ("Prob", GREEN),
        "dgl": ("DGL", ORANGE),
        "dimpprob": ("DimpProb", PINK),
        "simpprob": ("SimpProb", "#b08800"),
        "simp": ("Simp", PURPLE),
        "rand": ("Rand", RED),
    }
    rows = [row for row in results("star-figure_6.csv") if int(row["M"]) <= 60]
    memory = [float(row["M"]) for row in rows]
    figure, [axes] = _axes()
    starts = {}
    for name, (label, colour) in looks.items():
        kept = [100 * float(row[name]) for row in rows]
        axes.plot(memory, kept, color=colour, linewidth=3 if name == "auto" else 1.4)
        starts[label] = (memory[-1], kept[-1], colour)
    axes.set(xlim=(0, memory[-1]), ylim=(0, 100), xlabel="memory in rows")
    axes.set_ylabel("importance, % of the optimum's")
    _label_ends(axes, starts, gap=6)
    return figure


#: The figures, with the part of the benchmarks whose files each is drawn from.
DRAWINGS: dict[str, tuple[str, Callable[[Results], Figure]]] = {
    "recall_against_memory": ("picture", recall_against_memory),
    "auto_against_the_best": ("policies", auto_against_the_best),
    "rows_a_second": ("spark", rows_a_second),
    "first_batch": ("spark", first_batch),
    "cost_of_a_row": ("growth", cost_of_a_row),
    "paper_1": ("paper1", paper_1),
    "state_of_constraints": ("constrained", state_of_constraints),
    "error_of_samples": ("sampling", error_of_samples),
    "predicted_recall": ("pools", predicted_recall),
    "star_joins": ("star", star_joins),
}


def draw(
    names: Iterable[str] = tuple(DRAWINGS),
    *,
    of_parts: Collection[str] | None = None,
    results: Path = store.RESULTS,
    folder: Path = FIGURES,
) -> list[Path]:
    """Draw the named figures, or those of the given parts, and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name in names:
        part, drawing = DRAWINGS[name]
        if of_parts is not None and part not in of_parts:
            continue
        with mpl.rc_context(_STYLE):
            figure = drawing(lambda file: store.read(results / file))
            files.append(folder / f"{name}.svg")
            figure.savefig(files[-1], transparent=True, metadata={"Date": None, "Creator": None})
    return files


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Figures: {', '.join(DRAWINGS)}; all by default.")
    ] = None,
    results: Annotated[Path, typer.Option(help="The folder of the CSV files.")] = store.RESULTS,
    folder: Annotated[Path, typer.Option(help="The folder for the figures.")] = FIGURES,
) -> None:
    """Draw figures from the CSV files of the benchmarks."""
    for name in names or ():
        if name not in DRAWINGS:
            raise typer.BadParameter(
                f"there is no figure {name!r}; there are {', '.join(DRAWINGS)}"
            )
    for file in draw(names or DRAWINGS, results=results, folder=folder):
        print(file)


if __name__ == "__main__":
    typer.run(main)
