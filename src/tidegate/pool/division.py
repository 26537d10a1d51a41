"""Divide a pool's memory between joins and their shards, by what their shards have reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.pool.allocation import allocate, in_whole
from tidegate.pool.ledger import Shares
from tidegate.pool.reports import Reports

#: New shares must raise recall by at least this much, or results by this share of all results.
_WORTHWHILE = 0.005


@dataclass(frozen=True)
class Claim:
    """The facts about one join that the division of memory needs.

    Attributes
    ----------
    weight
        The join's weight in the objective.
    least
        The least memory with which each shard can hold anything.
    current
        The shares of the latest budget update, by shard.
    reports
        What its shards have reported.
    """

    weight: float
    least: Sequence[int]
    current: Shares
    reports: Reports


def divide(claims: Mapping[str, Claim], memory: int, objective: str) -> dict[str, list[int]]:
    """Return how much memory each shard of each join should hold.

    A join whose curve is not known yet gets a share by its weight, or what it had when it last ran.
    The rest is divided between the other joins.
    """
    curves = {name: claim.reports.curve for name, claim in claims.items()}
    unknown = [name for name, curve in curves.items() if curve is None]
    wanted: dict[str, float] = {}
    if unknown and all(any(claim.current) for claim in claims.values()):
        wanted = {name: float(sum(claims[name].current)) for name in unknown}
    elif unknown:
        weights = sum(claim.weight for claim in claims.values())
        wanted = {name: memory * claims[name].weight / weights for name in unknown}
    known = {name: curve for name, curve in curves.items() if curve is not None}
    rest = memory - sum(wanted.values())
    if known and rest > 0:
        weighed = [claims[name].weight for name in known]
        shares = allocate(list(known.values()), weighed, rest, objective)
        wanted |= dict(zip(known, shares, strict=True))
    least = [sum(claim.least) for claim in claims.values()]
    whole = in_whole([wanted.get(name, 0.0) for name in claims], memory, least)
    found = {name: _in_shards(claims[name], own) for name, own in zip(claims, whole, strict=True)}
    if not unknown and not _is_worthwhile(claims, found, memory, objective):
        return {name: list(claim.current) for name, claim in claims.items()}
    return found


def _in_shards(claim: Claim, memory: int) -> list[int]:
    """Divide a join's memory between its shards, to find the most results."""
    least, curves = list(claim.least), claim.reports.curves
    if memory == 0:
        return [0] * len(least)
    shares = [memory / len(least)] * len(least)
    if curves is not None and len(curves) > 1:
        shares = allocate(curves, [1.0] * len(curves), memory, "sum")
        # A shard with nothing worth holding may get nothing; its shadow joins show when it needs
        # memory.
        least = [0 if each == 1 else each for each in least]
    elif sum(claim.current) == memory:
        return list(claim.current)
    return in_whole(shares, memory, least)


def _is_worthwhile(
    claims: Mapping[str, Claim], shares: Mapping[str, Sequence[int]], memory: int, objective: str
) -> bool:
    """Return True if new shares promise enough more than the current ones."""
    old = {name: claim.current for name, claim in claims.items()}
    if any(sum(each) == 0 for each in old.values()):
        return True
    before, after = (_promise(claims, each, objective) for each in (old, shares))
    margin = _WORTHWHILE if objective == "min" else _WORTHWHILE * before
    # Memory that a removed join left is always handed out.
    return after > before + margin or sum(map(sum, old.values())) < memory


def _promise(
    claims: Mapping[str, Claim], shares: Mapping[str, Sequence[int]], objective: str
) -> float:
    """Return the value of the objective with these shares, by the curves."""
    found = []
    for name, claim in claims.items():
        quality, curve = claim.reports.predicted(shares[name]), claim.reports.curve
        assert quality is not None
        assert curve is not None
        least = objective == "min"
        found.append(quality / claim.weight if least else quality * curve.results * claim.weight)
    return min(found) if objective == "min" else sum(found)
