"""Raise an alarm where a hot sensor and a smoke detector are in one room at the time.

The streams share no key: a table of rooms says which sensor and which detector belong together,
and from when until when. Every fact must be active at the times of both readings.

It ends with the line

    3 alarms: hall, hall, cellar
"""

from __future__ import annotations

import tidegate as tg

HEAT = {
    "sensor": [1, 2, 1, 3],
    "time": [10, 12, 30, 31],
    "degrees": [60, 20, 65, 70],
}
SMOKE = {"detector": ["a", "b", "a"], "time": [11, 14, 33]}
ROOMS = {
    "sensor": [1, 2, 3],
    "detector": ["a", "b", "a"],
    "room": ["hall", "attic", "cellar"],
    "since": [0, 13, 0],  # the attic's sensor was put up at 13, after its reading at 12
    "until": [None, None, 40],  # None is for ever
}


def main() -> None:
    """Run the example."""
    alarms = tg.star_join(
        {"heat": HEAT, "smoke": SMOKE},
        ROOMS,
        on={"heat": "sensor", "smoke": "detector"},
        time="time",
        within=5,  # readings less than five seconds apart belong together
        interval=("since", "until"),
    )
    rows = alarms.table.to_pylist()
    for row in rows:
        print(f"{row['room']:>6}: heat at {row['time_heat']}, smoke at {row['time_smoke']}")
    print(f"{alarms.counters['filtered']} reading had no active room and was dropped on arrival")
    print(f"{len(rows)} alarms: {', '.join(row['room'] for row in rows)}")


if __name__ == "__main__":
    main()
