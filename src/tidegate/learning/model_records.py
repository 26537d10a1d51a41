"""Turn ghosts and what was learned from them into parts of a state record, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

#: The arrays that hold what ghosts have taught.
_LEARNED = ("worth", "cells", "returns")


def model_parts(core: Any, ghost_fields: Sequence[str]) -> dict[str, pa.RecordBatch]:
    """Return the given fields of all ghosts, their trails, and what was learned from them."""
    ghosts = core.ghosts[: core.scalars[0].ghosts]
    trails = core.trails[: len(ghosts)]
    trails = trails[_passed(ghosts[: len(trails)], core.trails.shape[1])]
    return {
        "ghosts": _columns_of(ghosts, ghost_fields),
        "trails": _columns_of(trails, ("level", "found")),
    } | {name: _sparse(getattr(core, name)) for name in _LEARNED}


def load_model(core: Any, parts: Mapping[str, pa.RecordBatch]) -> None:
    """Load the parts that `model_parts` returned; the index of ghosts is not built."""
    for name in _LEARNED:
        places, values = (column.to_numpy() for column in parts[name].columns)
        getattr(core, name)[:] = 0.0
        getattr(core, name).reshape(-1)[places] = values
    ghosts = parts["ghosts"]
    n = ghosts.num_rows
    core.scalars[0].ghosts = n
    for name in ghosts.schema.names:
        core.ghosts[name][:n] = ghosts.column(name).to_numpy()
    kept = core.trails[:n]
    passed = _passed(core.ghosts[: len(kept)], core.trails.shape[1])
    for name in kept.dtype.names or ():
        kept[name][passed] = parts["trails"].column(name).to_numpy()


def _passed(ghosts: NDArray[Any], marks: int) -> NDArray[np.bool_]:
    """Return, by ghost and mark, whether the ghost has passed the mark."""
    return np.arange(marks) < ghosts["marks"][:, np.newaxis]


def _columns_of(rows: NDArray[Any], names: Sequence[str]) -> pa.RecordBatch:
    """Return fields of a structured array as columns."""
    return pa.record_batch([pa.array(rows[name].copy()) for name in names], list(names))


def _sparse(array: NDArray[np.float64]) -> pa.RecordBatch:
    """Return the nonzero values of an array, and their places."""
    flat = array.ravel()
    places = np.flatnonzero(flat)
    return pa.record_batch([pa.array(places), pa.array(flat[places])], ["place", "value"])
