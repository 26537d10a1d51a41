"""The benchmarks' parts that need no Spark, at a tiny size: figures must fit together."""

from __future__ import annotations

import pytest

import tidegate as tg
from benchmarks import growth, kernel, optimal, paper1, profile, queries, recall, state, static
from benchmarks.measure import Feeder, samples
from benchmarks.report import Figure
from tidegate.joins.window import loop as compiled
from tidegate.streams import uniform, zipf


def test_samples_say_middle_range_and_ratio() -> None:
    repeats = samples([2.0, 1.0, 4.0])
    assert repeats.median == 2.0
    assert repeats.spread == 1.5
    assert repeats.show("{:.1f}") == "2.0 (1.0 to 4.0)"
    assert repeats.over(samples([1.0, 2.0, 4.0])).values == (2.0, 0.5, 1.0)


def test_a_figure_says_what_it_reaches() -> None:
    def met(value: float, higher: bool) -> str:
        return Figure("f", "", value, 2.0, 8.0 if higher else 1.3, "{}x", higher).met

    assert [met(v, True) for v in (1.9, 2.0, 8.0)] == ["no", "bar", "aim"]
    assert [met(v, False) for v in (2.1, 2.0, 1.3)] == ["no", "bar", "aim"]


def test_the_loop_is_timed_within_the_feed_and_left_as_it_was() -> None:
    before = compiled.run
    tables = uniform(400, domain=20, seed=3)
    feeder = Feeder(tables[0].schema, within=50)
    took = feeder.feed(feeder.prepare(tables, 0, 400))
    assert 0 < took.loop < took.seconds
    assert took.results == tg.join(*tables, on="key", time="time", within=50).results
    assert compiled.run is before


def test_steps_of_a_batch_are_timed_apart_and_left_as_they_were() -> None:
    before = compiled.run
    took = profile.steps(profile.Workload(300, 3, "1 hour", wide=True))
    assert list(took) == list(profile.STEPS)
    # No step is timed within another one, and none is left out.
    assert min(took.values()) >= 0
    assert sum(seconds > 0 for seconds in took.values()) >= len(took) - 2
    assert compiled.run is before


def test_kernel_memory_of_the_window_finds_what_exact_does() -> None:
    scale = kernel.Scale(ticks=300, repeats=2, within=50)
    memories = {"exact": None, "window": 100, "quarter": 25}
    tables = zipf(900, domain=30, seed=2)
    found = kernel.measure(tables, scale, memories)
    assert found["exact"].results == found["window"].results
    assert 0 < sum(found["quarter"].results) < sum(found["exact"].results)
    assert all(len(each.loop.values) == scale.repeats for each in found.values())
    assert all(each.loop.median > each.whole.median for each in found.values())


def test_growth_keeps_results_a_row_and_sizes_apart() -> None:
    scale = growth.Scale(
        memories=(20, 100), windows=(20, 100), batches=(40, 400), ticks=4_000, rounds=2
    )
    for costs in (
        growth.by_memory(scale, "prob", growth.memory_tracks(scale)),
        growth.by_window(scale),
    ):
        assert list(costs) == [20, 100]
        assert all(0.07 < cost.results < 0.15 for cost in costs.values())
        assert growth.worst(costs, loop=True) >= 1
    by_batch = growth.by_batch(scale, None)
    assert list(by_batch) == [40, 400]
    assert all(cost.whole.median > cost.loop.median for cost in by_batch.values())


def test_state_follows_what_moved() -> None:
    scale = state.Scale(memory=40, fill=400, ticks=20, long=5)
    tables = uniform(500, domain=200, seed=1)
    for memory in (40, 400):
        feeder = Feeder(tables[0].schema, within=400, memory=memory)
        found = state.written(feeder, tables, scale)
        assert len(found.sizes) == len(found.moved) == scale.long
        assert min(found.sizes) > 0


def test_recall_counts_as_the_public_call_does() -> None:
    tables = zipf(600, domain=20, seed=4)
    whole = recall.results(tables, 50, 30, tg.Prob(recall.counted(tables)))
    public = tg.join(*tables, on="key", time="time", within=50, memory=30, policy=tg.Prob("whole"))
    assert whole[0] == public.results
    left, right = (public.table.column(f"time_{side}").to_numpy() for side in ("left", "right"))
    assert whole[1] == sum(max(a, b) >= 100 for a, b in zip(left, right, strict=True))


def test_recall_of_paper_1() -> None:
    shares = recall.paper(recall.Scale(paper_seeds=1))
    assert shares["fixed", 1.0, "RAND"] == pytest.approx(0.5, abs=0.03)
    assert shares["fixed", 1.0, "PROB"] > shares["fixed", 1.0, "LIFE"] > 0.6
    assert all(0 < share <= 1 for share in shares.values())


def test_learned_over_whole_compares_like_with_like() -> None:
    setting = recall.Setting(domain=20, window=50, skew=1.0, share=1.0)
    kept = recall.learned_over_whole(recall.Scale(seeds=2), setting)
    assert kept is not None
    # With room for the whole window nothing is shed, whatever is known of frequencies.
    assert kept.learned == kept.lasting == kept.whole == kept.long_run
    assert kept.learned == kept.window == kept.sketch == kept.small
    assert kept.seeds == [1.0, 1.0]


def test_the_papers_graph_has_the_same_optimum() -> None:
    for length, window in ((60, 7), (300, 40)):
        assert optimal.of_paper(length, window) == optimal.ours(length, window, "fixed")


def test_paper_1_over_the_optimum_counts_as_recall_does() -> None:
    tables = zipf(5_600, domain=50, skew=1.0, seed=3)
    found = paper1.ratios(paper1.Setting(), 40, 3)
    prob = recall.results(tables, 400, 40, tg.Prob(recall.counted(tables)), "fixed")[1]
    exact = recall.results(tables, 400, None, "prob")[1]
    assert found["PROB/OPT"] * found["OPT/exact"] == pytest.approx(prob / exact)
    # The number of results of a join without windows, over that of all pairs.
    joined = tg.truncated_join(*tables, on="key", keep=11_200).results
    assert paper1.meetings(tables) == pytest.approx(joined / 5_600**2)
    most = paper1.meeting_most(paper1.Setting(), range(5), 2)
    assert len(most) == 2
    assert max(range(5), key=lambda s: paper1.meetings(zipf(5_600, seed=s))) == most[-1]


def test_static_compares_plans_of_the_same_relations() -> None:
    scale = static.Scale(rows=400, values=30, keep=60, skews=(1.0,), each_skews=(1.0,), seeds=3)
    section = static.run(scale, lambda what: None)
    [row] = section.tables[0].rows
    shares = [
        tg.truncated_join(*tables, on="key", keep=60, method="adg").results
        / tg.truncated_join(*tables, on="key", keep=60).results
        for tables in (zipf(400, domain=30, skew=1.0, seed=seed) for seed in range(3))
    ]
    assert row[1] == f"{sum(shares) / 3:.2%}"
    assert row[2] == f"{min(shares):.2%}"


def test_exact_results_are_the_joins() -> None:
    tables = queries.events(300, domain=10)
    joined = tg.join(*tables, on="key", time="time", within="40 ms")
    assert queries.exact_results(tables, 40) == joined.results > 0
