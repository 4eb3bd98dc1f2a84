"""Carries rollouts on whose runner has ended: a terminal was closed, a pipeline was stopped, a machine went away.

A duty of the controller. It takes a rollout when its lease is free, or was taken by another controller, which then does
not lead any more. It runs it to its end as `canary run` does, and looks at the gateways' counters for that.
"""

from __future__ import annotations

import logging
import socket
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deploy.controller.rollouts import record
from deploy.controller.rollouts.record import ServingTask
from deploy.controller.rollouts.runner import Runner
from deploy.controller.rollouts.source import GatewaySource
from deploy.tools import http_client
from deploy.tools.errors import DeployError, GatewayError

log = logging.getLogger("triton_gateway.controller")

Statuses = Callable[[], Mapping[str, Mapping[str, Any] | None]]


class RolloutGuard:
    """Called with the serving Task after every look, on one thread. Without a source of counters it does nothing.

    ``me`` is the unique name of this controller.
    """

    def __init__(
        self, store: record.Store, source: GatewaySource | None, statuses: Statuses, me: str, *,
        wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._source = source
        self._statuses = statuses
        self._me = f"{record.CONTROLLER} {me}"
        self._wall = wall
        self._runners: dict[str, Runner] = {}
        self._said: dict[str, str] = {}

    def __call__(self, task: ServingTask) -> bool:
        """Look at each rollout that nobody else runs. Always returns False: the next look finds what it wrote."""
        running = record.running(task)
        self._runners = {endpoint: one for endpoint, one in self._runners.items() if endpoint in running}
        for endpoint, lease in running.items():
            is_free = lease.is_free(self._wall(), self._me) or lease.holder.startswith(record.CONTROLLER)
            if endpoint in self._runners or is_free:
                self._guard(endpoint)
        return False

    def _guard(self, endpoint: str) -> None:
        if self._source is None:
            self._say(endpoint, "nobody guards it, and this controller knows no gateways (TRITON_GATEWAY_URL)")
            return
        try:
            if endpoint not in self._runners:
                runner = Runner(
                    self._store, self._source, self._statuses, endpoint=endpoint, me=self._me, clock=self._wall,
                    sleep=lambda _: None,
                )  # fmt: skip
                runner.start(None, over=record.CONTROLLER)
                self._runners[endpoint] = runner
                log.warning("the rollout of %s has no runner any more: the controller carries it on", endpoint)
            progress = self._runners[endpoint].look()
            for decision in progress.decisions:
                log.info("rollout of %s: %g %%, %s: %s", endpoint, decision.weight, decision.what, decision.why)
            self._say(endpoint, progress.problem)
        except DeployError as error:  # somebody else runs it now
            self._runners.pop(endpoint, None)
            self._say(endpoint, error.message)
        except GatewayError as error:
            self._say(endpoint, error.message)

    def _say(self, endpoint: str, problem: str) -> None:
        if problem and problem != self._said.get(endpoint):
            log.warning("rollout of %s: %s", endpoint, problem)
        self._said[endpoint] = problem


def addresses(gateways: Sequence[str]) -> list[str]:
    """Return one address for each gateway behind these: every address that a name of ``http://name:port`` has now."""
    found: list[str] = []
    for gateway in gateways:
        parts = urllib.parse.urlsplit(gateway)
        hosts = {parts.hostname or ""}
        if parts.scheme == "http" and parts.hostname:
            try:
                answers = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
                hosts = {str(answer[4][0]) for answer in answers}
            except OSError:
                pass  # it is asked by its name, which does not answer either
        if len(hosts) == 1:
            found.append(gateway)
        else:
            named = sorted(f"[{host}]" if ":" in host else host for host in hosts)
            found += [f"http://{host}:{parts.port or 80}" for host in named]
    return found


def status_of(gateways: Sequence[str]) -> Mapping[str, Mapping[str, Any] | None]:
    """Return the ``/v1/status`` of each gateway behind these addresses; None if it does not answer."""
    answers = {address: http_client.call_gateway(f"{address}/v1/status") for address in addresses(gateways)}
    return {a: r.content if r is not None and r.status == 200 else None for a, r in answers.items()}
