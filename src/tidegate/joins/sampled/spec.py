"""The settings of a sampled join, checked once before any data is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.joins.window.spec import Frequencies, WindowJoin, window_join
from tidegate.policies import Age, ByFrequency, Prob
from tidegate.policies.base import at_least
from tidegate.settings.checks import check_column, one_of
from tidegate.settings.schedules import is_schedule
from tidegate.settings.types import Keys, Suffixes, TimeColumn
from tidegate.settings.values import quoted

Method = Literal["uniform", "cluster", "pps", "auto"]
METHODS: tuple[Method, ...] = ("uniform", "cluster", "pps", "auto")
MODELS = ("frequency", "age")

#: Columns that the result has in addition to those of the inputs.
PROBABILITY, CLUSTER = "sample_probability", "sample_cluster"

#: The largest number of standard deviations that makes a difference.
_MOST_DEVIATIONS = 100
#: The budget in rows if no memory is given.
_NO_BOUND = 2**60


@dataclass(frozen=True)
class SampledJoin:
    """The checked settings of a random sample of a bounded join."""

    window: WindowJoin
    method: Method
    fraction: float | None
    margin: float
    reach: float
    #: For each side, 0 if all pairs of one of its rows have the same value, else 1.
    alike: tuple[float, float]
    bounded: bool

    @property
    def by_age(self) -> bool:
        """True if the number of partners depends on a row's age, not on its key."""
        return isinstance(self.window.policy, Age)

    @property
    def most_shards(self) -> int | None:
        """The most shards."""
        if not self.bounded:
            return None
        return self.window.most_shards if self.window.left.keys else 1

    @property
    def result_schema(self) -> pa.Schema:
        """The columns of the left and the right, then the probability and the cluster of a row."""
        more = [pa.field(PROBABILITY, pa.float64()), pa.field(CLUSTER, pa.int64())]
        return pa.schema([*self.window.result_schema, *more])

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain JSON values; a checkpoint is bound to all of them."""
        return self.window.settings() | {
            "method": self.method,
            "fraction": self.fraction,
            "margin": self.margin,
            "reach": self.reach,
            "alike": list(self.alike),
        }


def sampled_join(
    left: pa.Schema,
    right: pa.Schema,
    *,
    on: Keys,
    time: TimeColumn,
    within: Any,
    closed: bool = False,
    where: str | None = None,
    memory: Any = None,
    fraction: float | None = None,
    method: str = "auto",
    model: Any = "frequency",
    value: str | None = None,
    margin: float = 3.0,
    reach: float = 3.0,
    lateness: Any = None,
    suffixes: Suffixes = ("_left", "_right"),
    seed: int = 0,
) -> SampledJoin:
    """Check the settings of a sampled join against the schemas of its inputs."""
    if on is None:
        raise TidegateError("a sampled join needs on, the columns that must be equal, not None")
    if memory is None and fraction is None:
        raise TidegateError(
            "a sampled join needs memory (how much to hold), from which the fraction follows, or "
            "fraction (how much of the result to sample), or both"
        )
    for given, name in ((memory, "memory"), (within, "within")):
        sides = given if isinstance(given, tuple | list) else (given,)
        if is_schedule(given) or any(map(is_schedule, sides)):
            raise TidegateError(
                f"{name} of a sampled join must not change, not {quoted(given)}: probabilities "
                "follow "
                "from what is held over a whole window"
            )
    policy = _model(model)
    window = window_join(
        left,
        right,
        on=on,
        time=time,
        within=within,
        closed=closed,
        where=where,
        memory=_NO_BOUND if memory is None else memory,
        policy=policy,
        lateness=lateness,
        suffixes=suffixes,
        seed=seed,
    )
    if None in (window.left.window, window.right.window):
        raise TidegateError(
            f"a sampled join needs windows that end, not {quoted(within)}: how many partners a "
            "row "
            "will find is foreseen over its window"
        )
    for name in (PROBABILITY, CLUSTER):
        if name in window.names:
            raise TidegateError(
                f'the result has a column "{name}" of its own, and so has an input; rename that one'
            )
    for number, name in ((margin, "margin"), (reach, "reach")):
        at_least(number, 0, name)
        if number > _MOST_DEVIATIONS:
            raise TidegateError(
                f"{name} is a number of standard deviations, of which {_MOST_DEVIATIONS} are more "
                f"than enough, not {quoted(number)}; 3 is the default"
            )
    _check_known(window)
    return SampledJoin(
        window=_in_time(window),
        method=one_of(method, METHODS, "method"),
        fraction=_fraction(fraction),
        margin=float(margin),
        reach=float(reach),
        alike=_alike(window, value),
        bounded=memory is not None,
    )


def _check_known(window: WindowJoin) -> None:
    """Refuse a model that expects no results, because it gives no probabilities."""
    given, policy = window.frequencies, window.policy
    if given is not None and not (given.left.any() or given.right.any()):
        rows = f"{len(given.keys):,} keys, all with 0" if len(given.keys) else "no rows"
        raise TidegateError(
            "model must have the arrivals of each key in a unit of time, and its table has "
            f'{rows}; give arrivals above 0, or model="frequency" to learn them'
        )
    curves = policy.both_curves if isinstance(policy, Age) and policy.curve is not None else [[1]]
    if not any(any(curve) for curve in curves):
        raise TidegateError(
            f"model must have results at some age, not {quoted(policy)}; give numbers above 0, or "
            'model="age" to learn them'
        )


def _in_time(window: WindowJoin) -> WindowJoin:
    """Return the join with given frequencies as arrivals per kernel unit of time."""
    given = window.frequencies
    if given is None:
        return window
    rates = Frequencies(given.keys, given.left / window.second, given.right / window.second)
    return replace(window, frequencies=rates)


def _model(model: Any) -> Age | Prob:
    if isinstance(model, str) and model in MODELS:
        return Age() if model == "age" else Prob()
    if isinstance(model, Prob) and model.counting not in ("learned", "given"):
        raise TidegateError(
            "a sampled join does not count its inputs first, nor in any way but with decay: give "
            "Prob() to learn frequencies, or Prob(table) with arrivals in a unit of time, not "
            f"Prob({quoted(model.frequencies)})"
        )
    if isinstance(model, Age | Prob):
        return model
    raise TidegateError(
        'model must be "frequency" or "age" to be learned, or known: tidegate.Prob(table) with '
        "arrivals of each key in a unit of time, or tidegate.Age(curve, rates=...), not "
        f"{quoted(model)}"
    )


def _fraction(value: Any) -> float | None:
    if value is None:
        return None
    if (
        isinstance(value, int | float | np.number)
        and not isinstance(value, bool)
        and 0 < value <= 1
    ):
        return float(value)
    raise TidegateError(
        f"fraction must be above 0 and at most 1, as in 0.05 for a twentieth of the result, not "
        f"{quoted(value)}"
    )


def _alike(window: WindowJoin, value: Any) -> tuple[float, float]:
    """Return 0 for the side whose clusters have one value, because it owns the value column."""
    if value is None:
        return 1.0, 1.0
    if not isinstance(value, str):
        raise TidegateError(
            f"value must be the name of a column of the result, not {quoted(value)}"
        )
    check_column(window.result_schema, value, "the result")
    of_left = window.names.index(value) < len(window.left.schema)
    return (1.0, 0.0) if of_left else (0.0, 1.0)


def is_learned(spec: SampledJoin) -> bool:
    """True if the model is learned while running."""
    policy = spec.window.policy
    if isinstance(policy, ByFrequency):
        return policy.learned
    return isinstance(policy, Age) and policy.curve is None
