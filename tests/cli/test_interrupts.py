from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from threading import Thread

import pytest

from tidegate.cli.interrupts import Interrupts


@pytest.fixture(autouse=True)
def _own_handler() -> Iterator[None]:
    """Set Python's own handler, whatever Spark has set for other tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert logging.root.manager.disable == logging.NOTSET
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def fail() -> None:
    raise OSError("disk full")


def play(actions: str) -> Iterator[str]:
    """Call the actions, and yield the name of each that was done."""
    with Interrupts() as interrupts:
        known = {"hold": interrupts.hold, "check": interrupts.check, "press": press, "fail": fail}
        for action in actions.split():
            known[action]()
            yield action


@pytest.mark.parametrize(
    ("actions", "done"),
    [
        ("press check", ""),
        ("hold check press check", "hold check press"),
        ("hold press", "hold press"),
        ("hold press press check", "hold press"),
    ],
    ids=["at once", "at the check", "at the end", "the second at once"],
)
def test_when_an_interrupt_takes_effect(actions: str, done: str) -> None:
    played = play(actions)
    for action in done.split():
        assert next(played) == action
    with pytest.raises(KeyboardInterrupt):
        next(played)


def test_an_error_is_not_hidden_by_an_interrupt_held_back() -> None:
    with pytest.raises(OSError, match="disk full"):
        list(play("hold press fail"))


def test_a_call_that_is_broken_off_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def call() -> None:
        try:
            press()
        except KeyboardInterrupt:
            logging.exception("KeyboardInterrupt while sending command.")
            raise

    with pytest.raises(KeyboardInterrupt), Interrupts():
        call()
    assert caplog.records == []


def test_a_handler_set_in_between_does_not_stay() -> None:
    with Interrupts() as interrupts:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        interrupts.hold()
        assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def test_other_threads_leave_the_handler_alone() -> None:
    seen: list[object] = []

    def work() -> None:
        with Interrupts() as interrupts:
            interrupts.hold()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
