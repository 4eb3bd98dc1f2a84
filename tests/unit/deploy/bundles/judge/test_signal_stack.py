"""What a library does with the stack for signals does not stay."""

from __future__ import annotations

import ctypes
import threading

from deploy.bundles.judge.signal_stack import _Stack, former_signal_stack


def test_the_thread_has_the_signal_stack_it_had_before() -> None:
    """Or none."""
    sigaltstack = ctypes.CDLL(None).sigaltstack
    memory = ctypes.create_string_buffer(65_536)
    found: list[int | None] = []

    def look() -> None:
        now = _Stack()
        sigaltstack(None, ctypes.byref(now))
        found.append(now.address)

    def work() -> None:
        look()
        with former_signal_stack():
            sigaltstack(ctypes.byref(_Stack(ctypes.addressof(memory), 0, len(memory))), None)
            look()
        look()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    before, inside, after = found
    assert inside == ctypes.addressof(memory)
    assert after == before != inside
