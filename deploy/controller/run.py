"""Composes a controller and runs it: ``triton-gateway controller``, and beside model sync in ``up``."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from deploy.controller import default_versions
from deploy.controller.auto_update import AutoUpdate, loaded
from deploy.controller.contents import ContentKeeper, reported
from deploy.controller.controller import Controller, Duties
from deploy.controller.drift.judging import Families, Judging
from deploy.controller.election import Election
from deploy.controller.gateways import Gateways, addresses
from deploy.controller.history.recorder import Observer
from deploy.controller.pruning import Pruner
from deploy.controller.rollouts.duty import Rollouts, families
from deploy.controller.telemetry import Telemetry
from deploy.tools import ports, probes
from gateway import logs, settings
from gateway.metrics import catalog
from gateway.registry import ClearMLRegistry, RegistryWriter

_STUCK_S: Final = 120.0


def made(
    store: RegistryWriter, poll_s: float, gateways: Sequence[str], show: Callable[[Families], None] = lambda _: None
) -> Controller:  # fmt: skip
    """Return a controller that looks at the serving Task every ``poll_s`` seconds, and at these gateways' counters.

    ``show`` is given the metrics of what it judges.
    """
    me = f"{socket.gethostname()} {uuid.uuid4().hex[:8]}"
    seen = Gateways(lambda: addresses(gateways)) if gateways else None
    looking = ThreadPoolExecutor(1, thread_name_prefix="judging")

    election = Election(store.reports, me, clock=time.monotonic)

    def duties() -> Duties:
        # Gateways look at their own pace: what replaces a version has been loaded for a while.
        settle_s = max(30.0, 2 * poll_s)
        found: Duties = {
            "auto-update": AutoUpdate(
                store, lambda: loaded(election.records), clock=time.monotonic, every_s=max(5.0, poll_s),
                settle_s=settle_s,
            ),
            "rollouts": Rollouts(seen, me),
            "default versions": default_versions.recorded,
            "contents of models": ContentKeeper(store, lambda: reported(election.records)),
            "history": Observer(store),
            "unused records": Pruner(),
            "metrics of rollouts": lambda task: show(families(task)),
        }  # fmt: skip
        if seen is None:
            return found
        judging = Judging(store, seen, show, begin=looking.submit, clock=time.monotonic, wall=time.time)
        return {**found, "ClearML's pages": Telemetry(store, seen.statuses), "drift": judging}

    return Controller(store, election, duties, poll_s=poll_s)


def run(
    *, serving_task_id: str, poll_s: float, files_rewrite: str, health_port: int | None, log_format: str,
    gateways: Sequence[str], stop: threading.Event,
) -> None:  # fmt: skip
    """Run a controller until ``stop`` is set. Raises ``DeployError`` if the port is taken."""
    logs.configure(log_format)
    rewrites = settings.Settings(files_rewrite=files_rewrite).files_rewrites()
    store = ClearMLRegistry(serving_task_id, files_rewrite=rewrites)
    if health_port is not None:
        ports.require_free("0.0.0.0", health_port, what="health probes", option="--health-port")  # noqa: S104 - probes come from outside
    _run(store, poll_s, gateways, health_port, "0.0.0.0", stop)  # noqa: S104 - as above


def beside(poll_s: float) -> Callable[[RegistryWriter, threading.Event], None]:
    """Return what runs a controller in the process of a model sync, until an event is set."""
    gateways = os.environ.get("TRITON_GATEWAY_URL", "").split()
    port = int(os.environ.get("TRITON_GATEWAY_CONTROLLER_HEALTH_PORT") or 0) or None
    return lambda store, stop: _run(store, poll_s, gateways, port, "127.0.0.1", stop)


def _run(
    store: RegistryWriter, poll_s: float, gateways: Sequence[str], port: int | None, host: str, stop: threading.Event
) -> None:
    judged: dict[catalog.Metric, Mapping[tuple[str, ...], float]] = {}
    controller = made(store, poll_s, gateways, judged.update)
    with contextlib.ExitStack() as stack:
        if port is not None:
            server = probes.serve(port, lambda path: _answer(controller, judged, path), host=host)
            stack.callback(server.shutdown)
        controller.run(stop)


def _answer(controller: Controller, judged: Families, path: str) -> probes.Answer | None:
    if path == "/metrics":
        # What an earlier lead has found is old.
        found = dict(judged) if controller.leads else {}
        own: Families = {catalog.CONTROLLER_LEADS: {(): int(controller.leads)}}
        return probes.text_answer(probes.metrics({**own, **found}))
    if path == "/healthz":
        since = time.monotonic() - controller.last_round
        return probes.json_answer(200 if since < _STUCK_S else 503, {"leads": controller.leads, "last_round_s": since})
    return None
