"""Position reports of cars on an expressway, after the Linear Road benchmark.

Babu, Srivastava, Widom, *Exploiting k-Constraints*, section 9: the stream CarStr.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.streams._checks import generators, number, share, whole

#: Seconds from one report of a car to the next.
EVERY = 30
#: Length of a segment in feet: one mile.
SEGMENT = 5_280
#: Lanes: the entry lane, the last travel lane, and the exit lane.
ENTRY, LAST, EXIT = 0, 3, 4
#: Feet that a car travels in `EVERY` seconds, per mile an hour.
_FEET = 44
#: Range of the number of reports from one place in an accident; four reports identify it.
_STOPPED = (4, 20)


def car_reports(
    seconds: int,
    *,
    rate: float = 1.0,
    trip: int = 600,
    segments: int = 100,
    accidents: float = 0.005,
    exits: float = 0.5,
    seed: int = 0,
) -> pa.Table:
    """Generate the reports of cars, one every 30 seconds per car, in order of time.

    Columns are ``cid``, ``ts`` in seconds, ``speed`` in miles an hour, ``lane`` (0 in the first
    report, then 1 to 3, and 4 for a car that takes an exit), ``xpos`` in feet and ``sid``, the
    one-mile segment of that position. Each car makes one trip, and all drive in one direction.

    Parameters
    ----------
    seconds
        Length of the stream. Longer trips are cut off.
    rate
        Cars that enter per second.
    trip
        Mean duration of a trip in seconds: uniform, from a fifth of the mean up.
    segments
        Number of segments in which cars enter, uniformly.
    accidents
        The share of cars that stop once, for 4 to 20 reports from the same place.
    exits
        The share of cars that end with a report in the exit lane. The other cars just stop
        reporting.
    seed
        The same seed gives the same table.
    """
    seconds = whole("seconds", seconds, least=1)
    cars = max(round(seconds * number("rate", rate, least=0.0)), 1)
    trip = whole("trip", trip, least=EVERY)
    segments = whole("segments", segments, least=1)
    accidents, exits = share("accidents", accidents), share("exits", exits)
    entering, driving, stopping, leaving = generators(seed, 4)
    enter = np.sort(entering.integers(0, seconds, cars))
    start = entering.integers(0, segments * SEGMENT, cars)
    moving = 1 + entering.integers(trip // 5, 2 * trip - trip // 5 + 1, cars) // EVERY
    stops = stopping.random(cars) < accidents
    stopped = np.where(stops, stopping.integers(_STOPPED[0] - 1, _STOPPED[1], cars), 0)
    place = stopping.integers(0, moving)

    count = moving + stopped
    cid = np.repeat(np.arange(cars, dtype=np.int64), count)
    first = np.repeat(np.cumsum(count) - count, count)
    at = np.arange(len(cid)) - first  # the report's number for its car
    base = entering.integers(45, 66, cars)
    speed = base[cid] + driving.integers(-10, 11, len(cid))
    speed[(at > place[cid]) & (at <= (place + stopped)[cid])] = 0
    # The first report is from the entry; each later position follows from the speed.
    gone = np.cumsum(speed * _FEET)
    xpos = start[cid] + gone - gone[first]
    lane = driving.integers(ENTRY + 1, LAST + 1, len(cid))
    lane[at == 0] = ENTRY
    lane[(at == count[cid] - 1) & (leaving.random(cars) < exits)[cid]] = EXIT
    ts = enter[cid] + EVERY * at
    order = np.lexsort((cid, ts))
    order = order[ts[order] < seconds]
    columns = {
        "cid": cid,
        "ts": ts,
        "speed": speed,
        "lane": lane,
        "xpos": xpos,
        "sid": xpos // SEGMENT,
    }
    return pa.table({name: column[order] for name, column in columns.items()})
