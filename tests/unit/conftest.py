"""Which unit cases `make check` leaves to `make test`, and what holds the others to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy.testing  # noqa: F401 - asks for the CPU by a process when it is loaded, for the first case that needs it
import pytest

OUTSIDE: Final = (
    "benchmarks/", "dashboards/test_boards.py", "dashboards/test_rules.py", "dashboards/test_scaling.py",
    "deploy/bundles/test_prerequisites.py",
    "deploy/bundles/test_ready_models.py", "deploy/cli/commands/test_boards.py",
    "deploy/cli/commands/test_canary.py",
    "deploy/cli/commands/test_drift.py", "deploy/cli/commands/test_hook.py", "deploy/cli/commands/test_keys.py",
    "deploy/cli/commands/test_options.py", "deploy/cli/commands/test_status.py",
    "deploy/cli/test_deploying.py", "deploy/cli/commands/test_doctor.py",
    "deploy/cli/test_main.py", "deploy/controller/auto_update/test_rules.py",
    "deploy/controller/history/test_recorder.py", "deploy/controller/test_records.py",
    "deploy/controlplane/test_app.py",
    "deploy/controlplane/test_server.py", "deploy/controlplane/test_surprises.py",
    "deploy/controlplane/test_wrong_bodies.py", "deploy/laptop/", "deploy/sync/model_folder/test_execution.py",
    "deploy/sync/model_folder/test_layout.py", "deploy/sync/model_folder/test_model_config.py",
    "deploy/sync/model_folder/test_onnx_signature.py", "deploy/sync/runtime/test_generate_model.py",
    "deploy/sync/test_formats.py", "deploy/sync/test_health.py",
    "deploy/sync/test_reconcile.py", "deploy/test_extras.py",
    "deploy/test_probe.py", "deploy/tools/test_clearml_serving.py", "deploy/tools/test_sections.py",
    "deploy/tools/test_this_machine.py", "deploy/tritonserver/", "gateway/admin/",
    "gateway/batching/test_batcher_overload.py", "gateway/callers/test_following.py",
    "gateway/callers/test_quotas.py", "gateway/callers/test_tokens.py",
    "gateway/control/test_assemble.py", "gateway/control/test_hooks.py",
    "gateway/control/test_reconcile.py", "gateway/control/test_reports.py",
    "gateway/control/test_threads.py", "gateway/control/test_validate.py", "gateway/grpc/test_limits.py",
    "gateway/grpc/test_server.py", "gateway/handlers/test_generation.py", "gateway/handlers/test_hook.py",
    "gateway/handlers/test_text.py", "gateway/hooks/test_engines.py",
"gateway/hooks/test_hooks.py", "gateway/hooks/test_json_form.py",
    "gateway/hooks/test_on_demand.py", "gateway/hooks/test_processes.py", "gateway/http/test_access.py",
    "gateway/http/test_certificates.py", "gateway/http/test_forms.py",
    "gateway/http/test_leaving.py", "gateway/http/test_lifetimes.py", "gateway/http/test_limits.py",
    "gateway/http/test_local_names.py", "gateway/http/test_protocol.py",
    "gateway/http/test_quotas_of_tenants.py", "gateway/http/test_resting.py", "gateway/http/test_bodies.py",
    "gateway/http/test_stopping.py", "gateway/http/test_streams.py",
    "gateway/metrics/test_exposition.py", "gateway/metrics/test_views.py", "gateway/metrics/test_metrics.py",
    "gateway/metrics/test_watch.py",
    "gateway/metrics/test_workers.py", "gateway/path/test_canary_routes.py",
    "gateway/path/test_known_names.py", "gateway/path/test_outcome.py", "gateway/path/test_shadow.py",
    "gateway/payloads/test_log.py", "gateway/protocols/test_generation_forms.py",
    "gateway/protocols/test_huggingface.py", "gateway/protocols/test_malformed.py",
    "gateway/protocols/test_numbers.py", "gateway/protocols/test_oip.py", "gateway/protocols/test_rerank.py",
    "gateway/protocols/test_tei.py", "gateway/test_app.py",
    "gateway/test_changes.py", "gateway/test_hocon.py",
    "gateway/test_locks.py", "gateway/test_main.py", "gateway/test_parent_death.py", "gateway/test_pools.py",
    "gateway/test_readiness.py", "gateway/test_replaced_workers.py", "gateway/test_restarts.py",
    "gateway/test_spans.py", "gateway/test_spec.py", "gateway/test_workers.py",
    "gateway/triton/test_backend.py", "gateway/triton/test_http.py", "gateway/triton/test_replicas.py",
    "gateway/triton/test_streams.py", "gateway/triton/test_traceparent.py", "k8s/",
    "preprocessing/test_chat.py", "preprocessing/test_tokenizer_settings.py",
    "preprocessing/words/test_cache.py",
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
