"""Streams that satisfy a k-constraint, as in the experiments of Babu, Srivastava, Widom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.settings.values import is_whole, quoted
from tidegate.streams._checks import choice, generators, number, whole

KINDS = ("rids", "ca", "oap", "oac")

Numbers = npt.NDArray[np.int64]
Places = npt.NDArray[np.floating[Any]]


def many_one(
    n: int,
    *,
    kind: str,
    k: int | Sequence[tuple[float, float]] = 0,
    multiplicity: int = 5,
    dangling: float = 0.0,
    seed: int = 0,
) -> dict[str, pa.Table]:
    """Generate streams whose many-one joins satisfy one kind of constraint (section 3.5).

    Every stream has its join columns, ``D`` (uniform in 0..99, for filters) and ``t``, the row's
    position in the common order of arrival.

    ======  ============================  ===========================================
    kind    streams                       constraint
    ======  ============================  ===========================================
    rids    S1 -> S2 on A, S1 -> S3 on B  RIDS(k) on both joins
    ca      S1 -> S3, S2 -> S3 on A       CA(k) on S1.A and S2.A; RIDS(0) on both joins
    oap     as ca                         OAP(k) on S1.A and S2.A; RIDS(0) on both joins
    oac     S1 -> S2 on A                 OAC(k) on S2.A
    ======  ============================  ===========================================

    Parameters
    ----------
    n
        Rows of each child stream.
    kind
        The constraint.
    k
        The constraint's k: one number for the whole stream, or (share, k) pairs. At each share of
        the stream, k has the pair's value; between two pairs it changes evenly. Two pairs with the
        same share are a sudden change. The value in force when a row arrives applies to that row.
    multiplicity
        Rows of a parent stream for each row of the child stream.
    dangling
        The share of parents without a child.
    seed
        The same seed gives the same tables.
    """
    n = whole("n", n, least=1)
    choice("kind", kind, KINDS)
    multiplicity = whole("multiplicity", multiplicity, least=1)
    dangling = number("dangling", dangling, least=0.0)
    bound = _schedule(k, n)
    moving, naming, filling, hanging = generators(seed, 4)
    values = np.arange(n, dtype=np.int64)
    names = values if kind in ("oap", "oac") else naming.permutation(values)
    many = np.repeat(values, multiplicity)
    places: dict[str, Places]
    if kind == "rids":
        distance = _within(np.minimum(moving.integers(0, bound[many] + 1), many), many, bound)
        jitter = moving.random(len(many)) / 4
        places = {"S2": values + 0.0, "S3": values + 0.25, "S1": many - distance + 0.5 + jitter}
    elif kind == "oac":
        child = _scattered(values, moving.integers(0, bound + 1), bound, _scrambled)
        near = moving.integers(-50, 51, len(many))
        places = {"S2": child + moving.random(n) / 4, "S1": many + near + moving.random(len(many))}
    else:
        places = {}
        for name in ("S1", "S2"):
            # The last row of a value comes at the delay drawn for it; the others come before.
            latest = moving.integers(0, bound + 1)
            late = moving.integers(0, latest[:, np.newaxis] + 1, (n, multiplicity))
            late[:, 0] = 0
            late[:, -1] = latest
            distances = _clustered if kind == "ca" else _scrambled
            ranked = _scattered(many, late.ravel(), bound, distances)
            places[name] = (ranked + moving.random(len(many)) / 4) / multiplicity
        # A child comes just before its first parent.
        first = np.minimum(places["S1"], places["S2"]).reshape(n, multiplicity).min(axis=1)
        places["S3"] = first - 1 / (8 * multiplicity)
    keys = {name: names[many] if len(at) == len(many) else names for name, at in places.items()}
    return _tables(kind, places, keys, dangling, filling, hanging)


def _schedule(k: Any, n: int) -> Numbers:
    """Return the bound k that applies to each row of a child stream."""
    if is_whole(k):
        return np.full(n, whole("k", k, least=0), np.int64)
    try:
        shares, bounds = zip(*((number("k", s, least=0.0), b) for s, b in k), strict=True)
    except TidegateError:
        raise
    except Exception:  # the value may be of any class, and may fail in any way
        raise TidegateError(
            f"k must be a whole number or a list of (share, k) pairs, not {quoted(k)}"
        ) from None
    for value in bounds:
        number("k", value, least=0.0)
    if list(shares) != sorted(shares):
        raise TidegateError(f"the shares of k must ascend, not {quoted(list(shares))}")
    found: Numbers = np.interp(np.arange(n) / n, shares, bounds).astype(np.int64)
    return found


def _within(distance: Numbers, child: Numbers, bound: Numbers) -> Numbers:
    """Limit distances to the bound in force when the parent arrives, not when its child does."""
    while (distance > bound[child - distance]).any():
        distance = np.minimum(distance, bound[child - distance])
    return distance


def _scattered(
    values: Numbers,
    late: Numbers,
    bound: Numbers,
    distances: Callable[[Numbers, Numbers], Numbers],
) -> Numbers:
    """Return the position of each row, if rows are delayed from the order of their values.

    The distance between two rows depends on both delays and may exceed k. The loop moves such rows
    forward until no distance exceeds the k in force when the row arrives.
    """
    each = len(values) // len(bound)
    while True:
        # A row delayed by n positions comes after the n rows behind it.
        order = np.argsort(2 * (np.arange(len(values)) + late) + (late > 0), kind="stable")
        places = np.empty(len(values), np.int64)
        places[order] = np.arange(len(values))
        over = distances(values, places) - bound[places // each]
        if not (over > 0).any():
            return places
        late = np.maximum(late - np.maximum(over, 0), 0)


def _clustered(values: Numbers, places: Numbers) -> Numbers:
    """Return how many rows of other values lie between each row and the first row of its value."""
    count = np.bincount(values)[0]
    own = np.sort(places.reshape(-1, count), axis=1)
    between = places - np.repeat(own[:, 0], count)
    before = (places.reshape(-1, count, 1) > places.reshape(-1, 1, count)).sum(axis=2).ravel()
    found: Numbers = between - before
    return found


def _scrambled(values: Numbers, places: Numbers) -> Numbers:
    """Return each row's distance from the first row of a larger value, 0 if that comes later."""
    largest = np.empty(len(values), np.int64)
    largest[places] = values
    first = np.searchsorted(np.maximum.accumulate(largest), values, side="right")
    distance: Numbers = np.maximum(places - first, 0)
    return distance


def arrivals(places: dict[str, Places]) -> dict[str, Numbers]:
    """Return each row's arrival number, by stream, if rows come one by one in order of position."""
    order = np.argsort(np.concatenate(list(places.values())), kind="stable")
    when = np.empty(len(order), np.int64)
    when[order] = np.arange(len(order))
    ends = np.cumsum([len(at) for at in places.values()])
    return dict(zip(places, np.split(when, ends[:-1]), strict=True))


def _tables(
    kind: str,
    places: dict[str, Places],
    keys: dict[str, Numbers],
    dangling: float,
    filling: np.random.Generator,
    hanging: np.random.Generator,
) -> dict[str, pa.Table]:
    tables = {}
    for name, own in arrivals(places).items():
        key = keys[name].copy()
        if name == "S1" and dangling:
            lost = hanging.random(len(key)) < dangling
            key[lost] = len(key) + np.arange(int(lost.sum()))
        columns = {"B" if kind == "rids" and name == "S3" else "A": keys[name]}
        if name == "S1":
            columns = {"A": keys[name], "B": key} if kind == "rids" else {"A": key}
        columns |= {"D": filling.integers(0, 100, len(own)), "t": own}
        tables[name] = pa.table(columns).sort_by("t")
    return dict(sorted(tables.items()))


def links(
    seconds: int,
    *,
    rate: int = 10,
    delay: float = 1.0,
    onward: float = 0.1,
    seed: int = 0,
) -> dict[str, pa.Table]:
    """Generate packets on the network links C, B and O of section 1.1.

    Columns are ``pid``, ``ts`` in milliseconds and ``size`` in bytes. B has ten times as many
    packets as C and O.

    Parameters
    ----------
    seconds
        Length of the streams in seconds.
    rate
        Packets per second on C and on O.
    delay
        Maximal time in seconds that a packet takes from C to B, and from B to O.
    onward
        The share of C's packets that go on to B, and of B's that go on to O.
    seed
        The same seed gives the same tables.
    """
    seconds = whole("seconds", seconds, least=1)
    rate = whole("rate", rate, least=1)
    longest = int(number("delay", delay, least=0.0) * 1000)
    onward = number("onward", onward, least=0.0)
    coming, going, sizing = generators(seed, 3)
    pid = 0
    tables: dict[str, pa.Table] = {}
    before: tuple[Numbers, Numbers, Numbers] | None = None
    for name, wanted in (("C", rate), ("B", 10 * rate), ("O", rate)):
        parts = []
        if before is not None:
            go = np.flatnonzero(going.random(len(before[0])) < onward)
            late = going.integers(0, longest + 1, len(go))
            parts.append((before[0][go], before[1][go] + late, before[2][go]))
        count = max(wanted * seconds - (len(parts[0][0]) if parts else 0), 0)
        own = np.arange(pid, pid + count, dtype=np.int64)
        pid += count
        when = coming.integers(0, seconds * 1000, count)
        parts.append((own, when, sizing.integers(40, 1501, count)))
        ids, times, sizes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.argsort(times, kind="stable")
        before = ids[order], times[order], sizes[order]
        tables[name] = pa.table(dict(zip(("pid", "ts", "size"), before, strict=True)))
    return tables
