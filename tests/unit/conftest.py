"""Which unit cases `make check` leaves to `make test`, and what holds the others to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

OUTSIDE: Final = (
    "benchmarks/", "dashboards/test_boards.py", "dashboards/test_rules.py", "dashboards/test_scaling.py",
    "deploy/bundles/judge/test_weights.py", "deploy/bundles/test_ready_models.py",
    "deploy/cli/commands/test_dashboards.py", "deploy/cli/commands/test_drift.py",
    "deploy/cli/commands/test_hook.py", "deploy/cli/commands/test_keys.py",
    "deploy/cli/commands/test_options.py", "deploy/cli/commands/test_status_plan_and_wait.py",
    "deploy/cli/commands/test_triton.py", "deploy/cli/test_drift_reference.py", "deploy/cli/test_main.py",
    "deploy/controlplane/test_app.py", "deploy/controlplane/test_bodies.py",
    "deploy/controlplane/test_command.py", "deploy/controlplane/test_fields.py",
    "deploy/controlplane/test_server.py", "deploy/controlplane/test_surprises.py",
    "deploy/laptop/demo/test_minilm.py", "deploy/laptop/demo/test_seed.py",
    "deploy/laptop/test_first_answer.py", "deploy/laptop/test_prometheus.py", "deploy/laptop/test_stack.py",
    "deploy/laptop/test_state_dir.py", "deploy/laptop/test_supervisor.py",
    "deploy/sync/model_folder/test_onnx_signature.py", "deploy/sync/test_doors.py",
    "deploy/sync/test_formats.py", "deploy/sync/test_health.py", "deploy/sync/test_imports.py",
    "deploy/sync/test_reconcile.py", "deploy/test_extras.py", "deploy/test_probe.py",
    "deploy/tools/test_http_client.py", "deploy/tools/test_ports.py", "deploy/tools/test_proxies.py",
    "deploy/tritonserver/test_key.py", "deploy/tritonserver/test_launcher.py", "gateway/admin/test_page.py",
    "gateway/callers/test_quotas.py", "gateway/callers/test_tokens.py", "gateway/control/test_assemble.py",
    "gateway/control/test_threads.py", "gateway/control/test_validate.py", "gateway/grpc/test_limits.py",
    "gateway/grpc/test_server.py", "gateway/hooks/test_engines.py", "gateway/hooks/test_forged_answers.py",
    "gateway/hooks/test_hooks.py", "gateway/hooks/test_on_demand.py", "gateway/hooks/test_processes.py",
    "gateway/http/test_access.py", "gateway/http/test_addresses.py", "gateway/http/test_admin_port.py",
    "gateway/http/test_certificates_of_callers.py", "gateway/http/test_leaving.py",
    "gateway/http/test_lifetimes.py", "gateway/http/test_limits.py", "gateway/http/test_local_names.py",
    "gateway/http/test_protocol.py", "gateway/http/test_quotas_of_tenants.py", "gateway/http/test_resting.py",
    "gateway/http/test_routes.py", "gateway/http/test_stopping.py", "gateway/http/test_streams.py",
    "gateway/metrics/test_exemplars.py", "gateway/metrics/test_exposition.py", "gateway/metrics/test_live.py",
    "gateway/metrics/test_publisher.py", "gateway/metrics/test_texts.py", "gateway/metrics/test_workers.py",
    "gateway/path/test_outcome.py", "gateway/path/test_shadow.py", "gateway/protocols/test_generation_forms.py",
    "gateway/protocols/test_malformed.py", "gateway/protocols/test_tei.py", "gateway/test_hocon.py",
    "gateway/test_locks.py", "gateway/test_main.py", "gateway/test_memory.py", "gateway/test_parent_death.py",
    "gateway/test_readiness.py", "gateway/test_replaced_workers.py", "gateway/test_workers.py",
    "gateway/triton/test_backend.py", "gateway/triton/test_replicas.py", "gateway/triton/test_traceparent.py",
    "k8s/test_autoscaling.py", "k8s/test_chart.py", "k8s/test_compose.py", "k8s/test_doctor.py",
    "k8s/test_kubernetes.py", "k8s/test_manifests.py", "k8s/test_release.py", "k8s/test_releases.py",
    "k8s/test_values.py", "preprocessing/test_chat.py", "preprocessing/test_memory.py",
    "preprocessing/test_tokenizer_settings.py",
)  # fmt: skip
"""Files and folders of cases that start processes, open sockets, sleep, or need torch or onnx."""

_FORBIDDEN: Final = frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn", "socket.bind", "socket.connect"})


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave them out where that is asked for: some cannot even be imported there."""
    here = config.rootpath / "tests" / "unit"
    is_left_out = "not outside" in config.getoption("markexpr") and collection_path.is_file()
    return True if is_left_out and collection_path.relative_to(here).as_posix().startswith(OUTSIDE) else None


def pytest_configure(config: pytest.Config) -> None:
    """Where they are left out, every other case that does such a thing fails."""
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
