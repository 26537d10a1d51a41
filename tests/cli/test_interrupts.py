from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from threading import Thread

import pytest

from tidegate.cli.interrupts import Interrupts


@pytest.fixture(autouse=True)
def _own_handler() -> Iterator[None]:
    """Python's own handler, whatever Spark has set for the other tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert logging.root.manager.disable == logging.NOTSET
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_at_first_an_interrupt_takes_effect_at_once_and_nothing_is_logged() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts():
        try:
            press()
        finally:
            assert logging.root.manager.disable == logging.CRITICAL


def test_a_held_one_waits_for_the_check() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        interrupts.hold()
        interrupts.check()
        press()
        reached = True
        interrupts.check()
        pytest.fail("the check let it pass")
    assert reached


def test_a_held_one_takes_effect_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        interrupts.hold()
        press()


def test_a_second_one_takes_effect_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        interrupts.hold()
        press()
        press()
        pytest.fail("the second was held too")


def test_an_error_is_not_hidden_by_a_held_one() -> None:
    with pytest.raises(ZeroDivisionError), Interrupts() as interrupts:
        interrupts.hold()
        press()
        _ = 1 // 0


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
