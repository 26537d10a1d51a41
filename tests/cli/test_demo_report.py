from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tidegate as tg
from tidegate.cli import demo_report, demo_stream
from tidegate.cli.demo_report import Outcome, Query, Sweep
from tidegate.cli.demo_stream import Batch
from tidegate.cli.sweep import Point


@pytest.fixture
def outcome() -> Outcome:
    streams = demo_stream.make(100, 2, seed=1)
    exact = tg.join(streams.auctions, streams.bids, **demo_stream.JOIN).table
    results = exact.slice(0, len(exact) // 2)
    policies, shares = ("until-expiry", "prob", "life", "rand"), (0.1, 0.25)
    points = [Point(policy, share, 1, 1, share) for policy in policies for share in shares]
    query = Query(
        policy="prob",
        memory=3,
        memory_share=0.25,
        recall=0.5,
        wrong=0,
        batches=[Batch(10, 2, 5, 0.5), Batch(20, 3, 7, 0.25)],
        delivered=[5, 7],
        due=[10, 0],
    )
    sweeps = (Sweep("auctions", (100, 800), 12, 9, points), Sweep("zipf", (5, 5), 4, 9, points))
    return Outcome(1, streams, results, exact, query, sweeps, {"all of it": 1.5})


def test_without_matplotlib_there_is_a_page_without_pictures(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_plots = demo_report.files(outcome)
    assert set(with_plots) == set(demo_report.FILES)
    assert str(with_plots["report.html"]).count("<img") == 3
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    without = demo_report.files(outcome)
    assert set(without) == {"report.html"}
    assert "<img" not in str(without["report.html"])
    assert "Every batch in figures" in str(without["report.html"])


def test_a_batch_in_which_nothing_was_due_missed_nothing(outcome: Outcome) -> None:
    assert [row["recall"] for row in outcome.query.rows()] == [0.5, 1.0]


def test_results_that_are_wrong_are_not_passed_over(
    outcome: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    demo_report.show(outcome, Path("out"), took=1.0)
    assert "and no other row" in capsys.readouterr().out.replace("\n", " ")
    broken = replace(outcome, query=replace(outcome.query, wrong=2))
    demo_report.show(broken, Path("out"), took=1.0)
    assert "and 2 rows that it does not have" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("policy", "recall", "said"),
    [
        ("rand", 0.0, "LIFE comes out the same"),
        ("until-expiry", 0.9, "With 10 % of the window hardly an auction lasts"),
    ],
)
def test_the_text_says_what_the_figures_show(
    outcome: Outcome, capsys: pytest.CaptureFixture[str], policy: str, recall: float, said: str
) -> None:
    def text(changed: str, to: float) -> str:
        first, second = outcome.sweeps
        points = [replace(p, recall=to) if p.policy == changed else p for p in first.points]
        sweeps = (replace(first, points=points), second)
        demo_report.show(replace(outcome, sweeps=sweeps), Path("out"), took=1.0)
        return " ".join(capsys.readouterr().out.split())

    assert said in text(policy, recall)
    # Neither sentence is true if PROB is worse than LIFE and better than UNTIL-EXPIRY.
    assert "LIFE comes out" not in text("life", 0.95)
    assert "hardly an auction" not in text("prob", 0.95)
