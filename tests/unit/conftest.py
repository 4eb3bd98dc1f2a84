"""Which unit cases `make check` leaves to `make test`, and what holds the others to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy.testing  # noqa: F401 - asks for the CPU by a process when it is loaded, for the first case that needs it
import pytest

OUTSIDE: Final = (
    "benchmarks/", "dashboards/", "deploy/bundles/test_prerequisites.py", "deploy/bundles/test_ready_models.py",
    "deploy/cli/commands/", "deploy/cli/test_deploying.py", "deploy/cli/test_main.py", "deploy/controller/auto_update/",
    "deploy/controller/history/", "deploy/controller/test_records.py", "deploy/controlplane/test_app.py",
    "deploy/controlplane/test_server.py", "deploy/controlplane/test_surprises.py",
    "deploy/controlplane/test_wrong_bodies.py", "deploy/laptop/", "deploy/sync/", "deploy/test_extras.py",
    "deploy/test_probe.py",
    "deploy/tools/", "deploy/tritonserver/", "gateway/admin/", "gateway/batching/test_batcher_overload.py",
    "gateway/callers/test_following.py", "gateway/callers/test_quotas.py", "gateway/callers/test_tokens.py",
    "gateway/control/", "gateway/grpc/", "gateway/handlers/", "gateway/hooks/test_engines.py",
    "gateway/hooks/test_hooks.py", "gateway/hooks/test_json_form.py", "gateway/hooks/test_on_demand.py",
    "gateway/hooks/test_processes.py", "gateway/http/",
    "gateway/metrics/test_exposition.py", "gateway/metrics/test_metrics.py", "gateway/metrics/test_views.py",
    "gateway/metrics/test_watch.py", "gateway/metrics/test_workers.py", "gateway/path/test_canary_routes.py",
    "gateway/path/test_known_names.py", "gateway/path/test_outcome.py",
    "gateway/payloads/test_log.py", "gateway/protocols/", "gateway/test_app.py", "gateway/test_changes.py",
    "gateway/test_hocon.py", "gateway/test_locks.py", "gateway/test_main.py", "gateway/test_parent_death.py",
    "gateway/test_pools.py", "gateway/test_readiness.py", "gateway/test_replaced_workers.py",
    "gateway/test_restarts.py", "gateway/test_spans.py", "gateway/test_spec.py", "gateway/test_workers.py",
    "gateway/triton/", "k8s/", "preprocessing/test_chat.py", "preprocessing/test_tokenizer_settings.py",
    "preprocessing/words/",
)  # fmt: skip
"""Files and folders of cases that start processes, open sockets, sleep, or need torch, onnx or a cloud's SDK."""

_FORBIDDEN: Final = frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn", "socket.bind", "socket.connect"})


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave them out where that is asked for: some cannot even be imported there."""
    here = config.rootpath / "tests" / "unit"
    is_left_out = "not outside" in config.getoption("markexpr") and collection_path.is_file()
    return True if is_left_out and collection_path.relative_to(here).as_posix().startswith(OUTSIDE) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out those whose file the command line names too: these are always collected."""
    if "not outside" in config.getoption("markexpr"):
        here = f"{Path(__file__).parent.as_posix()}/"
        items[:] = [one for one in items if not one.path.as_posix().removeprefix(here).startswith(OUTSIDE)]


def pytest_configure(config: pytest.Config) -> None:
    """Where they are left out, every other case that does such a thing fails. Raises UsageError if a file went."""
    if gone := [one for one in OUTSIDE if not (Path(__file__).parent / one).exists()]:
        raise pytest.UsageError(f"OUTSIDE of tests/unit/conftest.py names what is not there: {', '.join(gone)}")
    if "not outside" in config.getoption("markexpr"):
        config.pluginmanager.register(Guard())


class Guard:
    """Refuses, while a case runs, what the cases of ``OUTSIDE`` do."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._is_running = False
        sys.addaudithook(self._look)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Look on from the first fixture to the last."""
        self._is_running = True
        try:
            return (yield)
        finally:
            self._is_running = False

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        is_sleep = event == "time.sleep" and arguments[0] > 0.02
        if (event in _FORBIDDEN or is_sleep) and self._is_running:
            raise RuntimeError(f"{event} in make check: its file belongs into OUTSIDE of tests/unit/conftest.py")
