"""What the sub-commands share: how they are asked to stop."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

WAITS = """
import os
from deploy.admin.commands._options import stop_on_signal
stop = stop_on_signal()
print("waits", flush=True)
while not stop.wait(0.0001):
    pass
print("ends", flush=True)
os._exit(0)  # an interpreter that is being taken down has no handlers any more
"""


@pytest.mark.parametrize("attempt", range(3))
def test_any_number_of_signals_at_any_time_end_a_command(attempt: int) -> None:
    """Signals come while it waits and while it handles others: it ends in order, and does not wait for itself."""
    del attempt
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert "waits" == command.stdout.readline().strip()
        try:
            for number in range(400):
                command.send_signal((signal.SIGTERM, signal.SIGINT)[number % 2])
            assert 0 == command.wait(60)
            assert "ends" == command.stdout.readline().strip()
        finally:
            command.kill()
