"""A serving Task, two gateways with real metrics text, people's requests, controllers, and a manual clock."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from deploy.controller.gateways import Gateways
from deploy.controller.rollouts import record
from deploy.controller.rollouts.duty import Rollouts
from deploy.controller.rollouts.record import Request
from deploy.controller.rollouts.steps import Command, Rollout, Rules
from deploy.controller.wanted import carry_out
from deploy.tools import sections
from gateway.errors import RegistryUnavailable
from gateway.spec import ServingSpec, ServingTask, decode
from tests.fakes import FakeRegistry

Look = Callable[[ServingTask], object]
"""What a controller does about rollouts when it has read the serving Task."""
ENDPOINTS = {f"e/{v}": {"serving_url": "e", "version": v, "engine_type": "triton", "model_id": f"m{v}"} for v in "123"}


class Killed(BaseException):
    """The controller ends here, as by SIGKILL."""


class World(FakeRegistry):
    """See the module. In ``kill_in`` writes from now, whoever writes is killed."""

    def __init__(self) -> None:
        super().__init__()
        self.sections = {"endpoints": json.dumps(ENDPOINTS), "canary": sections.render({"other": {
            "endpoint": "other", "weights": [1.0], "load_endpoints": ["e/3"]}})}  # fmt: skip
        self.now = 1_000_000.0
        self.down: set[str] = set()
        self.counters: dict[str, dict[str, int]] = {"g1": {}, "g2": {}}
        self.requests = 0
        self.kill_in = 0
        self.wrote: list[dict[str, float] | None] = []
        """The weights of ``e`` after each write of the Task."""

    def write(self, sections: Mapping[str, str], records: Any = ()) -> None:
        """Write the records and then the sections; each is a step at which a controller may be killed."""
        for step in ({}, records), (sections, ()):
            if self.kill_in == 1:
                self.kill_in = 0
                raise Killed
            self.kill_in = max(self.kill_in - 1, 0)
            super().write(*step)
        if sections:
            self.wrote.append(self.weights())

    def serving(self) -> ServingSpec:
        """Return the specification."""
        return decode(self.task())

    def weights(self, endpoint: str = "e") -> dict[str, float] | None:
        """Return the weights in the Task."""
        return record.weights(decode(super().task()), endpoint)

    def set_weights(self, shares: Mapping[str, float], endpoint: str = "e") -> None:
        """Write weights as the stock CLI does."""
        self.sections |= record.with_weights(self.task(), endpoint, shares)

    def ask(self, command: Command, rollout: Rollout | None = None, *, endpoint: str = "e") -> None:
        """Leave a request."""
        self.requests += 1
        asked = Request(f"r{self.requests}", command, "ann", rollout)
        self.ledger.write([record.asked(endpoint, asked)])

    def add(self, gateway: str, version: str, route: str, **outcomes: int) -> None:
        """Count requests."""
        for outcome, count in outcomes.items():
            key = f'gateway_requests_total{{endpoint="e",outcome="{outcome}",route="{route}",version="{version}"}}'
            self.count(gateway, key, count)

    def count(self, gateway: str, key: str, count: int) -> None:
        """Let a counter grow."""
        self.counters[gateway][key] = self.counters[gateway].get(key, 0) + count

    def fetch(self, url: str) -> str | None:
        """Return a gateway's metrics."""
        gateway = url.removesuffix("/metrics")
        if gateway in self.down:
            return None
        return "".join(f"{key} {value}\n" for key, value in self.counters[gateway].items())

    def controller(self, me: str = "me", *, sees: bool = True) -> Look:
        """Return a look of what carries rollouts out in a controller that has just begun to lead."""
        looks = itertools.count(step=10).__next__  # whoever looks sees what is counted now
        gateways = Gateways(lambda: ("g1", "g2"), fetch=self.fetch, clock=looks)
        duty = Rollouts(gateways if sees else None, me, wall=lambda: self.now)

        def look(task: ServingTask) -> None:
            with contextlib.suppress(RegistryUnavailable):
                carry_out(self, task, duty)

        return look

    def begin(self, rollout: Rollout, controller: Look | None = None) -> Look:
        """Ask for ``rollout``, and return the controller that has begun it."""
        self.ask("run", rollout, endpoint=rollout.endpoint)
        controller = controller or self.controller()
        controller(self.task())
        return controller

    def traffic(self, *, canary_failures: int = 0, requests: int = 100) -> None:
        """Five seconds of traffic on both gateways."""
        for gateway in self.counters:
            self.add(gateway, "2", "canary", ok=requests - canary_failures, model_failed=canary_failures)
            self.add(gateway, "1", "stable", ok=requests * 4, model_failed=1)
        self.now += 5.0

    def tick(self, controller: Look, *, canary_failures: int = 0, requests: int = 100) -> Rollout:
        """Let callers ask for five seconds, then the controller look; return the rollout as it is stored."""
        self.traffic(canary_failures=canary_failures, requests=requests)
        controller(self.task())
        return self.rollout()

    def finish(self, controller: Look, most: int = 60, **traffic: int) -> Rollout:
        """Let it go on until the rollout has ended, and its weights are seen in the Task."""
        for _ in range(most):
            if self.tick(controller, **traffic).is_over:
                return self.tick(controller, **traffic)
        raise AssertionError(f"it has not ended: {self.rollout()}")

    def rollout(self, endpoint: str = "e") -> Rollout:
        """Return a rollout as it is stored."""
        found = record.read(self.task(), endpoint)
        assert found is not None
        return found

    def decided(self) -> list[str]:
        """Return what was decided about ``e``."""
        return [decision.what for decision in self.rollout().history]


def fresh(**fields: Any) -> Rollout:
    """A rollout of e/2 beside e/1."""
    return replace(Rollout("e", "e/2", "e/1", steps=(5.0, 50.0, 100.0), rules=Rules(200, 10.0)), **fields)
