"""A table of links that may differ after a restart.

A restart with another table ends the links that are gone, and begins the new ones, just after the
newest row that was read before it. A link that is in both tables goes on as if nothing had
happened; only its end may differ. So the state has an identity of each link, and the time since
which it is active.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.joins.star.relation import FactIndex, Known
from tidegate.joins.star.spec import StarJoin
from tidegate.settings.columns import hash_columns


class TableLinks:
    """The links of one engine: their identities, and since when each is active.

    Parameters
    ----------
    spec
        The join.
    known
        All links of the table.
    numbers
        Those of this engine, among all.
    digest
        The hash of the table's content.
    """

    def __init__(
        self, spec: StarJoin, known: Known, numbers: NDArray[np.int64], digest: str
    ) -> None:
        self._spec, self._known, self._numbers = spec, known, numbers
        self.digest = digest
        #: True if the table has differed since the query began.
        self.has_changed = False
        rows = known.rows
        until = (spec.relation.interval or (None, None))[1]
        named = [rows.column(name) for name in rows.schema.names if name != until]
        self._which = hash_columns(named, rows.num_rows, exact=True)[numbers]
        self.since = known.begin[numbers]

    @property
    def nbytes(self) -> int:
        """Bytes of a record."""
        return 16 * len(self._which)

    def record(self) -> pa.RecordBatch:
        """Return the links as a record batch."""
        return pa.record_batch([pa.array(self._which), pa.array(self.since)], ["which", "since"])

    def follow(self, record: pa.RecordBatch, clock: Any) -> None:
        """Go on from the links of a record: all others begin just after `clock`."""
        which, since = (column.to_numpy() for column in record.columns)
        order = np.argsort(which)
        which, since = which[order], since[order]
        at = np.searchsorted(which, self._which)
        found = at < len(which)
        found[found] = which[at[found]] == self._which[found]
        began = np.maximum(self.since, _after(clock))
        began[found] = since[at[found]]
        self.since = began

    def index(self, keys: Sequence[NDArray[np.uint64]]) -> FactIndex:
        """Index the links, and keys of each stream that may have lost their links."""
        index = FactIndex(len(self._spec.streams), self._spec.unit.dtype)
        own = [hashes[self._numbers] for hashes in self._known.keys]
        index.add(own, self.since, self._known.end[self._numbers])
        for stream, lost in enumerate(keys):
            index.know(stream, lost)
        return index


def _after(time: Any) -> Any:
    """Return the next time that can be told apart from this one."""
    return np.nextafter(time, np.inf) if time.dtype.kind == "f" else time + 1
