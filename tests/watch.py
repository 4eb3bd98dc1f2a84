"""What a run in several processes says while it goes on: each failure, how a process ended, which test stands still.

Registered by ``conftest`` in the process that hands out the tests. A run that is cut off from outside prints no
summary: what is needed to find the fault must be on the screen by then.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, Final

import pytest

_ENDS_S: Final = 10
"""Time for a process that has lost its connection to end."""


class Watch:
    """Tells failures and lost processes; ends a run in which nothing has happened for ``patience`` seconds."""

    def __init__(self, config: pytest.Config, patience: float) -> None:
        self._config = config
        self._patience = patience
        self._last = time.monotonic()
        self._running: dict[str, None] = {}
        self._processes: dict[str, int] = {}
        self._ended = threading.Event()

    def pytest_sessionstart(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._look, name="watch", daemon=True).start()

    def pytest_sessionfinish(self) -> None:
        """Look no longer."""
        self._ended.set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node: Any) -> None:
        """Keep the process id of one that runs tests."""
        self._processes[node.gateway.id] = node.gateway._io.popen.pid

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Say how it ended: by which signal, or with which exit code."""
        self._processes.pop(node.gateway.id, None)
        if error:
            try:
                code = node.gateway._io.popen.wait(_ENDS_S)
            except Exception as late:
                self._say(f"{node.gateway.id} has not ended: {late}")
            else:
                how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                self._say(f"{node.gateway.id} (process {node.gateway._io.popen.pid}) ended: {how}")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that it runs."""
        self._last = time.monotonic()
        self._running[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note that it runs no longer."""
        self._last = time.monotonic()
        self._running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Show a failure as soon as it is known."""
        self._last = time.monotonic()
        if report.failed:
            self._say(f"FAILED ({report.when}) {report.nodeid}\n{report.longreprtext}")

    def _look(self) -> None:
        while not self._ended.wait(1):
            if time.monotonic() - self._last > self._patience:
                self._stop()

    def _stop(self) -> None:
        names = "\n".join(f"  {nodeid}" for nodeid in self._running) or "  none"
        self._say(f"nothing has happened for {self._patience:g} s; the run ends here. Running:\n{names}")
        for pid in self._processes.values():
            os.kill(pid, signal.SIGABRT)  # shows where each of its threads is
        time.sleep(_ENDS_S)
        os._exit(1)

    def _say(self, text: str) -> None:
        # The reporter keeps the line of dots whole; standard output itself is what a cut-off run leaves.
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        for line in ("", *text.splitlines()):
            reporter.write_line(line)
