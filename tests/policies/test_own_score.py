"""A policy may rank by a compiled formula of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import tidegate as tg
from tidegate import conformance
from tidegate.policies import HeldRow
from tidegate.policies.base import Ranks, Times
from tidegate.policies.own_score import Params, compiled_score
from tidegate.streams import zipf


@dataclass(frozen=True)
class Used(tg.Policy):
    """Least frequently used with aging."""

    name: ClassVar[str] = "used"
    ranks: ClassVar[Ranks] = "score"

    power: float = 1.0

    def params(self, times: Times) -> tuple[float, ...]:
        return (self.power,)

    @staticmethod
    def score(row: HeldRow, params: Params) -> float:
        return float((1.0 + row.matches) / (1.0 + row.age) ** params[0])


def joined(policy: Any, memory: int) -> int:
    left, right = zipf(6_000, domain=100, seed=3)
    rules: dict[str, Any] = {"on": "key", "time": "time", "within": 1_500, "memory": memory}
    found: int = tg.join(left, right, **rules, policy=policy).results
    return found


@pytest.mark.parametrize("memory", [200, 500])
def test_rows_that_found_results_stay(memory: int) -> None:
    """On both sides of the limit up to which moving ranks are exact."""
    assert joined(Used(), memory) > 1.5 * joined("rand", memory)


def test_settings_reach_the_formula() -> None:
    """Without ageing, the rows that were used most stay for good."""
    assert joined(Used(0.0), 200) != joined(Used(), 200)


def test_it_conforms() -> None:
    conformance.check(Used())


def test_functions_with_the_same_code_are_compiled_once() -> None:
    def made(factor: float) -> Any:
        return lambda row, params: factor * row.age

    assert compiled_score("one", made(2.0)) == compiled_score("two", made(2.0))
    assert compiled_score("one", made(2.0)) != compiled_score("three", made(3.0))


def with_score(score: Any, **attributes: Any) -> tg.Policy:
    kind: Any = type("Tried", (tg.Policy,), {"name": "tried", "ranks": "score", "score": score})
    for name, value in attributes.items():
        setattr(kind, name, value)
    return dataclass(frozen=True)(kind)()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("score", "attributes", "message"),
    [
        (lambda self, row: 1.0, {}, "must have a static method score.*write @staticmethod"),
        (staticmethod(lambda row: 1.0), {}, "cannot be compiled.*a row and a tuple of six"),
        (staticmethod(lambda row, params: "high"), {}, "cannot be compiled"),
        (staticmethod(lambda row, params: row.colour), {}, "cannot be compiled"),
        (staticmethod(lambda row, params: 1.0), {"ranks": "row"}, "ranks all rows alike"),
        (
            staticmethod(lambda row, params: 1.0),
            {"ranks": "row", "order_weight": 1.0},
            'write ranks = "score"',
        ),
        (
            staticmethod(lambda row, params: 1.0),
            {"params": lambda self, times: (1.0,) * 7},
            "has 7 params; a formula takes 6 at most",
        ),
        (
            staticmethod(lambda row, params: 1.0),
            {"params": lambda self, times: (math.nan,)},
            "params of policy tried must be numbers, not nan",
        ),
    ],
)
def test_a_formula_that_cannot_work_is_refused(
    score: Any, attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(tg.TidegateError, match=message):
        joined(with_score(score, **attributes), 10)
