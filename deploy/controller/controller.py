"""The controller's loop: follow the serving Task, and let each of its duties decide, while this controller leads.

A duty is called with the serving Task (and our records) after every look; what it wants is written, and the Task and
its records are read again. One that fails is said once, and the others go on. Duties know nothing that is not in the
registry: a controller that is killed at any moment is continued by the next one, whose duties begin anew.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from deploy.controller.election import Election
from deploy.controller.wanted import Duty, carry_out
from deploy.tools.errors import GatewayError, line_of
from gateway import registry
from gateway.registry import RegistryWriter
from gateway.spec import ServingTask

log = logging.getLogger("triton_gateway.controller")

Duties = Mapping[str, Duty]
"""What each is for → the duty, in the order in which they are called."""
_LOOK_S: Final = 1.0
"""Most seconds between looks at who leads."""
_MAX_WRITES: Final = 20
"""Most writes after one look; more wait for the next one."""


class Controller:
    """``duties`` makes what this controller does while it leads, every ``poll_s`` seconds.

    ``clock``: seconds; ``wall``: Unix seconds.
    """

    def __init__(
        self, store: RegistryWriter, election: Election, duties: Callable[[], Duties], *,
        poll_s: float, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._election = election
        self._made = duties
        self._poll_s = poll_s
        self._due = 0.0
        self._clock = clock
        self._wall = wall
        self._duties: Duties = {}
        self._problems: dict[str, str] = {}
        self._marker: str | None = None
        self._task: ServingTask = ServingTask()
        self._problem = ""
        self.last_round = clock()
        """When the last round ended, in ``clock()`` seconds."""

    @property
    def leads(self) -> bool:
        """Whether this controller decides."""
        return bool(self._duties)

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set, then give the lead back. Never raises for a registry that is away."""
        while not stop.is_set():
            try:
                self.step()
            except Exception:
                log.exception("a round of the controller failed; the next one starts from the beginning")
                self._duties = {}
            self.last_round = self._clock()
            stop.wait(min(self._poll_s, _LOOK_S))
        try:
            self._election.resign()
        except GatewayError as error:
            log.info("the lead could not be given back: %s", error.message)

    def step(self) -> None:
        """Look once, and decide what there is to decide."""
        try:
            self._look()
        except GatewayError as error:
            if error.message != self._problem:
                log.warning("nothing is decided until the registry answers: %s", line_of(error))
            self._problem = error.message
            return
        if self._problem:
            log.info("the registry answers again")
        self._problem = ""

    def _look(self) -> None:
        if not self._election.leads():
            self._duties = {}
            return
        if not self._duties:
            # What the duties of an earlier lead had seen is old.
            self._duties, self._marker, self._due = self._made(), None, 0.0
        if self._clock() < self._due:
            return
        self._due = self._clock() + self._poll_s
        gone = registry.reports.silent(self._election.records, now=self._wall())
        if gone:
            self._store.reports.remove("report", gone)
        marker = self._store.marker()
        if marker != self._marker:
            self._task = self._store.task()
            self._marker = marker
        for _ in range(_MAX_WRITES):
            if not any(self._carries_out(name, duty) for name, duty in self._duties.items()):
                break
            self._marker, self._task = self._store.marker(), self._store.task()

    def _carries_out(self, name: str, duty: Duty) -> bool:
        """Return whether the Task or its records must be read again."""
        try:
            has_changed, problem = carry_out(self._store, self._task, duty), ""
        except GatewayError as error:
            has_changed, problem = False, line_of(error)
            if problem != self._problems.get(name):
                log.warning("%s: %s", name, problem)
        self._problems[name] = problem
        return has_changed
