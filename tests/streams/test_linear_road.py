"""Cars report as in Linear Road."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.streams import car_reports


def test_a_car_reports_every_half_minute_and_goes_one_way() -> None:
    reports = car_reports(1_200, rate=0.5, trip=200, accidents=0.1, seed=3).to_pandas()
    assert reports.ts.is_monotonic_increasing
    assert reports.cid.nunique() == 600
    for _, car in reports.groupby("cid"):
        assert (np.diff(car.ts) == 30).all()
        steps = np.diff(car.xpos)
        assert (steps == 44 * car.speed.to_numpy()[1:]).all()
        assert (steps >= 0).all()
        assert (car.lane == 0).tolist() == [True] + [False] * (len(car) - 1)
        assert not (car.lane == 4)[:-1].any()
    assert (reports.sid == reports.xpos // 5_280).all()


def test_accidents_stop_cars_for_four_reports_and_more() -> None:
    reports = car_reports(3_000, rate=0.5, trip=200, accidents=0.2, seed=1).to_pandas()
    whole = reports.groupby("cid").filter(lambda car: car.ts.max() < 2_000)
    longest = whole.groupby(["cid", "xpos"]).size().groupby("cid").max()
    stopped = longest[longest > 1]
    assert stopped.between(4, 20).all()
    assert 0.15 < len(stopped) / len(longest) < 0.25


def test_some_cars_take_an_exit_and_some_stop_reporting() -> None:
    reports = car_reports(2_000, rate=1.0, trip=100, exits=0.3, seed=2).to_pandas()
    last = reports.groupby("cid").last()
    left = last[last.ts < 1_900].lane == 4
    assert 0.25 < left.mean() < 0.35


def test_a_seed_gives_the_same_reports() -> None:
    assert car_reports(300, seed=5).equals(car_reports(300, seed=5))
    assert not car_reports(300, seed=5).equals(car_reports(300, seed=6))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"seconds": 0}, "seconds must be a whole number of at least 1, not 0"),
        ({"rate": -1}, "rate must be a finite number of at least 0"),
        ({"trip": 10}, "trip must be a whole number of at least 30"),
        ({"exits": 1.5}, "exits must be a share between 0 and 1, not 1.5"),
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any], words: str) -> None:
    settings: dict[str, Any] = {"seconds": 100, **bad}
    with pytest.raises(tg.TidegateError, match=words):
        car_reports(settings.pop("seconds"), **settings)
