"""Add up a value over a join from a random sample of it, with intervals.

A policy keeps the results that are easiest to get, so its sums are biased. A sample knows the
probability of each of its rows, and says how far off an estimate may be.

It ends with the line

    the true sum lies in 3 of 3 intervals
"""

from __future__ import annotations

import pyarrow.compute as pc

import tidegate as tg
from tidegate.streams import zipf

SPAN = 2_000


def main() -> None:
    """Run the example."""
    left, right = zipf(6_000, domain=50, skew=0.5, seed=1)
    settings = {"on": "key", "time": "time", "within": 400}

    exact = tg.join(left, right, **settings).table
    later = pc.max_element_wise(exact["time_left"], exact["time_right"])
    window = pc.multiply(pc.divide(later, SPAN), SPAN)
    sums = exact.append_column("window", window).group_by("window")
    totals = sums.aggregate([("value_right", "sum")]).to_pylist()
    truth = {row["window"]: row["value_right_sum"] for row in totals}

    sample = tg.sample_join(left, right, **settings, memory=200)
    estimates = tg.estimate(
        sample, value="value_right", time=("time_left", "time_right"), per=SPAN
    ).table.to_pylist()

    inside = 0
    for row in estimates:
        low, high, true = row["sum_low"], row["sum_high"], truth[row["window"]]
        inside += low <= true <= high
        print(f"from {row['window']:>5,}: {low:8,.0f} to {high:8,.0f}, in truth {true:8,.0f}")
    print(f"the sample has {sample.results:,} of {len(exact):,} results")
    print(f"the true sum lies in {inside} of {len(estimates)} intervals")


if __name__ == "__main__":
    main()
