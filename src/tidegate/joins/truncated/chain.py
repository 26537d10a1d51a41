"""Chains of relations as counts, and plans with a budget for each relation.

In a chain A(J1), B(J1, J2), C(J2), each relation joins the next one (section 3.4 of paper 1: Das,
Gehrke, Riedewald). Relations that all join on one key are the chain in which both values of a row
are that key. Rows of a relation with the same values form a group: the join depends only on how
many rows of each group are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
#: How many rows of each group are kept, for each relation.
Kept = list[Counts]

#: Whole numbers below this are exact as floating point numbers.
_EXACT = 2.0**53


@dataclass(frozen=True)
class Chain:
    """The groups of each relation: their numbers of rows, and the values by which they join.

    Relation i joins relation i + 1 where ``after[i]`` of its group is ``before[i]`` of the other's.
    """

    counts: tuple[Counts, ...]
    after: tuple[Counts, ...]
    before: tuple[Counts, ...]

    @classmethod
    def of_one_key(cls, counts: Any) -> Chain:
        """Return the relations that join on one key, from counts [relation, value]."""
        every = np.asarray(counts, np.int64)
        links = (np.arange(every.shape[1]),) * (len(every) - 1)
        return cls(tuple(every), links, links)

    def results(self, kept: Sequence[Counts]) -> int:
        """Return the size of the join of the kept rows."""
        found = float(self._ending(kept)[-1].sum())
        if found < _EXACT:
            return int(found)
        ending = np.array(kept[0], object)
        for after, before, rows in zip(self.after, self.before, kept[1:], strict=True):
            sums = np.zeros(_values(after, before), object)
            np.add.at(sums, after, ending)
            ending = rows * sums[before]
        return int(ending.sum())

    def _ending(self, kept: Sequence[Counts]) -> list[Floats]:
        """Return how many results of the relations so far end in each group."""
        found = [np.asarray(kept[0], np.float64)]
        for after, before, rows in zip(self.after, self.before, kept[1:], strict=True):
            found.append(rows * _sums(after, before, found[-1]))
        return found

    def degrees(self, kept: Sequence[Counts]) -> list[Floats]:
        """Return for each group how many results one of its rows gives."""
        ends = [np.ones(len(self.counts[0]))]
        for after, before, rows in zip(self.after, self.before, kept, strict=False):
            ends.append(_sums(after, before, ends[-1] * rows))
        begins = [np.ones(len(self.counts[-1]))]
        back = zip(self.after[::-1], self.before[::-1], list(kept)[::-1], strict=False)
        for after, before, rows in back:
            begins.append(_sums(before, after, begins[-1] * rows))
        return [a * b for a, b in zip(ends, begins[::-1], strict=True)]

    def paths(self) -> Counts:
        """Return all combinations of groups that join: [combination, relation]."""
        found = np.arange(len(self.counts[0]))[:, np.newaxis]
        for after, before in zip(self.after, self.before, strict=True):
            order = np.argsort(before, kind="stable")
            wanted = after[found[:, -1]]
            first = np.searchsorted(before[order], wanted)
            many = np.searchsorted(before[order], wanted, side="right") - first
            at = np.repeat(np.arange(len(found)), many)
            step = np.arange(len(at)) - np.repeat(np.cumsum(many) - many, many)
            found = np.column_stack([found[at], order[first[at] + step]])
        return found

    def part(self, chosen: Sequence[NDArray[Any]]) -> Chain:
        """Return the chain of some groups of each relation."""
        after, before = [], []
        for i, (left, right) in enumerate(zip(self.after, self.before, strict=True)):
            some, others = left[chosen[i]], right[chosen[i + 1]]
            number = np.unique(np.concatenate([some, others]), return_inverse=True)[1]
            after.append(number[: len(some)])
            before.append(number[len(some) :])
        counts = tuple(rows[which] for rows, which in zip(self.counts, chosen, strict=True))
        return Chain(counts, tuple(after), tuple(before))


def _values(after: Counts, before: Counts) -> int:
    return 1 + max(int(after.max(initial=-1)), int(before.max(initial=-1)))


def _sums(values: Counts, others: Counts, weights: Floats) -> Floats:
    """Return for each of `others` the sum of the weights of the same value."""
    sums: Floats = np.bincount(values, weights, _values(values, others)).astype(np.float64)
    return sums[others]


def ndg(chain: Chain, keep: Sequence[int]) -> Kept:
    """Return a greedy way to keep `keep[i]` rows of relation i: Node Degree Greedy, section 3.3.1.

    The relations choose in turn. Each keeps the rows with the most partners among the rows that
    the relations before it kept. With m relations, at most m times as many results as necessary
    are lost. The paper also says that two relations keep at least half of the results of the
    optimum. That does not hold: a relation may spend its budget on single rows of values that are
    slightly more frequent in the other.
    """
    kept = list(chain.counts)
    for relation, most in enumerate(keep):
        kept[relation] = _highest_degree(chain, kept, relation, most)
    return kept


def improved(chain: Chain, kept: Kept, keep: Sequence[int]) -> Kept:
    """Let the relations choose again in turn, given the others, while that adds results."""
    while True:
        better = list(kept)
        for relation, most in enumerate(keep):
            better[relation] = _highest_degree(chain, better, relation, most)
        if chain.results(better) <= chain.results(kept):
            return kept
        kept = better


def independent(chain: Chain, keep: Sequence[int]) -> Kept:
    """Return a way to keep `keep[i]` rows of relation i: the m-approximation of section 3.4.

    Each relation keeps the rows with the most partners, whatever the others keep. With m
    relations, at most m times as many results as necessary are lost.
    """
    return [_highest_degree(chain, chain.counts, i, most) for i, most in enumerate(keep)]


def _highest_degree(chain: Chain, kept: Sequence[Counts], relation: int, most: int) -> Counts:
    """Return the counts that a relation keeps if it prefers groups with many partners."""
    own, degree = chain.counts[relation], chain.degrees(kept)[relation]
    order = np.lexsort((-own, -degree))
    order = order[degree[order] > 0]
    before = np.cumsum(own[order]) - own[order]
    found: Counts = np.zeros_like(own)
    found[order] = np.clip(most - before, 0, own[order])
    return found
