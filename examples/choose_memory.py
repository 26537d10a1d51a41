"""Find the memory that delivers 80 % of a join, and draw recall against memory.

The streams are a sample of your own data. The optimum says what no policy can exceed.

It ends with the line

    40 % of the window is enough for 80 % of the results with prob
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import tidegate as tg
from tidegate.report.plots import recall_against_memory
from tidegate.streams import zipf

WINDOW, WANTED = 400, 0.80
SHARES = (0.05, 0.10, 0.20, 0.30, 0.40, 0.50)


def main() -> None:
    """Run the example."""
    left, right = zipf(5_600, domain=50, skew=1.0, seed=1)
    settings = {"on": "key", "time": "time", "within": WINDOW}
    exact = tg.join(left, right, **settings).results
    rows_in_windows = 2 * WINDOW  # one row on each side at every tick

    curves: dict[str, list[tuple[float, float]]] = {"fifo": [], "prob": [], "optimum": []}
    for share in SHARES:
        bound = {**settings, "memory": round(share * rows_in_windows)}
        found = {name: tg.join(left, right, **bound, policy=name) for name in ("fifo", "prob")}
        found["optimum"] = tg.optimal(left, right, **bound)
        for name, result in found.items():
            curves[name].append((share, result.results / exact))
        recalls = ", ".join(f"{name} {pairs[-1][1]:.1%}" for name, pairs in curves.items())
        print(f"{share:4.0%} of the window: {recalls}")

    plot = Path(tempfile.mkdtemp()) / "recall.png"
    plot.write_bytes(recall_against_memory(curves, title="Zipf(1), 50 keys"))
    print(f"drew {plot.name}, {plot.stat().st_size // 1000:,} kB")

    enough = next(share for share, recall in curves["prob"] if recall >= WANTED)
    print(
        f"{100 * enough:.0f} % of the window is enough for {100 * WANTED:.0f} % of the results "
        "with prob"
    )


if __name__ == "__main__":
    main()
