"""An exact ranking of large memories that is cheap enough to compare with.

The plain exact ranking computes the ranks of all rows for each choice. This one computes them once
in a block of choices, and remembers the rows that rank lowest. Within a block it ranks only these
and the rows that came since. Another row is missed only if its rank falls below those of all
remembered rows within one block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core.caching import NullCache

from tidegate.joins.window import loop, slices
from tidegate.kernel.compiling import inlined, inner
from tidegate.kernel.heap import before, push, put, sift_down
from tidegate.kernel.layout import BY_SCORE, LAST, Core, Rules

#: The limit of exact ranking for blocks of one choice.
PLAIN = 2**61


def rank_in_blocks() -> None:
    """Let this process rank in blocks, with a limit of `PLAIN` and the choices in a block less one.

    Call this before a join is compiled. The process compiles joins for itself, which takes a while.
    """
    if slices._scan is not _scan:
        slices._scan = _scan
        for entry in (loop._LOOPS[BY_SCORE], loop.advance):
            compiled: Any = entry
            assert not compiled.signatures, "a join was compiled before"
            compiled._cache = NullCache()


@inlined
def _remember(core: Core, rules: Rules, pool: int, side: int) -> None:
    """Rank all rows of a side, and remember those that rank lowest."""
    own, kept, nodes = core.pools[pool], core.tops[pool], core.nodes[side]
    slices._prune(core.slots, nodes, core.slices[side, 0])
    for i in range(core.slices[side, 0].length):
        # The top of the heap is the remembered row that ranks highest.
        rank, seq = -slices._rank_now(core, rules, nodes[i].item), -nodes[i].seq
        if own.tops < kept.shape[0]:
            push(kept, own.tops, rank, seq, nodes[i].item)
            own.tops += 1
        elif before(kept[0].rank, kept[0].seq, rank, seq):
            put(kept, 0, rank, seq, nodes[i].item)
            sift_down(kept, 0, own.tops)


@inner
def _scan(core: Core, rules: Rules, pool: int) -> tuple[int, float]:
    """Return the lowest row of a pool, and its rank."""
    own, kept = core.pools[pool], core.tops[pool]
    first, last = slices._sides(rules, pool)
    best, best_rank, best_seq = -1, np.inf, LAST
    while best < 0:
        if own.uses == 0:
            own.tops, own.at = 0, core.scalars[0].seq
            for side in range(first, last):
                _remember(core, rules, pool, side)
        for i in range(own.tops):
            slot, seq = kept[i].item, -kept[i].seq
            if core.slots[slot].seq == seq:
                rank = slices._rank_now(core, rules, slot)
                if best < 0 or before(rank, seq, best_rank, best_seq):
                    best, best_rank, best_seq = slot, rank, seq
        for side in range(first, last):
            nodes, i = core.nodes[side], core.slices[side, 0].length - 1
            while i >= 0 and nodes[i].seq >= own.at:
                slot, seq = nodes[i].item, nodes[i].seq
                if core.slots[slot].seq == seq:
                    rank = slices._rank_now(core, rules, slot)
                    if best < 0 or before(rank, seq, best_rank, best_seq):
                        best, best_rank, best_seq = slot, rank, seq
                i -= 1
        own.uses += 1
        if best < 0 or own.uses > rules.exact_limit - PLAIN:
            own.uses = 0
    return best, best_rank
