"""Delay Ctrl-C until no call into Spark is running.

Spark's own handler calls into the JVM at any point of the program. This breaks a running call and
prints pages of tracebacks.
"""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """A context manager that turns Ctrl-C into a quiet interrupt, from `hold` on only in `check`.

    A second interrupt takes effect immediately. On exit, a delayed interrupt takes effect, and the
    previous handler is restored, even if Spark has set its own in between. Outside the main thread,
    where Python handles no signals, this class does nothing.
    """

    def __init__(self) -> None:
        self._pending = False
        self._at_once = True
        self._handles = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        self._handle()
        return self

    def hold(self) -> None:
        """From now on, delay interrupts until `check`."""
        self._at_once = False
        self._handle()

    def check(self) -> None:
        """Raise a delayed interrupt."""
        if self._pending:
            raise KeyboardInterrupt

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        logging.disable(logging.NOTSET)
        if self._handles:
            signal.signal(signal.SIGINT, self._before or signal.default_int_handler)
        if kind is None:
            self.check()

    def _handle(self) -> None:
        if self._handles:
            signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._at_once or self._pending:
            # The interrupted call into the JVM would log a traceback.
            logging.disable(logging.CRITICAL)
            raise KeyboardInterrupt
        self._pending = True
