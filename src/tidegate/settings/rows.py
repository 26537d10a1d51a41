"""Windows that count rows."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.errors import TidegateError
from tidegate.settings.values import is_whole, quoted

#: The largest count of rows.
MOST = 2**60


@dataclass(frozen=True)
class Rows:
    """A window of the last `n` rows.

    In `tidegate.constrained_join` and `tidegate.cql`, a stream's window holds its own last `n`
    rows. The other joins measure windows in the numbers of the time column, so there the time
    column must be a sequence number: two rows join if their numbers are less than `n` apart.
    Number each stream by itself for windows of each stream's rows, or both streams together for
    windows of all rows.

    Parameters
    ----------
    n
        The number of rows.
    by
        A column: the window then holds the last `n` rows of each of its values. Only for
        `tidegate.constrained_join`.

    Examples
    --------
    >>> import tidegate as tg
    >>> left = {"key": ["a", "b", "b"], "number": [0, 1, 2]}
    >>> right = {"key": ["b", "a", "a"], "number": [0, 1, 2]}
    >>> tg.join(left, right, on="key", time="number", within=tg.Rows(2)).results
    2
    """

    n: int
    by: str | None = None

    def __post_init__(self) -> None:
        """Check the parameters."""
        if not is_whole(self.n) or not 1 <= self.n <= MOST:
            raise TidegateError(
                f"a window of rows needs a positive whole number up to 2**60, not {quoted(self.n)}"
            )
        if self.by is not None and not isinstance(self.by, str):
            raise TidegateError(f"a window of rows is by one column name, not {quoted(self.by)}")
