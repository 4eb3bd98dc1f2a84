"""What the sub-commands share: how they are asked to stop."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.waiting import LIMIT_S

WAITS = """
import os
from deploy.cli.commands._options import stop_on_signal
stop = stop_on_signal()
print("waits", flush=True)
while not stop.wait(0.0001):
    pass
print("ends", flush=True)
os._exit(0)  # an interpreter that is being taken down has no handlers any more
"""


def test_any_number_of_signals_at_any_time_end_a_command() -> None:
    """Signals come while it waits and while it handles others: it ends in order, and does not wait for itself."""
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert "waits" == command.stdout.readline().strip()
        try:
            for number in range(400):
                command.send_signal((signal.SIGTERM, signal.SIGINT)[number % 2])
            assert 0 == command.wait(LIMIT_S)
            assert "ends" == command.stdout.readline().strip()
        finally:
            command.kill()
