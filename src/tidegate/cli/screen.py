"""Show a command's progress: a live display on a terminal, plain lines elsewhere.

Everything goes to stderr, so that stdout has only the outcome.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Step:
    """A task with a known number of parts."""

    def __init__(self, console: Console, title: str, total: int, progress: Progress | None) -> None:
        self._console = console
        self._title = title
        self._total = total
        self._progress = progress
        self._done = 0
        if progress is not None:
            self._task = progress.add_task(escape(title), total=total, note="")

    def done(self, note: str = "", *, line: bool = True) -> None:
        """Mark one more part as done; without a terminal, print a line only if `line` is true."""
        self._done += 1
        if self._progress is not None:
            self._progress.update(self._task, completed=self._done, note=escape(note))
        elif line:
            width = len(str(self._total))
            say(self._console, f"{self._title} {self._done:>{width}}/{self._total}  {note}")


class Screen:
    """The place where a command shows its progress."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        #: True if there is a terminal to redraw.
        self.live = self.console.is_terminal

    def say(self, text: str) -> None:
        """Print a line that stays."""
        say(self.console, text)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show a text during a task of unknown length."""
        if self.live:
            with self.console.status(escape(text)):
                yield
        else:
            self.say(text)
            yield

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Step]:
        """Show the progress of a task with a known number of parts."""
        if not self.live:
            yield Step(self.console, title, total, None)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self.console) as progress:
            yield Step(self.console, title, total, progress)


def say(console: Console, text: str) -> None:
    """Print a line without interpreting markup."""
    console.print(text, markup=False, soft_wrap=True)
