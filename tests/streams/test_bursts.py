"""Keys in bursts, replies, and shuffled popularity."""

from __future__ import annotations

import numpy as np
import pytest

from tidegate import TidegateError
from tidegate.streams import bursts, echoes, zipf


def test_a_key_is_busy_for_a_while_and_then_gone() -> None:
    left, right = bursts(4_000, length=200, at_once=20, seed=3)
    assert left.num_rows == right.num_rows == 4_000
    assert not left["key"].equals(right["key"])
    key, time = left["key"].to_numpy(), left["time"].to_numpy()
    for each in np.unique(key):
        when = time[key == each]
        # A key becomes busy again after 50 bursts; there are fewer here.
        assert when.max() - when.min() < 200
    busy = [len(set(key[at : at + 200])) for at in range(0, 4_000, 200)]
    assert max(busy) <= 2 * 20


def test_replies_come_within_the_window_of_their_row() -> None:
    left, right = echoes(
        2_000, window=100, domain=2_000, skew=0.0, replies=1.5, shape="dec", seed=1
    )
    assert right.num_rows == 3_000
    key, time = (left[name].to_numpy() for name in ("key", "time"))
    ages = []
    for reply, at in zip(right["key"].to_numpy(), right["time"].to_numpy(), strict=True):
        age = at - time[(key == reply) & (time <= at)]
        assert age.min() < 100
        ages.append(age.min())
    # The density falls as the square of the remaining life: on average three quarters remain.
    assert 20 < np.mean(ages) < 27
    assert (np.diff(right["time"].to_numpy()) >= 0).all()


def test_a_shuffle_changes_frequencies_only_from_then_on() -> None:
    plain = zipf(4_000, domain=50, skew=1.5, seed=2)
    moved = zipf(4_000, domain=50, skew=1.5, shuffles=1, seed=2)
    for before, after in zip(plain, moved, strict=True):
        one, other = before["key"].to_numpy(), after["key"].to_numpy()
        assert (one[:2_000] == other[:2_000]).all()
        assert np.bincount(one[2_000:]).argmax() != np.bincount(other[2_000:]).argmax()
        # The same frequencies, under other keys.
        assert sorted(np.bincount(one[2_000:], minlength=50)) == sorted(
            np.bincount(other[2_000:], minlength=50)
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bursts(0), "n must be a whole number of at least 1, not 0"),
        (lambda: bursts(5, length=0), "length must be a whole number of at least 1"),
        (lambda: echoes(5, shape="flat"), 'shape must be one of "inc", "dec", "bell", not'),
        (lambda: echoes(5, replies=-1), "replies must be a finite number of at least 0"),
        (lambda: zipf(5, shuffles=0.5), "shuffles must be a whole number of at least 0, not 0.5"),  # type: ignore[arg-type]
    ],
)
def test_bad_settings_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(TidegateError, match=message):
        make()
