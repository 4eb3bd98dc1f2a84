"""Carries out every rollout that people ask for, from start to end. A duty of the controller.

It follows the requests beside the serving Task and looks at the gateways' counters after every look at the Task. What
it decides is in the records, so the next controller continues where this one was killed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from deploy.controller import plain
from deploy.controller.gateways import Gateways
from deploy.controller.rollouts import record
from deploy.controller.rollouts.carrier import Carrier
from deploy.controller.rollouts.steps import Rollout
from deploy.controller.wanted import Wanted
from deploy.tools.errors import DeployError
from gateway import metrics, spec
from gateway.registry import Record
from gateway.spec import ServingTask

catalog = metrics.catalog
log = logging.getLogger("triton_gateway.controller")


class Rollouts:
    """Called with the serving Task after every look, on one thread. ``me``: how status names this controller.

    Without ``gateways``, rollouts are refused: nobody could see if a version is worse.
    """

    def __init__(
        self, gateways: Gateways | None, me: str, *, wall: Callable[[], float] = time.time
    ) -> None:  # fmt: skip
        self._made: Callable[[str], Carrier] = lambda endpoint: Carrier(gateways, endpoint, me, wall)
        self._carriers: dict[str, Carrier] = {}
        self._problems: dict[str, str] = {}

    def __call__(self, task: ServingTask) -> Wanted | None:
        """Look at each rollout, and return what was decided."""
        endpoints = sorted({*record.requests(task), *spec.records_of(task, spec.ROLLOUT)})
        self._carriers = {endpoint: self._carriers.get(endpoint) or self._made(endpoint) for endpoint in endpoints}
        if not endpoints:
            return None
        serving = spec.decode(task)
        records: list[Record] = []
        sections: dict[str, str] = {}
        for endpoint, carrier in self._carriers.items():
            problem = ""
            try:
                wanted = carrier.look(task, record.readable(serving)) or Wanted()
                records += wanted.records
                sections |= wanted.sections
                task = replace(task, sections={**task.sections, **sections})
            except DeployError as error:
                problem = error.message
            if problem and problem != self._problems.get(endpoint):
                log.warning("rollout of %s: %s", endpoint, problem)
            self._problems[endpoint] = problem
        return Wanted(records, sections)


def families(task: ServingTask) -> Mapping[catalog.Metric, Mapping[tuple[str, ...], float]]:
    """Return the metrics of rollouts from their records: phases, and the evidence against canaries of running ones."""
    phases: dict[tuple[str, ...], float] = {}
    evidence: dict[tuple[str, ...], float] = {}
    for endpoint, stored in spec.records_of(task, spec.ROLLOUT).items():
        with contextlib.suppress(ValueError):
            rollout = plain.read(Rollout, stored)
            phases[endpoint, rollout.canary, rollout.phase] = 1
            if not rollout.is_over:
                evidence[endpoint, rollout.canary] = rollout.gate.evidence
    return {catalog.ROLLOUT_PHASE: phases, catalog.ROLLOUT_EVIDENCE: evidence}
