"""The benchmark of star joins at a tiny size: figures must fit together."""

from __future__ import annotations

import pytest

import tidegate as tg
from benchmarks import star, star_shards, star_speed


def test_without_the_filter_the_exact_result_is_the_same() -> None:
    tables, facts = star.streams(300, 1, 20)
    every = star._with_all_keys(facts)
    exact, all_admitted = (
        tg.star_join(tables, one, on=star.ON, time="t", within=10) for one in (facts, every)
    )
    assert exact.results == all_admitted.results > 0
    assert exact.counters["filtered"] > 100
    assert all_admitted.counters["filtered"] == 0
    found = star.filtering(300, 1, 20)
    assert found.share == exact.counters["filtered"] / 600
    assert found.importance[0] > found.importance[1]


def test_claims_are_about_what_was_measured() -> None:
    four = {m: star.offline(300, 1, m) for m in (2, 4)}
    for one in four.values():
        assert one["EXACT"][0] >= one["OSSJ"][0] >= one["SJA-S"][0] > one["RAND-S"][0]
        assert one["SJA-S"][1] >= one["OSSJ"][1]
    six = {4: star.online(300, 1, 4)}
    five = {n: star.Filtering(0.5, (1.0, t), (2.0, 1.0)) for n, t in ((10, 3.0), (250, 1.0))}
    said = dict(star.claims(four, five, six))
    assert said["figure 5: the filter gains more, the smaller F is"] == (
        "time without it 3.00x with 10 facts, 1.00x with 250"
    )
    assert "at every M" in said["figure 4: both are ahead of RAND-S"]


def test_what_shards_cost() -> None:
    tables, facts = star.streams(600, 1)
    found = star_shards.table(
        {"one": [(tables, facts)], "apart": [(tables, star.paired(1))]}, star.ON
    )
    cells = {(kind, memory): [float(c) for c in rest] for kind, memory, *rest in found.rows}
    assert min(cells["one", "copies a row"]) > 0
    assert cells["apart", "copies a row"] == [0.0, 0.0, 0.0]
    assert cells["apart", "1,000"] == [1.0, 1.0, 1.0]
    assert all(0.5 < ratio < 1.1 for ratio in [*cells["one", "100"], *cells["apart", "100"]])


@pytest.mark.parametrize("facts", [250, 2_000])
def test_the_engine_alone(facts: int) -> None:
    relation = star_speed.relation_of(facts, 5_000)
    assert len(relation) == facts == len(set(relation["a"].to_pylist()))
    speed, results, indexed = star_speed.alone(500, facts, 100)
    assert speed > 0
    assert results > 0
    assert indexed > 0
