"""One input stream of a join."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tidegate.settings.schedules import Schedule


@dataclass(frozen=True)
class Side:
    """An input stream: its columns, keys, time column and windows."""

    schema: pa.Schema
    keys: tuple[str, ...]
    time: str
    windows: Schedule
    importance: str | None

    @property
    def window(self) -> int | float | None:
        """The longest window of any row; None if a window is unbounded."""
        lengths = [step.value for step in self.windows]
        return None if None in lengths else max(lengths)
