from __future__ import annotations

import io

import pytest
from rich.console import Console

from tidegate.report.tables import Column, Table, about, as_rich, percent, pivot


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0.0 %"),
        (0.0001, "<0.1 %"),
        (0.0004, "<0.1 %"),
        (0.3599, "36.0 %"),
        (0.99949, "99.9 %"),
        (0.9999, ">99.9 %"),
        (1.0, "100.0 %"),
    ],
)
def test_a_percentage_does_not_claim_all_or_nothing_wrongly(share: float, text: str) -> None:
    assert percent(share) == text


def test_round_shares_have_no_needless_decimals() -> None:
    assert [about(share) for share in (0.02, 0.125, 1.0)] == ["2 %", "12.5 %", "100 %"]


def test_pivot_keeps_the_order_of_appearance() -> None:
    rows = [
        {"policy": "b", "share": 0.5, "recall": 1},
        {"policy": "b", "share": 1.0, "recall": 2},
        {"policy": "a", "share": 0.5, "recall": 3},
        {"policy": "a", "share": 1.0, "recall": 4},
    ]
    assert pivot(rows, index="policy", across="share", value="recall") == [
        {"policy": "b", "0.5": 1, "1.0": 2},
        {"policy": "a", "0.5": 3, "1.0": 4},
    ]


def test_a_terminal_shows_every_cell_as_it_is() -> None:
    table = Table(
        "Title [a]",
        [Column("name", "name", number=False), Column("share", "share", percent)],
        [{"name": "[bold]x[/bold]", "share": 0.25}, {"name": "y", "share": 1}],
        "caption [c]",
    )
    file = io.StringIO()
    Console(file=file, width=60).print(as_rich(table))
    shown = file.getvalue()
    for text in ("Title [a]", "[bold]x[/bold]", "25.0 %", "y", "100.0 %", "caption [c]"):
        assert text in shown
    assert "\x1b" not in shown
