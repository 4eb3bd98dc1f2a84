"""What `optimize` says while it works, and that Ctrl-C ends it.

Ctrl-C without a signal: OpenVINO, which tests before this one use, may leave a process a stack for signals that is not
there any more, and the kernel ends it. tests/integration/optimize sends real ones.
"""

from __future__ import annotations

import _thread
import contextlib
import signal

import pytest

from deploy.cli.commands.optimize import Screen


def test_an_interrupt_that_a_library_lost_ends_the_work_at_its_next_line() -> None:
    """Native code that calls Python drops the exception; the former handler is there again afterwards."""
    before, screen = signal.getsignal(signal.SIGINT), Screen()

    def work() -> None:
        with screen.interruptible():
            screen.say("exporting")
            with contextlib.suppress(KeyboardInterrupt):
                _thread.interrupt_main()
            screen.progress("judging")
            raise AssertionError("the work goes on")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert before is signal.getsignal(signal.SIGINT)


def test_an_interrupt_in_the_last_step_is_not_lost() -> None:
    """Nothing is registered after it."""
    screen = Screen()

    def work() -> None:
        with screen.interruptible(), contextlib.suppress(KeyboardInterrupt):
            _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        work()
