"""The number of shards of a join, and their spread over Spark's partitions.

A shard is one group of the stateful operator: one engine with its share of the memory. Spark sends
the group of a label to the partition `pmod(hash(label), partitions)`. The labels 0..n-1 collide, so
`labels` searches for ones that do not.
"""

from __future__ import annotations

from tidegate.errors import TidegateError
from tidegate.settings.values import quoted

#: Above this number, splitting a batch costs more than the parallelism gains, and each shard's
#: share of the memory becomes too small to choose good rows.
MOST_SHARDS_BY_DEFAULT = 64
MOST_SHARDS = 4096

_MASK = 0xFFFFFFFF
_SPARK_SEED = 42


def _rotate(x: int, bits: int) -> int:
    return ((x << bits) | (x >> (32 - bits))) & _MASK


def spark_hash(value: int) -> int:
    """Compute Spark's `hash` of one INT column: Murmur3, 32 bits, with seed 42."""
    k = (value & _MASK) * 0xCC9E2D51 & _MASK
    k = _rotate(k, 15) * 0x1B873593 & _MASK
    h = (_rotate(_SPARK_SEED ^ k, 13) * 5 + 0xE6546B64) & _MASK
    h ^= 4
    h = (h ^ (h >> 16)) * 0x85EBCA6B & _MASK
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & _MASK
    h ^= h >> 16
    return h - (1 << 32) if h & 0x80000000 else h


def labels(shards: int, partitions: int) -> list[int]:
    """Choose group keys for `shards` shards, spread as evenly as possible over the partitions.

    The first label is always 0. Its state therefore exists in every checkpoint, and shows if a
    query is restarted with another number of shards (see `state.Log`).
    """
    fullest = -(-shards // partitions)
    full_allowed = shards - (fullest - 1) * partitions
    loads = [0] * partitions
    chosen: list[int] = []
    label = 0
    while len(chosen) < shards:
        partition = spark_hash(label) % partitions
        limit = fullest if full_allowed > 0 else fullest - 1
        if loads[partition] < limit:
            loads[partition] += 1
            full_allowed -= loads[partition] == fullest
            chosen.append(label)
        label += 1
    return chosen


def count(shards: int | None, partitions: int, most: int | None = None) -> int:
    """Return the number of shards: the one asked for, or one per partition (at most 64).

    There are at most `most` shards, because each needs a share of the memory.

    The default follows `spark.sql.shuffle.partitions`, which a checkpoint fixes, and not the
    number of cores, which may differ when the query is restarted elsewhere.
    """
    if shards is None:
        return min(partitions, MOST_SHARDS_BY_DEFAULT, most or MOST_SHARDS_BY_DEFAULT)
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MOST_SHARDS:
        raise TidegateError(
            f"shards must be a whole number from 1 to {MOST_SHARDS:,}, or None for one a "
            f"partition, not {quoted(shards)}"
        )
    if most is not None and shards > most:
        raise TidegateError(
            f"shards must be at most {most:,}, because each needs a share of the memory, not "
            f"{quoted(shards)}; use fewer shards or more memory"
        )
    return shards
