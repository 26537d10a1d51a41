"""What a command shows while it works: a live display on a terminal, else plain lines.

All of it goes to stderr, so that stdout has the outcome and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Step:
    """A piece of work with a number of parts."""

    def __init__(self, console: Console, title: str, total: int, progress: Progress | None) -> None:
        self._console = console
        self._title = title
        self._total = total
        self._progress = progress
        self._done = 0
        if progress is not None:
            self._task = progress.add_task(escape(title), total=total, note="")

    def done(self, note: str = "", *, line: bool = True) -> None:
        """One more part is done; where lines are printed, this one is only if `line`."""
        self._done += 1
        if self._progress is not None:
            self._progress.update(self._task, completed=self._done, note=escape(note))
        elif line:
            width = len(str(self._total))
            say(self._console, f"{self._title} {self._done:>{width}}/{self._total}  {note}")


class Screen:
    """Where progress is shown."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        #: Whether there is a terminal to redraw.
        self.live = self.console.is_terminal

    def say(self, text: str) -> None:
        """A line that stays."""
        say(self.console, text)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Something that takes a while, of which nothing is known until it is done."""
        if self.live:
            with self.console.status(escape(text)):
                yield
        else:
            self.say(text)
            yield

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Step]:
        """A piece of work with a number of parts."""
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
    """Print a line as it is."""
    console.print(text, markup=False, soft_wrap=True)
