"""What every test may use, and the order of the whole suite when two processes share it: the longest files first."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx._config
import httpx._transports.default
import hypothesis
import pytest

from tests.waiting import LIMIT_S

# Threads of torch that wait for each other would spin on cores that other tests need: under load ten times the CPU time
# for the same answers. Read when torch is loaded, here and in the processes that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# promtool and helm live for a second: a third of it would be their search for garbage.
os.environ.setdefault("GOGC", "400")

# What a shell starts in the background ignores Ctrl-C, and so would what the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long one example may take, or its drawing, says more about the machine's other work than about what is tested.
# `make test` draws the same examples each time, as it judges a change; `make check` draws new ones, to find faults.
hypothesis.settings.register_profile(
    "same", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], derandomize=True
)
hypothesis.settings.load_profile("same")
hypothesis.settings.register_profile(
    "check", hypothesis.settings.get_profile("same"), max_examples=50, derandomize=False
)

# Every client of httpx reads the certificates of all authorities anew, 19 ms of CPU time each; nothing here asks them.
_new_context = httpx._transports.default.create_ssl_context
_one_context = functools.cache(_new_context)
httpx._transports.default.create_ssl_context = lambda verify=True, cert=None, trust_env=True: (
    _one_context if verify is True and cert is None else _new_context
)(verify, cert, trust_env)

# It would also give up after five seconds, which says more about the machine's other work.
for _part in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _part, LIMIT_S)

# Where no loop was set, asyncio makes one for whoever asks in the main thread, as looptime and pytest-asyncio do around
# tests that need none; nobody closes those. Set to None, asking is an error, which both expect.
asyncio.set_event_loop(None)

_AS_ONE_FILE = ("tests/integration/forms/", "tests/integration/optimize/")
"""Folders that one process runs whole: what their files share takes longest to start."""

_LONGEST_FIRST = (
    "integration/optimize/", "e2e/test_up_demo", "e2e/", "integration/forms/", "integration/",
    "unit/preprocessing/words/test_cache", "unit/gateway/http/test_limits",
    "unit/dashboards/", "unit/gateway/hooks/", "docs/test_blocks", "unit/deploy/controller/rollouts/", "contract/",
    "unit/", "docs/",
)  # fmt: skip
"""Where a file lies or how it begins: no process is left alone at the end with one that takes half a minute."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """No search for garbage while all is imported and collected, which stays to the end; nor in that, afterwards, when
    a search for every 700 objects would be a twelfth of the tests' CPU time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.set_threshold(50_000, 20, 50)
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One process keeps the order of ``testpaths``, cheapest first, so that a mistake shows early."""
    if not hasattr(config, "workerinput"):
        return
    tests = config.rootpath / "tests"

    def place(item: pytest.Item) -> int:
        file = item.path.relative_to(tests).as_posix()
        return next((at for at, begins in enumerate(_LONGEST_FIRST) if file.startswith(begins)), len(_LONGEST_FIRST))

    items.sort(key=place)


def pytest_configure(config: pytest.Config) -> None:
    """A run in several processes tells its failures at once: one that is cut off prints no summary."""
    if not hasattr(config, "workerinput") and config.getoption("dist", "no") != "no":
        config.pluginmanager.register(Failures(config))


class Failures:
    """Writes each down as soon as it is known."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """See the class."""
        if report.failed:
            reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
            for line in ("", f"FAILED ({report.when}) {report.nodeid}", *report.longreprtext.splitlines()):
                reporter.write_line(line)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """``--dist loadfile``, with some folders as if they were one file."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return next((folder for folder in _AS_ONE_FILE if file.startswith(folder)), file)

        def remove_node(self, node: Any) -> Any:
            """Drop what a lost process had finished: handed out again as files without tests, it stalls the others."""
            self.assigned_work[node] = {
                file: tests for file, tests in self.assigned_work[node].items() if not all(tests.values())
            }
            return super().remove_node(node)

    return Files(config, log) if config.getoption("dist") == "loadfile" else None
