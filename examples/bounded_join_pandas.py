"""Join two pandas frames exactly, then within a budget, and see what was lost.

Auctions stay open for two hours. Each bid meets its auction, if the auction is still held.

It ends with the line

    memory for 150 rows: 2,497 of 8,000 bids found their auction (31 %)
"""

from __future__ import annotations

import tidegate as tg
from tidegate.streams import auctions

BUDGET = 150


def main() -> None:
    """Run the example."""
    opened, offered = (table.to_pandas() for table in auctions(2_000, bids=4.0, seed=1))

    settings = {
        "on": "auction_id",
        "time": "ts",
        "within": ("2 hours", 0),  # an auction waits two hours for bids, a bid for nothing
        "closed": True,  # a bid in the very last moment counts
    }
    exact = tg.join(opened, offered, **settings)
    assert exact.results == len(offered)
    print(exact.table.to_pandas()[["auction_id_left", "ts_left", "ts_right", "price"]].head(3))

    # The same join may hold at most 150 of the 480 auctions that are open at any time.
    bounded = tg.join(opened, offered, **settings, memory=BUDGET, keep_shed=True)
    lost = bounded.shed.to_pandas()  # who left early, when and why
    print(lost.groupby(["side", "why"]).size().to_string())

    recall = bounded.results / exact.results
    print(
        f"memory for {BUDGET} rows: {bounded.results:,} of {exact.results:,} bids found their "
        f"auction ({recall:.0%})".replace("%", " %")
    )


if __name__ == "__main__":
    main()
