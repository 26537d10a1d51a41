"""The benchmarks of Linear Road and of combined constraints at a tiny size."""

from __future__ import annotations

import pytest

from benchmarks import combined, linear_road
from tidegate.joins.constrained.constraints import Monitor
from tidegate.streams import car_reports

ROAD = linear_road.Scale(900, 1.0, 120, 500, Monitor(window=20), 1)
MIXED = combined.Scale(1_600, 80, 2_500, 200, (0, 400), 1_000, 200)


def test_subqueries_say_what_the_reports_do() -> None:
    reports = car_reports(900, rate=1.0, trip=120, accidents=0.1, seed=1)
    streams = {name: t.to_pandas() for name, t in linear_road.derived(reports).items()}
    cars = dict(iter(reports.to_pandas().groupby("cid")))
    wrecks = {
        (cid, ts)
        for cid, car in cars.items()
        for ts in car.ts[3:]
        if car[car.ts <= ts].tail(4).xpos.nunique() == 1
    }
    assert set(zip(streams["AccCars"].cid, streams["AccCars"].ts, strict=True)) == wrecks
    assert wrecks
    tolls = sum(1 + int((car.sid.diff().iloc[1:] != 0).sum()) for car in cars.values())
    assert len(streams["LastToll"]) == tolls
    exits, credits = streams["Exits"], streams["Credits"]
    for cid, ts in zip(exits.cid, exits.ts, strict=True):
        assert (cars[cid].ts.max(), cars[cid].lane.iloc[-1]) == (ts - 30, 4)
    assert 0 < len(credits) < len(exits)
    assert set(credits.cid) < set(exits.cid)


@pytest.mark.parametrize("query", linear_road.QUERIES, ids=lambda query: query.name)
def test_queries_of_table_3_hold_less(query: linear_road.Query) -> None:
    found = linear_road.compared(query, linear_road.derived(ROAD.reports()), ROAD)
    assert len(found) == (5 if query.rids else 2)
    first, *rest, swj = found
    assert first.mine.results.num_rows == swj.mine.results.num_rows > 0
    assert first.memory < 1
    for way in rest:
        assert way.memory <= first.memory
        # So few rows do not show how large k is; as soon as they do, watching stops its use.
        assert 0 <= way.missing < (0.05 if way.constraints != linear_road.GIVEN else 1)
    assert swj.cells()[5] == "1.000"


def test_ca_and_oac_together_hold_less_than_each() -> None:
    found = combined.figure_10(MIXED, lambda text: None)
    held = {name: combined.held(each) for name, each in found.items()}
    assert held["CA and OAC"] < min(held["CA"], held["OAC"])
    assert max(held.values()) == held["SWJ"]


def test_ca_and_rids_together_may_hold_more_than_one() -> None:
    small, large = (
        {name: combined.held(each) for name, each in combined.figure_11(k, MIXED).items()}
        for k in MIXED.ks
    )
    assert small["both"] < small["CA"]
    assert large["both"] > large["CA"]
