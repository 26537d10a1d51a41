"""Ctrl-C between calls into Spark, and not in the midst of one.

Spark's own handler calls into the JVM at whatever point the program is, which breaks a call that
is under way and ends in pages of tracebacks.
"""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """Within `with`, an interrupt breaks off quietly; after `hold`, only at the next `check`.

    A second one takes effect at once. At the end, what was held back takes effect, and the handler
    that was there before comes back, even where Spark has set its own in between. Outside the main
    thread, where Python handles no signals, nothing is done.
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
        """From now on, wait for `check`."""
        self._at_once = False
        self._handle()

    def check(self) -> None:
        """Take an interrupt that was held back."""
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
            # The call into the JVM that is broken off here would log it with a traceback.
            logging.disable(logging.CRITICAL)
            raise KeyboardInterrupt
        self._pending = True
