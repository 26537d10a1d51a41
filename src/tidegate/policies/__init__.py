"""Policies: each ranks rows in its own way. One file per policy.

Every module of this folder is imported below, and defining a policy's class registers it. So a new
file is all that a new policy needs. `exports` lists the policies for editors and type checkers.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidegate.errors import TidegateError
from tidegate.policies.base import Arrivals as Arrivals
from tidegate.policies.base import ByFrequency as ByFrequency
from tidegate.policies.base import Policy as Policy
from tidegate.policies.base import ranking
from tidegate.policies.base import ranks_of as ranks_of
from tidegate.policies.own_score import HeldRow as HeldRow
from tidegate.settings.checks import nearest
from tidegate.settings.values import quoted

if TYPE_CHECKING:
    from tidegate.policies.exports import *  # noqa: F403

for _module in pkgutil.iter_modules(__path__):  # noqa: F405
    importlib.import_module(f"{__name__}.{_module.name}")

#: tidegate's own policies by name, in alphabetical order.
POLICIES: dict[str, type[Policy]] = {
    name: kind
    for name, kind in sorted(Policy.registered.items())
    if kind.__module__.startswith(f"{__name__}.")
}
globals().update({kind.__name__: kind for kind in POLICIES.values()})


def policy_of(choice: object, known: Mapping[str, type[Policy]] = POLICIES) -> Policy:
    """Return the policy for a name, or the policy itself if an instance was given.

    Parameters
    ----------
    choice
        A policy's name such as ``"prob"``, or an instance such as ``Prob()``.
    known
        The policies that error messages offer. Any registered policy may be named.

    Raises
    ------
    TidegateError
        If the name is unknown, or if the policy does not say what it ranks by.
    """
    if isinstance(choice, Policy):
        return ranking(choice)
    names = ", ".join(f'"{name}"' for name in known)
    if isinstance(choice, type) and issubclass(choice, Policy):
        raise TidegateError(f"policy must be an instance: write {choice.__name__}()")
    if not isinstance(choice, str):
        raise TidegateError(
            f"policy must be one of {names} or a policy such as tg.Prob(), not {quoted(choice)}"
        )
    if choice not in Policy.registered:
        hint = nearest(choice, known)
        raise TidegateError(f"policy must be one of {names}, not {quoted(choice)}{hint}")
    try:
        return ranking(Policy.registered[choice]())
    except TypeError:
        raise TidegateError(
            f'policy "{choice}" needs settings; pass an instance of it instead of its name'
        ) from None
