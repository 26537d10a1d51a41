"""What a policy is: it ranks, and the loop does the rest.

A policy never touches the memory. It says *what* it ranks, and the loop, which owns the bound,
drops the lowest rank (of equal ranks the earlier arrival):

- ``"tuple"``: a number for each tuple, fixed when it is admitted; write `fixed_ranks`.
- ``"key"``: the rate at which partners of the tuple's key arrive; take `ByFrequency`.
- ``"life"``: that rate times the life the tuple has left; take `ByFrequency`.
- ``"score"``: a formula of `tidegate.learning.scores` of what is known of the tuple, looked up anew
  as it changes; name the `formula` and write `params`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.errors import TidegateError
from tidegate.learning import scores
from tidegate.settings.values import is_number, is_whole, quoted, real


class Arrivals(NamedTuple):
    """Newcomers as arrays, to be read only, for a policy that fixes ranks at admission."""

    time: NDArray[Any]
    side: NDArray[np.int8]
    key: NDArray[np.uint64]
    row_hash: NDArray[np.uint64]
    importance: NDArray[np.float64]
    seed: int

    def uniform(self) -> NDArray[np.float64]:
        """A number in (0, 1) for each newcomer that depends on its content and the seed only."""
        mixed = self.row_hash ^ (self.key + np.uint64(0x9E3779B97F4A7C15))
        mixed = mixed + self.side.astype(np.uint64)
        mixed = mixed ^ np.uint64(self.seed * 0xBF58476D1CE4E5B9 % 2**64)
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(factor)
        mixed = mixed ^ (mixed >> np.uint64(33))
        return ((mixed >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52


Ranks = Literal["tuple", "key", "life", "score"]

#: The most keys that may be counted: their table alone takes gigabytes then.
_MOST_KEYS = 2**26


#: Ways to learn frequencies while running.
_LEARNED = ("learned", "window", "sketch")


class Times(NamedTuple):
    """How times of a join become numbers."""

    #: Reads a duration such as ``"2 s"``, given with the name of its setting.
    read: Callable[[Any, str], float]
    #: A second, or 1 where times are plain numbers.
    unit: float
    #: The longer window; infinite if one is unbounded.
    window: float


@dataclass(frozen=True)
class Policy:
    """Which tuples to keep when not all fit."""

    #: What the policy is called where a name is enough, as in ``policy="prob"``.
    name: ClassVar[str]
    #: What it ranks; see the module's text.
    ranks: ClassVar[Ranks]
    #: What is counted of each key: nothing, its arrivals on each stream, or its results.
    counts: ClassVar[Literal["nothing", "arrivals", "results"]] = "nothing"
    #: Which formula of `tidegate.learning.scores` ranks, if one does.
    formula: ClassVar[int] = 0
    #: How much of the largest rank evicted so far is added to a new tuple's rank.
    floor_weight: ClassVar[float] = 0.0
    #: How much of its sequence number is added to a tuple's rank.
    order_weight: ClassVar[float] = 0.0

    def fixed_ranks(self, arrivals: Arrivals) -> NDArray[np.float64]:
        """The rank of each newcomer; finite, a larger one is kept longer."""
        return np.zeros(len(arrivals.time))

    def params(self, times: Times) -> tuple[float, ...]:
        """The formula's numbers."""
        return ()

    @property
    def learns(self) -> Literal["ages", "rates"] | None:
        """What is learned from ghosts, if anything: worth by age, or by age and by key."""
        return None

    def curves(self, windows: tuple[float, float]) -> tuple[list[float], list[float]]:
        """What a tuple of each side is worth by its age, from 0 to its window, in equal steps."""
        return [0.0], [0.0]

    def settings(self) -> dict[str, Any]:
        """What tells this policy from others, as plain JSON values."""
        return {"policy": self.name} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


@dataclass(frozen=True)
class ByFrequency(Policy):
    """Shared by the policies that rank by how often a key arrives on the other stream.

    Parameters
    ----------
    frequencies
        ``"learned"`` counts arrivals while running, in bounded memory, old ones less and less;
        ``"window"`` those of the last window (the longer one), all alike; ``"sketch"`` as
        ``"learned"``, but in cells that keys share (a count-min sketch of four rows), whose number
        does not grow with the keys: for very many of them. ``"whole"`` counts the
        whole of both (finite) inputs first, as the papers' figures do; or a table with the key
        columns (the left's names) and the columns ``left`` and ``right``: how often each key
        arrives on each stream, a null being never; for ``split="predicted"``, in a unit of time (a
        second, where times are timestamps).
    halflife
        How long until an arrival counts half, as a duration or a number like `within`. The
        default is 32 times the longer window; ``math.inf`` never forgets. Not with ``"window"``.
    keys
        How many keys that hold no tuple are still counted, at the most: above it, the rarer half
        is forgotten. The default is the memory in tuples, but at least 65,536. With ``"window"``,
        how many arrivals of both streams count: where a window has more, the last of them do.
        With ``"sketch"``, how many cells a row has, rounded up to a power of two; by default
        16,384, or what a tenth of a memory in bytes has room for.
    """

    counts: ClassVar[Literal["nothing", "arrivals", "results"]] = "arrivals"

    frequencies: Literal["learned", "window", "sketch", "whole"] | pa.Table | Mapping[str, Any] = (
        "learned"
    )
    halflife: Any = None
    keys: int | None = None

    def __post_init__(self) -> None:
        given = self.frequencies
        named = isinstance(given, str) and given in (*_LEARNED, "whole")
        if not named and not _is_table(given):
            raise TidegateError(
                'frequencies must be "learned", "window", "sketch", "whole" or a table with the '
                f'key columns and "left" and "right", not {quoted(given)}'
            )
        if self.counting == "window" and self.halflife is not None:
            raise TidegateError(
                "an arrival counts for a window and then no more, so that halflife has nothing to "
                f'do; leave {quoted(self.halflife)} out, or use frequencies="learned"'
            )
        if self.keys is not None and not (is_whole(self.keys) and 0 < self.keys <= _MOST_KEYS):
            raise TidegateError(
                f"keys must be a positive number of keys, at most {_MOST_KEYS:,}, not "
                f"{quoted(self.keys)}"
            )
        if not self.never_forgets:
            check_length(self.halflife, "halflife")
        if is_number(self.halflife) and not real(self.halflife) > 0:
            raise TidegateError(
                "halflife must be longer than zero (math.inf never forgets), not "
                f"{quoted(self.halflife)}"
            )

    @property
    def learned(self) -> bool:
        """Whether frequencies are learned while running."""
        return self.counting in _LEARNED

    @property
    def counting(self) -> str:
        """How frequencies come about; "given" for a table."""
        return self.frequencies if isinstance(self.frequencies, str) else "given"

    @property
    def given(self) -> Any:
        """The table of frequencies that was given, or None."""
        return None if isinstance(self.frequencies, str) else self.frequencies

    @property
    def whole(self) -> bool:
        """Whether both inputs are to be counted first."""
        return self.counting == "whole"

    @property
    def never_forgets(self) -> bool:
        """Whether counts do not decay."""
        return isinstance(self.halflife, float) and math.isinf(self.halflife)

    def settings(self) -> dict[str, Any]:
        """As every policy's; a table counts by its content."""
        given = self.frequencies
        if not isinstance(given, str):
            given = f"table {hash_of(given)}"
        return super().settings() | {
            "frequencies": given,
            "halflife": None if self.halflife is None else str(self.halflife),
        }


def ranking(policy: Policy) -> Policy:
    """The policy, once it is clear that it says what it ranks by."""
    kind = type(policy)
    who = f"policy {kind.__name__}"
    name = getattr(policy, "name", None)
    if not (isinstance(name, str) and name):
        raise TidegateError(f'{who} has no name; write one in the class, such as name = "mine"')
    ranks = getattr(policy, "ranks", None)
    if ranks not in get_args(Ranks):
        choices = ", ".join(f'"{each}"' for each in get_args(Ranks))
        raise TidegateError(f"{who} must have ranks, one of {choices}, not {quoted(ranks)}")
    for weight in ("floor_weight", "order_weight"):
        at_least(getattr(policy, weight), -math.inf, f"{weight} of {who}")
    fixes = kind.fixed_ranks is not Policy.fixed_ranks
    if ranks == "tuple" and not (fixes or policy.floor_weight or policy.order_weight):
        raise TidegateError(f"{who} ranks tuples, all of them alike: write fixed_ranks")
    if ranks in ("key", "life") and policy.counts == "nothing":
        raise TidegateError(
            f'{who} ranks by {ranks}, and counts nothing: write counts = "arrivals" in the class, '
            "or take ByFrequency"
        )
    if ranks == "score" and policy.formula not in range(scores.FORMULAS):
        raise TidegateError(
            f"{who} must have a formula of tidegate.learning.scores, not {quoted(policy.formula)}"
        )
    return policy


def ranks_of(policy: Policy, arrivals: Arrivals) -> NDArray[np.float64]:
    """What a policy fixes as the ranks of newcomers, once it is clear that these are ranks."""
    time, side, key, row_hash, importance = map(_lent, arrivals[:-1])
    lent = Arrivals(time, side, key, row_hash, importance, arrivals.seed)
    try:
        given = np.ma.filled(policy.fixed_ranks(lent), np.nan)
        ranks = np.require(given, np.float64, "W")
    except Exception as error:
        raise TidegateError(
            f"policy {policy.name} failed to rank {len(arrivals.time)} tuples, in fixed_ranks: "
            f"{type(error).__name__}: {error}"
        ) from error
    if ranks.shape != arrivals.time.shape:
        raise TidegateError(
            f"policy {policy.name} gives ranks of the shape {ranks.shape} for "
            f"{len(arrivals.time)} tuples; fixed_ranks must give one number for each"
        )
    if not np.isfinite(ranks).all():
        raise TidegateError(
            f"policy {policy.name} ranks a tuple {ranks[~np.isfinite(ranks)][0]}; ranks must be "
            "finite numbers"
        )
    return ranks


def _lent(column: NDArray[Any]) -> NDArray[Any]:
    """The same, to be read only."""
    view = column.view()
    view.flags.writeable = False
    return view


def at_least(value: Any, least: float, name: str, *, above: bool = False) -> None:
    """Refuse what is not a number, or is too small."""
    found = real(value)
    if not math.isfinite(found) or found < least or (above and found == least):
        wanted = f"a number {'above' if above else 'of at least'} {least:g}"
        if least == -math.inf:
            wanted = "a finite number"
        raise TidegateError(f"{name} must be {wanted}, not {quoted(value)}")


def check_length(value: Any, name: str) -> None:
    """Refuse what is no length of time, in whatever unit times will be; None is a default."""
    if value is None or isinstance(value, timedelta | np.timedelta64):
        return
    if isinstance(value, str) and len(value) < 1_000:
        return
    if not math.isfinite(real(value)):
        raise TidegateError(
            f'{name} must be a duration like "2 hours", or a number where times are numbers, not '
            f"{quoted(value)}"
        )


def _plain(value: Any) -> int | float | str | None:
    """A setting as a plain JSON value; NumPy's own text leaves out the middle of a long array."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int | float | str | None):
        return value
    return str(value.tolist() if isinstance(value, np.ndarray) else value)


def hash_of(table: Any) -> str:
    """A short digest of a table's content."""
    import hashlib

    arrow = as_table(table)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow.schema) as writer:
        writer.write_table(arrow.combine_chunks())
    return hashlib.sha256(sink.getvalue()).hexdigest()[:16]


def _is_table(data: Any) -> bool:
    """Whether something may be made an Arrow table."""
    return isinstance(data, pa.Table | pa.RecordBatch | Mapping) or hasattr(
        data, "__arrow_c_stream__"
    )


def _of_columns(data: Mapping[Any, Any]) -> pa.Table:
    """A table of a mapping of columns, each of which may be anything."""
    columns = {}
    for name, values in data.items():
        if not isinstance(name, str):
            raise TidegateError(f"a column must have a text as its name, not {quoted(name)}")
        try:
            columns[name] = pa.table({name: values}).column(0)
        except Exception as error:
            raise TidegateError(
                f'column "{name}" does not fit into Arrow ({error}); give each column values of '
                f"one type in a list or an array, not {quoted(values)}"
            ) from None
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f'"{name}" has {length:,}' for name, length in lengths.items())
        raise TidegateError(f"columns must have as many values as each other: {listed}")
    return pa.table(columns)


def as_table(data: Any) -> pa.Table:
    """Arrow from Arrow, pandas or a mapping of columns."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Mapping):
        return _of_columns(data)
    if type(data).__module__.startswith("pyspark."):
        raise TidegateError(
            "this is a Spark DataFrame, and local data is needed here: give it with .toArrow()"
        )
    if type(data).__module__.startswith("pandas.") and hasattr(data, "columns"):
        try:
            return pa.Table.from_pandas(data, preserve_index=False).replace_schema_metadata(None)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise TidegateError(
                f"this DataFrame does not fit into Arrow: {error}; give each column one type and "
                "a name of its own"
            ) from None
    if hasattr(data, "__arrow_c_stream__"):
        try:
            return pa.table(data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise TidegateError(
                f"this {type(data).__name__} is no Arrow table: {error}; give one with columns"
            ) from None
    raise TidegateError(
        f"expected an Arrow table, a pandas DataFrame or a mapping of columns, not "
        f"{type(data).__name__}"
    )
