"""Composes a model sync and runs it: ``triton-gateway sync``, which ``up`` and the container next to Triton run.

Only this file knows the settings and the real registry.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from deploy.sync import health
from deploy.sync.client import AdminClient
from deploy.sync.model_folder.layout import Engine
from deploy.sync.reconcile import ModelSync
from deploy.sync.repository import ModelRepository
from deploy.sync.settings import Grace, SyncSettings
from deploy.tools import ports
from gateway import logs, pools, registry, settings, triton

_ENDS_WITHIN_S = 5.0
"""Seconds in which what runs beside it must have ended."""


def run(
    *, state_dir: Path, repository: Path, triton_grpc: str, engine: Engine, serving_task_id: str, poll_s: float,
    files_rewrite: str, health_port: int | None, triton_key_file: str, log_format: str, stop: threading.Event,
    pool: str = "",
    beside: Callable[[registry.RegistryWriter, threading.Event], None] | None = None,
) -> None:  # fmt: skip
    """Run model sync until ``stop`` is set; times in seconds. Raises ``GatewayError`` and ``DeployError``.

    ``beside`` is what else runs in this process, in a thread: the controller of a laptop.
    """
    logs.configure(log_format)
    shared = settings.Settings(files_rewrite=files_rewrite)  # settings that gateways and model sync share
    sync_settings = SyncSettings(
        state_dir=state_dir, repository=repository, triton_grpc=triton_grpc, engine=engine,
        pools=pools.followed(pool), poll_s=poll_s,
        triton_key_file=triton.key.key_file(triton_key_file, state_dir),
        triton_tls=triton.tls.in_folder(shared.triton_tls, shared.triton_tls_name),
        # Gateways poll at the same interval. A replaced model stays until every gateway must have seen the change.
        grace=Grace(settle_s=max(30.0, 2 * poll_s), move_s=max(600.0, 10 * poll_s)),
    )  # fmt: skip
    task = registry.ClearMLRegistry(serving_task_id, files_rewrite=shared.files_rewrites())
    with contextlib.ExitStack() as stack:

        def answer(sync: ModelSync) -> None:
            if health_port is not None:
                server = health.serve(health_port, sync.status, lambda: sync.last_round, time.monotonic)
                stack.callback(server.shutdown)

        if health_port:
            ports.require_free("0.0.0.0", health_port, what="health probes", option="--health-port")  # noqa: S104 - probes come from outside
        if beside is not None:
            other = threading.Thread(target=beside, args=(task, stop), name="controller")
            other.start()
            stack.callback(other.join, _ENDS_WITHIN_S)
        run_sync(sync_settings, task, stop, started=answer)


def run_sync(
    sync_settings: SyncSettings, task: registry.Registry, stop: threading.Event, *,
    started: Callable[[ModelSync], None] | None = None,
) -> None:  # fmt: skip
    """Run model sync until ``stop`` is set. ``started`` gets the ModelSync."""
    client = AdminClient(
        sync_settings.triton_grpc, key_file=sync_settings.triton_key_file, load_timeout_s=sync_settings.load_timeout_s,
        tls=sync_settings.triton_tls,
    )  # fmt: skip
    try:
        sync = ModelSync(
            sync_settings,
            task,
            cache=registry.ArtifactCache(sync_settings.state_dir / "cache", task),
            store=registry.SpecStore(sync_settings.state_dir / "sync"),
            triton=client,
            repository=ModelRepository(sync_settings.repository),
            me=f"{socket.gethostname()} {sync_settings.triton_grpc}",
        )
        if started is not None:
            started(sync)
        sync.run(stop)
    finally:
        client.close()
