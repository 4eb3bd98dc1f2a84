"""A rollout on a real control plane, carried out by real controllers: one is killed, another ends it."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from deploy.controller import election
from deploy.controller.rollouts import record
from deploy.controller.rollouts.steps import Rollout
from gateway.registry.clearml import ClearMLRegistry
from gateway.spec import decode
from tests.sites import Asked, site
from tests.stock import Client, ended
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.long]

HOOK = "class Preprocess:\n    def process(self, data, state, collect=None):\n        return data\n"


class Gateway:
    """What a controller asks of a gateway. While it is busy, each look finds forty more requests to both versions."""

    def __init__(self, registry: ClearMLRegistry) -> None:
        self.registry = registry
        self.is_busy, self.requests = False, 0

    def answer(self, asked: Asked) -> tuple[int, Any]:
        """Return status and content for a path."""
        if asked.path.startswith("/v1/status"):
            return 200, {"canaries": {"e": record.weights(decode(self.registry.task()), "e")}}
        self.requests += 40 if self.is_busy else 0
        counter = 'gateway_requests_total{{endpoint="e",outcome="ok",route="{}",version="{}"}} {}\n'
        told = counter.format("canary", "2", self.requests) + counter.format("stable", "1", self.requests)
        return 200, told.encode()


def ended_early(process: subprocess.Popen[str]) -> bool:
    """False while a program runs; it fails with what the program has said if it has ended."""
    assert process.poll() is None, process.communicate()
    return False


def test_a_second_controller_ends_the_rollout_of_a_killed_one(client: Client) -> None:
    """The command follows it all the while, and prints each decision once."""
    (client.folder / "hook.py").write_text(HOOK)
    client.create("killed")
    for version in "12":
        client.add("e", "--version", version, "--preprocess", "hook.py", engine="custom")
    registry = ClearMLRegistry(client.task)
    task = {"CLEARML_SERVING_TASK_ID": client.task}

    def state() -> Rollout | None:
        return record.read(registry.task(), "e")

    def guard(other: str = "") -> str:
        found = state()
        return found.guard if found is not None and found.weight == 50 and found.guard != other else ""

    with contextlib.ExitStack() as stack:
        gateway = Gateway(registry)
        url = stack.enter_context(site(gateway.answer))

        def ours(*arguments: str) -> subprocess.Popen[str]:
            return client.start("-m", "deploy.cli.main", *arguments, **task)  # type: ignore[arg-type]

        def controller() -> subprocess.Popen[str]:
            process = ours("controller", "--poll-frequency", "1s", "--gateway", url)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        one = controller()
        # Without a controller that leads, the command takes its request back after a minute.
        until(lambda: election.alive(registry.reports, now=time.time()), what="a controller that leads")
        follows = ours(
            "canary", "run", "--endpoint", "e", "--to", "2", "--from", "1", "--steps", "50,100",
            "--min-requests", "20", "--step-time", "2s", "--label-shift", "0", "--url", url,
        )  # fmt: skip
        stack.callback(follows.kill)

        def seen(fact: Callable[[], Any], what: str) -> Any:
            return until(lambda: fact() or ended_early(follows), what=what)

        first = seen(guard, "the first step")
        seen(lambda: record.weights(decode(registry.task()), "e") == {"e/2": 0.5, "e/1": 0.5}, "its weights")
        controller()
        one.kill()
        seen(lambda: guard(first), "another guard")
        gateway.is_busy = True
        printed = ended(follows)
    *decided, back = printed.splitlines()
    assert ["start", "promote"] == [line.split("%  ")[1].partition(":")[0] for line in decided]
    assert "the way back: triton-gateway default e 1" == back
    until(lambda: record.weights(decode(registry.task()), "e") is None, what="the canary's end")
    assert ({"e": "e/2"}, ()) == (dict(decode(registry.task()).defaults), decode(registry.task()).faults)
