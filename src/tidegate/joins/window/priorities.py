"""iJoin's priorities where they are not determined at every drop.

Each tuple has the priority that it was last given: when it came, or when all were determined anew,
which is after so many drops, or once the join's quality has fallen by some share. Quality is what
held tuples earn between two drops, by their importance, as a mean that follows the last drops.
Whether a tuple is mature is seen at every drop.
"""

from __future__ import annotations

from tidegate.kernel.compiling import inlined, inner
from tidegate.kernel.layout import DROPS, EARNED, MEAN, PEAK, TIMES, Core, Rules
from tidegate.learning.scores import SPARED, priority

#: A drop moves the mean of what is earned by this share.
_STEP = 1.0 / 16.0


@inlined
def keeps(core: Core) -> bool:
    """Whether priorities are kept, and not looked up at every drop."""
    return bool(core.priority.shape[0] > 0)


@inlined
def determine(core: Core, rules: Rules, slot: int) -> None:
    """Determine the priority of a held tuple."""
    held, now = core.slots[slot], core.clock[0]
    age, since = float(now - held.time), float(now - held.last)
    core.priority[slot] = priority(rules, held.rank, held.gain, age, since)


@inlined
def as_determined(core: Core, rules: Rules, slot: int) -> float:
    """What a held tuple is worth by its last priority."""
    immature = float(core.clock[0] - core.slots[slot].time) < rules.params[1]
    return SPARED if immature else float(core.priority[slot])


@inner
def is_due(core: Core, rules: Rules, pool: int) -> bool:
    """Count a drop; whether priorities are to be determined anew before it."""
    quality, every = core.quality[pool], rules.params[5]
    quality[MEAN] += (quality[EARNED] - quality[MEAN]) * _STEP
    quality[EARNED] = 0.0
    due = quality[TIMES] == 0.0
    if every > 0.0:
        due = due or quality[DROPS] >= every
    else:
        due = due or quality[MEAN] < (1.0 + every) * quality[PEAK]
    quality[PEAK] = quality[MEAN] if due else max(quality[PEAK], quality[MEAN])
    if due:
        quality[DROPS] = 0.0
        quality[TIMES] += 1.0
    quality[DROPS] += 1.0
    return bool(due)
