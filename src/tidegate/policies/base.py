"""The base classes of all policies.

A policy decides which rows to keep when not all of them fit. It never touches the memory: it only
ranks rows. The join's loop enforces the budget and sheds the row with the lowest rank; among equal
ranks, it sheds the row that arrived first. The newcomer is a candidate, too.

The class attribute ``ranks`` says what a policy ranks by:

``"row"``
    A number for each row, fixed when the row arrives. Write `Policy.fixed_ranks`.
``"key"``
    How often partners of the row's key arrive. Subclass `ByFrequency`.
``"life"``
    That frequency, times the time until the row's window ends. Subclass `ByFrequency`.
``"score"``
    A formula, evaluated again as time passes and partners arrive. Write `Policy.score`, or set
    `Policy.formula` to one of `tidegate.learning.scores`; write `Policy.params` if it has any.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.errors import TidegateError
from tidegate.kernel.hashing import GOLDEN
from tidegate.learning import scores
from tidegate.policies.own_score import Score, compiled_score
from tidegate.settings.columns import as_table, is_table
from tidegate.settings.values import is_number, is_whole, quoted, real


class Arrivals(NamedTuple):
    """The rows that have just arrived, as read-only arrays: the input of `Policy.fixed_ranks`.

    Attributes
    ----------
    time
        Event times, in the join's unit: integers, or floats if the time column holds floats.
    side
        0 for a row of the left stream, 1 for a row of the right stream.
    key
        A 64-bit hash of the join key.
    row_hash
        A 64-bit hash of the whole row.
    importance
        The value of the importance column; 1 if the join has none.
    seed
        The join's seed.
    """

    time: NDArray[Any]
    side: NDArray[np.int8]
    key: NDArray[np.uint64]
    row_hash: NDArray[np.uint64]
    importance: NDArray[np.float64]
    seed: int

    def uniform(self) -> NDArray[np.float64]:
        """Return a pseudo-random number in (0, 1) for each row.

        The number depends only on the row's content and on the seed, so a replayed batch draws the
        same numbers.
        """
        # This mixer must not change, because checkpoints have ranks that come from its numbers.
        # `kernel.hashing.mix` would give other numbers.
        mixed = self.row_hash ^ (self.key + GOLDEN)
        mixed = mixed + self.side.astype(np.uint64)
        mixed = mixed ^ np.uint64(self.seed * 0xBF58476D1CE4E5B9 % 2**64)
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(factor)
        mixed = mixed ^ (mixed >> np.uint64(33))
        return ((mixed >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52


Ranks = Literal["row", "key", "life", "score"]

#: The largest number of keys that may be counted: at this size their table takes gigabytes.
_MOST_KEYS = 2**26


#: Names of policies: words of letters and digits, joined by hyphens or underscores.
_NAME = re.compile("[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*")

#: The values of `frequencies` that count arrivals while the join runs.
_LEARNED = ("learned", "window", "sketch")


class Times(NamedTuple):
    """The conversion of times to numbers in a join: the input of `Policy.params`."""

    #: Converts a duration such as ``"2 s"``; the second argument names the setting in errors.
    read: Callable[[Any, str], float]
    #: One second, or 1 if times are plain numbers.
    unit: float
    #: The longer of the two windows; infinite if one is unbounded.
    window: float


@dataclass(frozen=True)
class Policy:
    """Base class of policies: decides which rows to keep when not all of them fit.

    Subclass it to write a policy of your own, as a frozen dataclass whose fields are the policy's
    parameters. Set the class attributes `name` and `ranks`; override the methods that `ranks` needs
    (see `tidegate.policies.base`). Pass an instance or the name as ``policy=`` to `tidegate.join`,
    and try it with `tidegate.conformance.check` first. Names must be unique.

    Results must depend only on the input: two runs over the same rows must rank them the same way.
    Use `Arrivals.uniform` for random numbers.

    Examples
    --------
    A policy that keeps the rows with the largest importance:

    >>> from dataclasses import dataclass
    >>> from typing import ClassVar
    >>> import tidegate as tg
    >>> from tidegate.policies import Arrivals
    >>> @dataclass(frozen=True)
    ... class Largest(tg.Policy):
    ...     name: ClassVar[str] = "largest"
    ...     ranks: ClassVar[str] = "row"
    ...
    ...     def fixed_ranks(self, arrivals: Arrivals):
    ...         return arrivals.importance
    >>> orders = {"id": [1, 2, 3], "time": [1, 2, 3], "price": [10.0, 99.0, 5.0]}
    >>> payments = {"id": [1, 2, 3], "time": [4, 5, 6], "price": [1.0, 1.0, 1.0]}
    >>> result = tg.join(
    ...     orders, payments, on="id", time="time", within=(10, 1), memory=1,
    ...     importance="price", policy="largest",
    ... )
    >>> result.table["id_left"].to_pylist()
    [2]
    """

    #: The policy's name, as in ``policy="prob"``; defining a class with a name registers it.
    name: ClassVar[str]
    #: What the policy ranks by: ``"row"``, ``"key"``, ``"life"`` or ``"score"``.
    ranks: ClassVar[Ranks]
    #: What the join counts for each key: nothing, its arrivals on each stream, or its results.
    counts: ClassVar[Literal["nothing", "arrivals", "results"]] = "nothing"
    #: The formula of `tidegate.learning.scores` to rank by, if ``ranks`` is ``"score"``.
    formula: ClassVar[int] = 0
    #: A new row's rank grows by this factor times the largest rank that was ever shed.
    floor_weight: ClassVar[float] = 0.0
    #: A new row's rank grows by this factor times its sequence number.
    order_weight: ClassVar[float] = 0.0
    #: True if `tidegate.star_join` can use it although it does not rank by a fixed number.
    for_star_joins: ClassVar[bool] = False

    # It has no annotation because dataclasses keep the defaults of annotated names: with a policy
    # that is defined in a notebook, Spark would send all others to the workers.
    #: All policies by name, tidegate's and those that users define.
    registered = dict[str, type["Policy"]]()  # noqa: RUF012

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register a policy under its name; a subclass without a name of its own is not one."""
        super().__init_subclass__(**kwargs)
        if cls.score is not None:
            cls.formula = scores.OWN
        if "name" in cls.__dict__:
            _check_name(cls)
            Policy.registered[cls.name] = cls

    def fixed_ranks(self, arrivals: Arrivals) -> NDArray[np.float64]:
        """Return a rank for each row that has just arrived; the join keeps larger ranks longer.

        Override it if ``ranks`` is ``"row"``. Ranks must be finite numbers. The rank of a row
        must not depend on the other rows of the call: how rows are cut into batches may vary.
        """
        return np.zeros(len(arrivals.time))

    def params(self, times: Times) -> tuple[float, ...]:
        """Return the numbers that the formula or `score` needs, six at most."""
        return ()

    #: A formula of the policy's own, if ``ranks`` is ``"score"``: a static method that takes a
    #: `HeldRow` and the tuple of `params`, filled up to six with 0, and returns the row's rank. It
    #: is compiled. A rank that is not a finite number is the lowest.
    score: ClassVar[Any] = None

    @property
    def learns(self) -> Literal["ages", "rates"] | None:
        """What the join learns from ghosts (copies of rows that use no budget), if anything.

        ``"ages"``: how many results rows find at each age. ``"rates"``: the same by age and key.
        """
        return None

    def curves(self, windows: tuple[float, float]) -> tuple[list[float], list[float]]:
        """Return the rank of a row by its age, for the left and for the right side.

        Each list covers the ages from 0 to the end of the side's window, in equal steps.
        """
        return [0.0], [0.0]

    def settings(self) -> dict[str, Any]:
        """Return the policy's parameters as plain JSON values, to compare with a checkpoint's."""
        return {"policy": self.name} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


@dataclass(frozen=True)
class ByFrequency(Policy):
    """Base class of policies that rank by how often a key arrives on the other stream.

    Parameters
    ----------
    frequencies
        Where frequencies come from. ``"learned"`` counts arrivals while the join runs, in bounded
        memory, and old arrivals count less and less. ``"window"`` counts the arrivals of the last
        window (the longer one) equally. ``"sketch"`` is like ``"learned"``, but counts in a
        count-min sketch with four rows, whose size does not grow with the number of keys: for very
        many keys. ``"whole"`` counts both inputs completely before the join starts, as the papers'
        figures do; both must be finite. Or give a table with the key columns (the left's names)
        and the columns ``left`` and ``right``: how often each key arrives on each stream, where a
        null means never. For ``split="predicted"`` these are arrivals per unit of time (per
        second, if times are timestamps).
    halflife
        The time after which an arrival counts half, as a duration or a number like `within`. The
        default is 32 times the longer window; ``math.inf`` never forgets. Not allowed with
        ``"window"``.
    keys
        The maximal number of keys without held rows that are still counted: above it, the join
        forgets the rarer half. The default is the memory in rows, but at least 65,536. With
        ``"window"``, the maximal number of arrivals of both streams that are counted: if a window
        has more, only the latest ones count. With ``"sketch"``, the number of cells in each row of
        the sketch, rounded up to a power of two; by default 16,384, or as many as fit into a tenth
        of a memory in bytes.
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
        if not named and not is_table(given):
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
        """True if frequencies are counted while the join runs."""
        return self.counting in _LEARNED

    @property
    def counting(self) -> str:
        """The value of `frequencies`, or ``"given"`` for a table."""
        return self.frequencies if isinstance(self.frequencies, str) else "given"

    @property
    def never_forgets(self) -> bool:
        """True if counts do not decay."""
        return isinstance(self.halflife, float) and math.isinf(self.halflife)

    def settings(self) -> dict[str, Any]:
        """Return the parameters as plain JSON values; a digest stands for a table."""
        given = self.frequencies
        if not isinstance(given, str):
            given = f"table {hash_of(given)}"
        return super().settings() | {
            "frequencies": given,
            "halflife": None if self.halflife is None else str(self.halflife),
        }


def _check_name(kind: type[Policy]) -> None:
    """Raise an error if a policy's name is no word, or if another class has it.

    Defining the same class again is allowed: notebooks do it each time a cell runs.
    """
    name: Any = kind.name
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise TidegateError(
            f"policy {kind.__name__} must have a name of letters and digits, with hyphens or "
            f'underscores between words, such as name = "mine", not {quoted(name)}'
        )
    other = Policy.registered.get(name, kind)
    if (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__):
        raise TidegateError(
            f'policy {kind.__name__} has the name "{name}", which {other.__qualname__} of '
            f"{other.__module__} has already; choose another name"
        )


def ranking(policy: Policy) -> Policy:
    """Return the policy unchanged, or raise an error if its class attributes are incomplete."""
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
    if ranks == "row" and not (fixes or policy.floor_weight or policy.order_weight):
        raise TidegateError(f"{who} ranks all rows alike: write fixed_ranks")
    if ranks in ("key", "life") and policy.counts == "nothing":
        raise TidegateError(
            f'{who} ranks by {ranks}, and counts nothing: write counts = "arrivals" in the class, '
            "or take ByFrequency"
        )
    if ranks == "score" and policy.formula not in range(scores.FORMULAS):
        raise TidegateError(
            f"{who} must have a formula of tidegate.learning.scores, not {quoted(policy.formula)}"
        )
    if policy.score is not None and ranks != "score":
        raise TidegateError(
            f'{who} has a score, and ranks by "{ranks}"; write ranks = "score" in the class'
        )
    if ranks == "score" and policy.formula == scores.OWN:
        compiled_score(name, _score_of(policy, who))
    return policy


def _score_of(policy: Policy, who: str) -> Score:
    """Return a policy's own scoring function, or raise an error if it is not one."""
    score = inspect.getattr_static(type(policy), "score", None)
    if not isinstance(score, staticmethod):
        raise TidegateError(
            f"{who} must have a static method score, which takes a row and parameters, not "
            f"{quoted(score)}; write @staticmethod before def score(row, params)"
        )
    function: Score = score.__func__
    return function


def ranks_of(policy: Policy, arrivals: Arrivals) -> NDArray[np.float64]:
    """Return a policy's `fixed_ranks` for new rows, or raise an error if these are not ranks."""
    time, side, key, row_hash, importance = map(_read_only, arrivals[:-1])
    read_only = Arrivals(time, side, key, row_hash, importance, arrivals.seed)
    try:
        given = np.ma.filled(policy.fixed_ranks(read_only), np.nan)
        ranks = np.require(given, np.float64, "W")
    except Exception as error:
        raise TidegateError(
            f"policy {policy.name} failed to rank {len(arrivals.time)} rows, in fixed_ranks: "
            f"{type(error).__name__}: {error}"
        ) from error
    if ranks.shape != arrivals.time.shape:
        raise TidegateError(
            f"policy {policy.name} gives ranks of the shape {ranks.shape} for "
            f"{len(arrivals.time)} rows; fixed_ranks must give one number for each"
        )
    if not np.isfinite(ranks).all():
        raise TidegateError(
            f"policy {policy.name} ranks a row {ranks[~np.isfinite(ranks)][0]}; ranks must be "
            "finite numbers"
        )
    return ranks


def _read_only(column: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view of a column."""
    view = column.view()
    view.flags.writeable = False
    return view


def at_least(value: Any, least: float, name: str, *, above: bool = False) -> None:
    """Raise an error unless the value is a finite number of at least (or above) ``least``."""
    found = real(value)
    if not math.isfinite(found) or found < least or (above and found == least):
        wanted = f"a number {'above' if above else 'of at least'} {least:g}"
        if least == -math.inf:
            wanted = "a finite number"
        raise TidegateError(f"{name} must be {wanted}, not {quoted(value)}")


def check_length(value: Any, name: str) -> None:
    """Raise an error if the value cannot be a duration. None stands for a default and is allowed.

    Whether a text is a duration is checked later, when the unit of time is known.
    """
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
    """Return a setting as a plain JSON value.

    NumPy arrays become lists first: their own text leaves out the middle of a long array.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int | float | str | None):
        return value
    return str(value.tolist() if isinstance(value, np.ndarray) else value)


def hash_of(table: Any) -> str:
    """Return a short digest of a table's content."""
    import hashlib

    arrow = as_table(table)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow.schema) as writer:
        writer.write_table(arrow.combine_chunks())
    return hashlib.sha256(sink.getvalue()).hexdigest()[:16]
