"""The directed join graph of a constrained join: covers and walks.

Section 3.1 of Babu, Srivastava, Widom, *Exploiting k-Constraints*.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Edge:
    """A many-one join: a parent row joins at most one child row."""

    parent: int
    child: int
    parent_keys: tuple[str, ...]
    child_keys: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """The directed join graph (section 3.1)."""

    streams: int
    edges: tuple[Edge, ...]
    reach: tuple[frozenset[int], ...] = field(init=False)

    def __post_init__(self) -> None:
        """Compute which streams can be reached from which."""
        found = []
        for start in range(self.streams):
            seen, todo = {start}, [start]
            while todo:
                at = todo.pop()
                new = {e.child for e in self.edges if e.parent == at} - seen
                seen |= new
                todo += new
            found.append(frozenset(seen))
        object.__setattr__(self, "reach", tuple(found))

    @property
    def connected(self) -> bool:
        """True if the joins connect all streams."""
        seen, todo = {0}, [0]
        while todo:
            at = todo.pop()
            for e in self.edges:
                for one, other in ((e.parent, e.child), (e.child, e.parent)):
                    if one == at and other not in seen:
                        seen.add(other)
                        todo.append(other)
        return len(seen) == self.streams

    @property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """Groups of streams that reach each other and that no other stream reaches.

        A minimal cover has exactly one stream of each group.
        """
        groups = []
        for s in range(self.streams):
            above = {r for r in range(self.streams) if s in self.reach[r]}
            if above <= self.reach[s] and s == min(above):
                groups.append(tuple(sorted(above)))
        return tuple(groups)

    @property
    def minimal_covers(self) -> tuple[tuple[int, ...], ...]:
        """All minimal covers (section 3.1); exactly one if there are no cycles (theorem 3.4)."""
        return tuple(tuple(sorted(chosen)) for chosen in itertools.product(*self.sources))

    def parents(self, stream: int) -> tuple[int, ...]:
        """Return the joins in which a stream is the child."""
        return tuple(i for i, e in enumerate(self.edges) if e.child == stream)

    def children(self, stream: int) -> tuple[int, ...]:
        """Return the joins in which a stream is the parent."""
        return tuple(i for i, e in enumerate(self.edges) if e.parent == stream)

    def walk(self, stream: int) -> tuple[int, ...]:
        """Return the joins below a stream, each after a join that leads to its parent."""
        seen, order, todo = {stream}, [], [stream]
        while todo:
            at = todo.pop(0)
            for i in self.children(at):
                order.append(i)
                child = self.edges[i].child
                if child not in seen:
                    seen.add(child)
                    todo.append(child)
        return tuple(order)

    def is_tree(self, stream: int) -> bool:
        """True if one path leads to every stream below (else appendices C and D apply)."""
        return len(self.walk(stream)) == len(self.reach[stream]) - 1
