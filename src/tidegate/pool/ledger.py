"""Account for a pool's memory while budget updates are under way.

A budget update takes effect some time after it was sent, and not in all shards of a join at once.
So at any moment a shard may hold anything between the budget it last confirmed and the largest one
sent since. The ledger adds up the largest possible amounts, and lets joins grow only into what is
left. Joins that shrink do so immediately; joins that grow wait until that is confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.engine.state_codec import check_version
from tidegate.errors import TidegateError
from tidegate.settings.values import is_whole, quoted

Shares = tuple[int, ...]
#: The version of the files of a pool; those that carry none have version 0.
UPDATE_VERSION = 1
#: By shard, the number of the last order that it is known to have followed, and its part of it.
Acknowledged = tuple[tuple[int, int], ...]


def check_update(update: Any, memory: int, shards: int | None = None) -> tuple[int, Shares]:
    """Check a budget update that was read. Return its number and its shares.

    It may divide at most the memory of the pool, or the memory the pool had when it was sent.
    """
    if isinstance(update, Mapping) and "version" in update:
        newer = "give the pool another folder"
        check_version(update["version"], UPDATE_VERSION, "a budget update of a pool", newer)
        update = {name: value for name, value in update.items() if name != "version"}
    known = isinstance(update, Mapping) and set(update) in ({"number", "shares"}, _UPDATE_FIELDS)
    shares: Any = update["shares"] if known else None
    numbers = (
        [update["number"], update.get("memory", 0), *shares] if isinstance(shares, list) else []
    )
    if not numbers or not all(is_whole(number) and 0 <= number < 2**63 for number in numbers):
        raise TidegateError(
            'a budget update of a pool must be {"number": n, "shares": [...], "memory": n} with '
            f"whole numbers, not {quoted(update)}"
        )
    if shards is not None and len(shares) != shards:
        raise TidegateError(
            f"budget update {update['number']} of a pool is for {len(shares)} shards, and the join "
            f"has {shards}: {quoted(update)}"
        )
    most = max(memory, update.get("memory", 0))
    if sum(shares) > most:
        raise TidegateError(
            f"budget update {update['number']} of a pool gives one join {sum(shares):,}, more "
            f"than all of the pool's memory, {most:,}: {quoted(update)}"
        )
    return update["number"], tuple(shares)


#: The fields of an update.
_UPDATE_FIELDS = {"number", "shares", "memory"}


@dataclass
class _Account:
    """One join: the updates not confirmed by all shards, and what each shard has confirmed."""

    weight: float
    least: int
    updates: dict[int, Shares]
    confirmed: list[tuple[int, int]]
    leaving: bool = False
    #: The shares of the latest update. `updates` no longer has it once all shards confirm it.
    last: Shares = field(default=())

    @property
    def number(self) -> int:
        return max([*self.updates, *(number for number, _ in self.confirmed)])

    @property
    def most(self) -> list[int]:
        """The most that each shard may hold, by everything that is known."""
        return [
            max([allowed, *(s[at] for number, s in self.updates.items() if number > last)])
            for at, (last, allowed) in enumerate(self.confirmed)
        ]


class AllocationLedger:
    """The accounts of joins that share a memory, each join with one or more shards."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self._accounts: dict[str, _Account] = {}

    @property
    def names(self) -> list[str]:
        """The names of the joins, without those that are leaving."""
        return [name for name, account in self._accounts.items() if not account.leaving]

    @property
    def leaving(self) -> list[str]:
        """The names of removed joins that have not given back everything."""
        return [name for name, account in self._accounts.items() if account.leaving]

    @property
    def granted(self) -> int:
        """The most that all joins together may hold now."""
        return sum(sum(account.most) for account in self._accounts.values())

    def weight(self, name: str) -> float:
        """Return a join's weight in the objective."""
        return self._accounts[name].weight

    def least(self, name: str) -> list[int]:
        """Return the least memory with which each shard can hold anything."""
        return [self._accounts[name].least] * len(self._accounts[name].confirmed)

    def latest_shares(self, name: str) -> Shares:
        """Return the shares of the latest update that was sent to a join."""
        return self._accounts[name].last

    def allowed(self, name: str) -> list[int]:
        """Return the budget that each shard last confirmed."""
        return [allowed for _, allowed in self._accounts[name].confirmed]

    def most(self, name: str) -> int:
        """Return the most that a join may hold, by everything that is known."""
        return sum(self._accounts[name].most)

    def confirmed(self, name: str) -> Acknowledged:
        """Return the latest update that each shard has confirmed, and its budget in it."""
        return tuple(self._accounts[name].confirmed)

    def open(
        self,
        name: str,
        shards: int,
        weight: float,
        least: int,
        updates: Mapping[int, Shares] | None = None,
        confirmed: Acknowledged = (),
    ) -> None:
        """Add a join whose shards hold nothing yet.

        If the join ran before, its shards may hold what they have `confirmed`, or what any
        later one of the earlier `updates` gave them.
        """
        if name in self._accounts:
            leaving = self._accounts[name].leaving
            raise TidegateError(
                f'the pool has a join "{name}" already'
                + (", which is still leaving: stop its query first" if leaving else "")
                + "; each needs a name of its own, under which its shares are kept"
                + ("" if leaving else " (to build it anew, remove it first)")
            )
        earlier = dict(updates or {})
        for shares in earlier.values():
            self._check_shards(name, len(shares), shards)
        self._check_room(name, shards * least)
        last = earlier[max(earlier)] if earlier else (0,) * shards
        known = list(confirmed or [(0, 0)] * shards)
        confirmed_by_all = min(number for number, _ in known)
        later = {number: shares for number, shares in earlier.items() if number > confirmed_by_all}
        self._accounts[name] = _Account(weight, least, later, known, last=last)

    def renew(self, name: str, shards: int, weight: float, least: int) -> None:
        """Change the settings of a join that has an account, when it is built again."""
        self._check_shards(name, len(self._accounts[name].confirmed), shards)
        self._check_room(name, shards * least)
        self._accounts[name].weight, self._accounts[name].least = weight, least

    def _check_shards(self, name: str, before: int, shards: int) -> None:
        if before != shards:
            raise TidegateError(
                f'join "{name}" had {before} shards when it last ran in this pool, and now has '
                f"{shards}; use as many, or another folder for the pool"
            )

    def _check_room(self, name: str, least: int) -> None:
        others = [
            account
            for other, account in self._accounts.items()
            if other != name and not account.leaving
        ]
        needed = least + sum(account.least * len(account.confirmed) for account in others)
        if needed > self.memory:
            raise TidegateError(
                f"a pool of {self.memory:,} is too small for {len(others) + 1} joins: their shards "
                f"need {needed:,} at the least; give it more memory, or the joins fewer shards"
            )

    def repeat_latest(self, name: str) -> tuple[int, Shares]:
        """Return a new update that repeats the latest shares, with its number."""
        account = self._accounts[name]
        number = account.number + 1
        account.updates[number] = account.last
        return number, account.last

    def assume_latest(self, name: str) -> None:
        """Only count the latest update of a join that is sure to apply it before it reads rows."""
        account = self._accounts[name]
        number = account.number
        if number:
            account.updates = {number: account.last}
            account.confirmed = [(number - 1, 0)] * len(account.confirmed)

    def leave(self, name: str) -> None:
        """Mark a join as leaving: its next update gives back everything."""
        self.check(name)
        self._accounts[name].leaving = True

    def check(self, name: str) -> None:
        """Refuse the name of a join that is not in the pool."""
        if name not in self.names:
            listed = ", ".join(f'"{each}"' for each in self.names)
            raise TidegateError(
                f'the pool has no join "{name}"; it has {listed or "none"}'
                + (" (it is leaving already)" if name in self.leaving else "")
            )

    def close(self, name: str) -> None:
        """Delete the account of a leaving join that no longer runs."""
        if name in self._accounts and self._accounts[name].leaving:
            del self._accounts[name]

    def confirm(self, name: str, shard: int, number: int, allowed: int) -> Acknowledged:
        """Record which update a shard has applied, and its budget.

        If a leaving join has now given back everything, delete its account and return what its
        shards confirmed. Otherwise return ().
        """
        account = self._accounts.get(name)
        if account is None or number < account.confirmed[shard][0]:
            return ()
        account.confirmed[shard] = (number, allowed)
        confirmed_by_all = min(number for number, _ in account.confirmed)
        account.updates = {
            n: shares for n, shares in account.updates.items() if n > confirmed_by_all
        }
        if account.leaving and not any(account.most):
            del self._accounts[name]
            return tuple(account.confirmed)
        return ()

    def updates(self, targets: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, Shares]]:
        """Return numbered updates that bring joins as near to their targets as is safe now."""
        most = {name: account.most for name, account in self._accounts.items()}
        wanted = {
            name: [0] * len(most[name]) if account.leaving else list(targets[name])
            for name, account in self._accounts.items()
            if account.leaving or name in targets
        }
        # After a restart the updates may sum to more than the memory: shards hold one of them, but
        # it is not known which. Nobody may grow until shards have confirmed.
        unknown = self.granted > self.memory
        free = max(self.memory - self.granted, 0)
        growth = sum(
            max(w - m, 0) for name in wanted for w, m in zip(wanted[name], most[name], strict=True)
        )
        part = min(free / growth, 1.0) if growth else 0.0
        found: dict[str, tuple[int, Shares]] = {}
        for name, shares in wanted.items():
            account = self._accounts[name]
            now = tuple(
                min(w, last if unknown else m + int(max(w - m, 0) * part))
                for w, m, last in zip(shares, most[name], account.last, strict=True)
            )
            if now != account.last:
                number = account.number + 1
                account.updates[number] = account.last = now
                found[name] = (number, now)
        return found
