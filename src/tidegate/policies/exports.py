"""The policies' classes, listed for editors and type checkers.

At run time `tidegate.policies` finds every policy by itself. Editors and type checkers only read
sources: they complete ``tg.Prob`` because it is listed here. A test demands a line for each policy
in the table of `docs/howto/pick_a_policy.md`.
"""

from tidegate.policies.age import Age as Age
from tidegate.policies.auto import Auto as Auto
from tidegate.policies.dgl import DGL as DGL
from tidegate.policies.dimpprob import DimpProb as DimpProb
from tidegate.policies.fifo import Fifo as Fifo
from tidegate.policies.greedy import Greedy as Greedy
from tidegate.policies.greedy_dual import GreedyDual as GreedyDual
from tidegate.policies.heeb import Heeb as Heeb
from tidegate.policies.ijoin import IJoin as IJoin
from tidegate.policies.life import Life as Life
from tidegate.policies.prob import Prob as Prob
from tidegate.policies.rand import Rand as Rand
from tidegate.policies.simp import Simp as Simp
from tidegate.policies.simpprob import SimpProb as SimpProb
from tidegate.policies.size import Size as Size
from tidegate.policies.until_expiry import UntilExpiry as UntilExpiry
