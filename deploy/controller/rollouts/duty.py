"""Carries out every rollout that people ask for, from start to end. A duty of the controller.

It follows the requests beside the serving Task and looks at the gateways' counters after every look at the Task. What
it decides is in the records, so the next controller continues where this one was killed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from deploy.controller.gateways import Gateways
from deploy.controller.rollouts import record
from deploy.controller.rollouts.carrier import Carrier
from deploy.tools.errors import DeployError, GatewayError
from gateway import spec
from gateway.registry import RegistryWriter
from gateway.spec import ServingTask

log = logging.getLogger("triton_gateway.controller")


class Rollouts:
    """Called with the serving Task after every look, on one thread. ``me``: how status names this controller.

    Without ``gateways``, rollouts are refused: nobody could see if a version is worse.
    """

    def __init__(
        self, store: RegistryWriter, gateways: Gateways | None, me: str, *, wall: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._gateways = gateways
        self._me = me
        self._wall = wall
        self._carriers: dict[str, Carrier] = {}
        self._problems: dict[str, str] = {}
        self._settled: ServingTask | None = None
        """The last Task in which no rollout had anything to do."""

    def __call__(self, task: ServingTask) -> None:
        """Look at each rollout, and write what was decided about it: the next look finds that."""
        if task is self._settled:
            return
        endpoints = {*record.requests(task), *spec.records_of(task, spec.ROLLOUT)}
        if not endpoints:
            self._carriers, self._settled = {}, task
            return
        self._carriers = {
            endpoint: self._carriers.get(endpoint)
            or Carrier(self._store, self._gateways, endpoint, self._me, wall=self._wall)
            for endpoint in sorted(endpoints)
        }  # fmt: skip
        serving = spec.decode(task)
        is_settled = True
        for endpoint, carrier in self._carriers.items():
            problem = ""
            try:
                for decision in carrier.look(task, record.readable(serving)):
                    log.info("rollout of %s: %g %%, %s: %s", endpoint, decision.weight, decision.what, decision.why)
            except (DeployError, GatewayError) as error:
                problem = error.message
            if problem and problem != self._problems.get(endpoint):
                log.warning("rollout of %s: %s", endpoint, problem)
            self._problems[endpoint] = problem
            is_settled = is_settled and carrier.is_idle and not problem
        self._settled = task if is_settled else None
