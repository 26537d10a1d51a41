"""Draw plots from plain data, as PNG.

Colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart.
Every line also has its own marker, so a greyscale print stays readable. If there are more lines
than colours, lines of the same colour differ in stroke and marker.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tidegate.errors import installed, require
from tidegate.report.tables import about

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, Theme] = ("light", "dark")


@dataclass(frozen=True)
class _Look:
    paper: str
    ink: str
    soft: str
    lines: tuple[str, ...]


_LIGHT = _Look(
    paper="#ffffff",
    ink="#1b1f24",
    soft="#d8dee4",
    lines=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"),
)
_DARK = _Look(
    paper="#14181d",
    ink="#e6e9ed",
    soft="#363d46",
    lines=("#56b4e9", "#ff8c42", "#2ecc9a", "#e5a3c6", "#f0c24b", "#8fb7d9", "#ffffff"),
)
_LOOKS: Mapping[Theme, _Look] = {"light": _LIGHT, "dark": _DARK}
_MARKERS = "os^DvPX"
_STROKES = ("-", "--", ":")
_DPI = 200
_SIZE = (6.0, 4.2)
#: Height of one row of the legend, in inches.
_ROW = 0.22


def available() -> bool:
    """Return True if matplotlib is installed."""
    return installed("matplotlib")


def recall_against_memory(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    unit: str = "share of the window",
    points: Mapping[str, tuple[float, float]] | None = None,
    names: Sequence[str] = (),
    theme: Theme = "light",
) -> bytes:
    """Plot the share of the exact result against memory, with a line for each policy.

    Parameters
    ----------
    series
        For each policy the (memory, recall) pairs, both as shares of one. Policies with the same
        pairs share one line, labelled with all their names.
    title
        The title: what the data is.
    unit
        What memory is a share of.
    points
        Single observations to mark, such as the recall of a query on Spark.
    names
        All policies that similar plots may show, so that each keeps its colour in every plot.
    theme
        For a light or a dark page.
    """
    look = _LOOKS[theme]
    figure, axes = _figure(title, look)
    shared: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for name, pairs in series.items():
        shared.setdefault(tuple(sorted(pairs)), []).append(name)
    known = list(dict.fromkeys([*names, *series]))
    for pairs, policies in shared.items():
        again, index = divmod(known.index(policies[0]), len(look.lines))
        axes.plot(
            [memory for memory, _ in pairs],
            [recall for _, recall in pairs],
            color=look.lines[index],
            marker=_MARKERS[(index + again) % len(_MARKERS)],
            linestyle=_STROKES[again % len(_STROKES)],
            markersize=5.5,
            linewidth=2,
            label=" and ".join(policies),
            clip_on=False,
            zorder=3,
        )
    for name, (memory, recall) in (points or {}).items():
        axes.plot(
            [memory],
            [recall],
            color=look.ink,
            marker="*",
            markersize=15,
            markeredgecolor=look.paper,
            linestyle="none",
            label=name,
            clip_on=False,
            zorder=4,
        )
    memories = sorted({memory for pairs in shared for memory, _ in pairs})
    axes.set_xscale("log")
    axes.set_xticks(memories, [about(memory) for memory in memories])
    axes.minorticks_off()
    axes.set_xlabel(f"memory ({unit}, log scale)")
    _share_axis(axes, "share of the exact result delivered")
    _legend(figure, axes, look)
    return _png(figure)


def results_by_age(
    series: Mapping[str, Sequence[tuple[float, float]]], *, title: str, theme: Theme = "light"
) -> bytes:
    """Plot age curves, (age, results in a unit of time) pairs, with a line for each side."""
    look = _LOOKS[theme]
    figure, axes = _figure(title, look)
    for colour, (name, pairs) in zip(look.lines, series.items(), strict=False):
        ages, results = zip(*pairs, strict=True)
        axes.plot(
            ages, results, color=colour, drawstyle="steps-post", linewidth=2, label=name, zorder=3
        )
    axes.set_xlabel("age of a row (seconds, or units of the time column)")
    axes.set_ylabel("results in a unit of time")
    axes.set_ylim(bottom=0)
    _legend(figure, axes, look)
    return _png(figure)


@dataclass(frozen=True)
class Steps:
    """A quantity that was measured for each batch."""

    label: str
    values: Sequence[float]
    #: An upper limit, and its label.
    limit: tuple[float, str] | None = None
    #: True if the values are shares of one.
    share: bool = False


def over_time(
    edges: Sequence[float],
    panels: Sequence[Steps],
    *,
    title: str,
    unit: str,
    theme: Theme = "light",
) -> bytes:
    """Plot measurements of a streaming query as panels, one above the other over the same batches.

    Parameters
    ----------
    edges
        The start of each batch, and the end of the last one.
    panels
        The measurements, with one value for each batch.
    title, theme
        As for `recall_against_memory`.
    unit
        The label of the time axis: what the edges are measured in.
    """
    look = _LOOKS[theme]
    figure, *all_axes = _figure(title, look, rows=len(panels))
    for index, (axes, steps) in enumerate(zip(all_axes, panels, strict=True)):
        colour = look.lines[index % len(look.lines)]
        axes.stairs(steps.values, edges, color=colour, linewidth=2, zorder=3)
        axes.stairs(steps.values, edges, color=colour, fill=True, alpha=0.25, zorder=2)
        if steps.share:
            _share_axis(axes, steps.label)
        else:
            axes.set_ylabel(steps.label)
            axes.set_ylim(0, 1.25 * max([*steps.values, steps.limit[0] if steps.limit else 0, 1]))
            axes.yaxis.set_major_formatter("{x:,.0f}")
        if steps.limit is not None:
            level, name = steps.limit
            axes.axhline(level, color=look.ink, linewidth=1.2, linestyle=(0, (5, 3)), zorder=4)
            axes.annotate(
                name,
                (1, level),
                xycoords=("axes fraction", "data"),
                xytext=(-4, 4),
                textcoords="offset points",
                ha="right",
                color=look.ink,
            )
        axes.set_xlim(edges[0], edges[-1])
        axes.tick_params(labelbottom=axes is all_axes[-1])
    all_axes[-1].set_xlabel(unit)
    figure.align_ylabels()
    return _png(figure)


def _figure(title: str, look: _Look, rows: int = 1) -> Any:
    """Return a figure, followed by its axes from the top, in the given colours.

    The figure is created without pyplot, which would keep every figure in memory and choose a
    back end by the screen.
    """
    require("matplotlib", "plots", "a plot")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    width, height = _SIZE
    with mpl.rc_context({"font.size": 11, "font.family": "sans-serif"}):
        figure = Figure(figsize=(width, height + 0.9 * (rows - 1)), dpi=_DPI, layout="constrained")
        grid = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    figure.set_facecolor(look.paper)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=12, color=look.ink)
    for axes in grid:
        axes.set_facecolor(look.paper)
        axes.grid(color=look.soft, linewidth=0.8, zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(look.ink)
        axes.tick_params(colors=look.ink, which="both")
        axes.xaxis.label.set_color(look.ink)
        axes.yaxis.label.set_color(look.ink)
    return figure, *grid


def _share_axis(axes: Axes, label: str) -> None:
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(lambda share, _: about(share))
    axes.set_ylabel(label)


def _legend(figure: Figure, axes: Axes, look: _Look) -> None:
    """Add the legend below the plot, row by row in the order of the lines.

    The figure grows by the height of the rows.
    """
    lines, names = axes.get_legend_handles_labels()
    columns = min(3 if max(map(len, names)) <= 16 else 2, len(lines))
    names = [textwrap.fill(name, 30) for name in names]
    # matplotlib fills the legend column by column.
    order = [i for start in range(columns) for i in range(start, len(lines), columns)]
    figure.legend(
        [lines[i] for i in order],
        [names[i] for i in order],
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        labelcolor=look.ink,
    )
    rows = sum(name.count("\n") + 1 for name in names) / columns
    figure.set_figheight(figure.get_figheight() + _ROW * max(rows - 1, 0))


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    # Without the version of matplotlib, equal plots are equal files.
    figure.savefig(file, format="png", facecolor=figure.get_facecolor(), metadata={"Software": ""})
    return file.getvalue()
