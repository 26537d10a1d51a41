from __future__ import annotations

import io
import sys

import numpy as np
import pytest

from tidegate.errors import TidegateError
from tidegate.report import plots

LINE = [(0.1, 0.2), (0.5, 0.7), (1.0, 1.0)]
OTHER = [(0.1, 0.1), (0.5, 0.5), (1.0, 1.0)]


def pixels(png: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    from matplotlib.image import imread

    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return np.asarray(imread(io.BytesIO(png), format="png"), np.float64)


def recall(series: dict[str, list[tuple[float, float]]], theme: plots.Theme = "light") -> bytes:
    return plots.recall_against_memory(series, title="t", points={"q": (0.5, 0.6)}, theme=theme)


def steps(values: list[float]) -> bytes:
    panels = [
        plots.Steps("held", values, limit=(10, "memory")),
        plots.Steps("recall", [0.5] * len(values), share=True),
    ]
    return plots.over_time([0, 1, 2], panels, title="t", unit="hours")


def test_pictures_are_large_enough_to_read_and_not_empty() -> None:
    for png in (recall({"a": LINE, "b": OTHER}), steps([3, 10])):
        picture = pixels(png)
        assert picture.shape[0] >= 600
        assert picture.shape[1] >= 1000
        assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 10


def test_the_data_decides_what_is_drawn() -> None:
    assert recall({"a": LINE}) == recall({"a": LINE})
    assert recall({"a": LINE}) != recall({"a": OTHER})
    assert steps([3, 10]) != steps([4, 10])


def test_equal_lines_are_drawn_once_with_both_names() -> None:
    assert recall({"a": LINE, "b": LINE}) == recall({"a and b": LINE})


def test_a_policy_keeps_its_colour_from_plot_to_plot() -> None:
    blue = np.array([0x00, 0x72, 0xB2]) / 255
    for series, expected in (({"a": LINE, "b": OTHER}, True), ({"b": OTHER}, False)):
        png = plots.recall_against_memory(series, title="t", names=["a", "b"])
        near = np.abs(pixels(png)[:, :, :3] - blue).max(axis=2) < 0.01
        assert bool(near.any()) is expected


def test_a_dark_page_gets_a_dark_picture() -> None:
    light, dark = (pixels(recall({"a": LINE}, theme)) for theme in plots.THEMES)
    assert light[0, 0, :3].mean() > 0.9
    assert dark[0, 0, :3].mean() < 0.2


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not plots.available()
    with pytest.raises(TidegateError, match=r"pip install 'tidegate\[plots\]'"):
        recall({"a": LINE})


def test_many_policies_have_lines_and_names_of_their_own() -> None:
    names = [f"policy {i}" for i in range(16)]
    lines = {name: [(0.1, 0.1), (0.5, 0.2 + i / 50)] for i, name in enumerate(names)}
    drawn = {
        plots.recall_against_memory({"one": LINE}, title="t", names=[*names[:i], "one"])
        for i in range(len(names))
    }
    assert len(drawn) == len(names)
    few = pixels(recall({"a": LINE, "b": OTHER}))
    many = pixels(recall(lines))
    # The figure grows with the legend, and the legend does not touch its edges.
    assert many.shape[1] == few.shape[1]
    assert many.shape[0] > few.shape[0]
    below = many[few.shape[0] :]
    assert (below[:, :20] == 1).all()
    assert (below[:, -20:] == 1).all()
