"""The memory of a process is known."""

from __future__ import annotations

import sys

from gateway.memory import resident


def test_the_memory_of_this_process_is_known() -> None:
    """From Linux. On other systems it is 0."""
    assert resident() > 10 << 20 or sys.platform != "linux"
