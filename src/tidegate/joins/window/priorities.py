"""The priorities of iJoin where they are not recomputed at every drop.

Each row keeps the priority that it was last given: when it came, or when all priorities were
recomputed. That happens after a number of drops, or once the join's quality has fallen by a share.
Quality is the importance that held rows earn between two drops, averaged over recent drops. Whether
a row is mature is checked at every drop.
"""

from __future__ import annotations

from tidegate.kernel.compiling import inlined, inner
from tidegate.kernel.layout import Core, Rules
from tidegate.learning.scores import priority

#: Share by which a drop moves the mean of what is earned.
_STEP = 1.0 / 16.0


@inlined
def keeps(core: Core) -> bool:
    """Return True if priorities are stored, and not recomputed at every drop."""
    return bool(core.priority.shape[0] > 0)


@inlined
def determine(core: Core, rules: Rules, slot: int) -> None:
    """Compute the priority of a held row."""
    held, now = core.slots[slot], core.clock[0]
    age, since = float(now - held.time), float(now - held.last)
    core.priority[slot] = priority(rules, held.rank, held.gain, age, since)


@inner
def is_due(core: Core, rules: Rules, pool: int) -> bool:
    """Count a drop; return True if priorities must be recomputed before it."""
    quality, every = core.quality[pool], rules.params[5]
    quality.mean += (quality.earned - quality.mean) * _STEP
    quality.earned = 0.0
    due = quality.times == 0.0
    if every > 0.0:
        due = due or quality.drops >= every
    else:
        due = due or quality.mean < (1.0 + every) * quality.peak
    quality.peak = quality.mean if due else max(quality.peak, quality.mean)
    if due:
        quality.drops = 0.0
        quality.times += 1.0
    quality.drops += 1.0
    return bool(due)
