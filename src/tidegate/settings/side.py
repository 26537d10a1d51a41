"""One input of a join."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tidegate.settings.schedules import Schedule


@dataclass(frozen=True)
class Side:
    """One of the two inputs."""

    schema: pa.Schema
    keys: tuple[str, ...]
    time: str
    windows: Schedule
    importance: str | None

    @property
    def window(self) -> int | float | None:
        """The longest window that a tuple may have; None if it may be unbounded."""
        lengths = [step.value for step in self.windows]
        return None if None in lengths else max(lengths)
