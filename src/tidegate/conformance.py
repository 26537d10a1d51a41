"""Check that a policy, built-in or your own, keeps the rules that every policy must keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from tidegate.engine.base import Engine
from tidegate.errors import TidegateError
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import SHED_WHEN, window_join
from tidegate.policies import Policy, policy_of
from tidegate.settings.types import ShedWhen

#: The streams' ticks and keys, the window, and a memory for a quarter of the rows in the windows.
_TICKS, _KEYS, _WINDOW, _MEMORY = 240, 12, 20, 10
_SCHEMA = pa.schema(
    [("key", pa.int64()), ("time", pa.int64()), ("row", pa.int64()), ("weight", pa.float64())]
)

Pairs = Counter[tuple[int, int]]
Streams = tuple[pa.RecordBatch, pa.RecordBatch]


def check(policy: str | Policy, *, seed: int = 0) -> None:
    """Run a policy on small random streams, and raise an error if it breaks a rule.

    The rules: the join never holds more rows than the memory allows; every result is a result of
    the exact join; with memory for the whole window, no result is missing; the same input gives
    the same results, however it is cut into batches, and also if the state is saved and restored
    between batches.

    Parameters
    ----------
    policy
        A policy, or the name of one. It may be your own.
    seed
        The seed of the streams.

    Raises
    ------
    TidegateError
        If the policy breaks one of the rules.

    Examples
    --------
    >>> import tidegate as tg
    >>> from tidegate import conformance
    >>> conformance.check("prob")
    >>> conformance.check(tg.Prob(halflife=10), seed=1)
    """
    chosen = policy_of(policy)
    streams = _streams(seed)
    exact = _exact(streams)
    for weighed in (False, True):
        for shed_when in SHED_WHEN:
            job = _job(chosen, shed_when, weighed, _MEMORY)
            rows = _prepared(job, streams)
            whole = _run(job, rows, [_TICKS])
            _require(whole <= exact, chosen, f"rows that are no results, with {shed_when}")
            ticks = _run(job, rows, range(1, _TICKS + 1))
            cuts = _run(job, rows, [7, 50, 51, 160, _TICKS], restart=True)
            _require(whole == ticks, chosen, f"another answer when fed by ticks, with {shed_when}")
            _require(whole == cuts, chosen, f"another answer after restarts, with {shed_when}")
            _require(whole == _run(job, rows, [_TICKS]), chosen, "another answer each time")
            ample = _job(chosen, shed_when, weighed, 4 * _WINDOW)
            everything = _run(ample, _prepared(ample, streams), [_TICKS])
            _require(
                everything == exact, chosen, f"less than all with ample memory, with {shed_when}"
            )


def _require(holds: bool, policy: Policy, what: str) -> None:
    if not holds:
        raise TidegateError(f"policy {policy.name} gives {what}")


def _streams(seed: int) -> Streams:
    rng = np.random.default_rng(seed)
    sides = []
    for side in range(2):
        key = np.minimum(rng.zipf(1.5, _TICKS), _KEYS)
        row = np.arange(_TICKS) + side * _TICKS
        columns = [key, np.arange(_TICKS), row, rng.integers(1, 5, _TICKS).astype(np.float64)]
        sides.append(pa.record_batch(list(map(pa.array, columns)), schema=_SCHEMA))
    return sides[0], sides[1]


def _job(policy: Policy, shed_when: ShedWhen, weighed: bool, memory: int) -> WindowJob:
    spec = window_join(
        _SCHEMA,
        _SCHEMA,
        on="key",
        time="time",
        within=_WINDOW,
        memory=memory,
        policy=policy,
        shed_when=shed_when,
        importance="weight" if weighed else None,
    )
    return WindowJob(spec)


def _prepared(job: WindowJob, streams: Streams) -> Streams:
    left, right = (job.prepare(side, batch)[0] for side, batch in enumerate(streams))
    return left, right


def _exact(streams: Streams) -> Pairs:
    """Return all pairs of the exact join, by comparing every row with every row."""
    left, right = ([column.to_numpy() for column in side.columns] for side in streams)
    near = np.abs(left[1][:, np.newaxis] - right[1]) < _WINDOW
    pairs = np.argwhere(near & (left[0][:, np.newaxis] == right[0]))
    return Counter((int(left[2][i]), int(right[2][j])) for i, j in pairs)


def _run(job: WindowJob, rows: Streams, ends: Iterable[int], *, restart: bool = False) -> Pairs:
    """Return the pairs that the join finds if batches end before the given ticks.

    With ``restart``, save the state after each batch and restore it in a new engine.
    """
    spec = job.spec
    engine: Engine = job.engine_at(0, 1)
    log: list[bytes] = []
    found: Pairs = Counter()
    start = 0
    assert spec.memory is not None
    for end in ends:
        found += _pairs(engine.feed([[side.slice(start, end - start)] for side in rows]))
        held = engine.take_counters()["held"]
        _require(held <= spec.memory, spec.policy, f"{held} held rows in memory for {spec.memory}")
        if restart:
            log.append(engine.changes())
            engine = _restored(job, log)
        start = end
    return found + _pairs(engine.finish())


def _restored(job: WindowJob, log: list[bytes]) -> Engine:
    engine = job.engine_at(0, 1)
    engine.restore(log)
    return engine


def _pairs(batches: Iterable[pa.RecordBatch]) -> Pairs:
    found: Pairs = Counter()
    for batch in batches:
        rows = (batch.column(name).to_pylist() for name in ("row_left", "row_right"))
        found.update(zip(*rows, strict=True))
    return found
