"""What a person asks of a rollout, with a controller that lives, comes late, dies, or is not there. Simulated time."""

from __future__ import annotations

import pytest

from deploy.cli import rollout_request
from deploy.cli.rollout_request import ABORTED_S, NOBODY, carried_out, followed
from deploy.controller.election import Election
from deploy.controller.rollouts import record
from deploy.controller.rollouts.record import Request
from deploy.controller.rollouts.steps import Command, Rollout, Rules
from deploy.tools.errors import DeployError
from gateway.spec import ShadowSpec
from tests.unit.deploy.controller.rollouts.world import World, fresh


class Desk(World):
    """A person's terminal, and a controller that looks every second while it ``lives``."""

    def __init__(self) -> None:
        super().__init__()
        self.carrier = self.controller("c1")
        self.election = Election(self.reports, "c1", clock=lambda: self.now, wall=lambda: self.now)
        self.lives = False
        self.ends_at = float("inf")
        """When the person presses Ctrl-C."""
        self.failures = 0

    def start(self) -> None:
        """Let a controller begin and lead."""
        self.lives = True
        self.wait(5.0)

    def leave(self) -> tuple[list[str], list[str], str]:
        """Begin a rollout, and press Ctrl-C after eight seconds."""
        self.start()
        self.ends_at = self.now + 8
        found = self.run(mirror=5.0)
        self.ends_at = float("inf")
        return found

    def wait(self, seconds: float) -> bool:
        """Let time pass; return whether the person wants to go."""
        until = self.now + seconds
        while self.now < until:
            self.now += min(1.0, until - self.now)
            for gateway in self.counters:
                self.add(gateway, "2", "canary", ok=20 - self.failures, model_failed=self.failures)
                self.add(gateway, "1", "stable", ok=80)
            if self.lives and self.election.leads():
                self.carrier(self.task())
        return self.now >= self.ends_at

    def do(self, command: Command) -> Rollout | None:
        """Type `canary COMMAND`."""
        return carried_out(self, "e", Request(f"{command}-1", command, "ann"), self.wait, clock=lambda: self.now)

    def run(self, *, mirror: float = 0.0) -> tuple[list[str], list[str], str]:
        """Type `canary run`, and return decisions, problems and the last phase that were shown."""
        asked = Request("run-1", "run", "ann", fresh(rules=Rules(200, 10.0, mirror=mirror)))
        rollout_request.ask(self, "e", asked, clock=lambda: self.now)
        return self.follow(asked)

    def follow(self, asked: Request | None = None) -> tuple[list[str], list[str], str]:
        """Follow a rollout, and return decisions, problems and the last phase that were shown."""
        decisions, problems, phase = [], [], ""
        for progress in followed(self, "e", asked, self.wait, clock=lambda: self.now):
            decisions += [one.what for one in progress.decisions]
            problems += [progress.problem] if progress.problem not in ("", *problems[-1:]) else []
            phase = "" if progress.rollout is None else progress.rollout.phase
        return decisions, problems, phase


@pytest.fixture
def desk() -> Desk:
    """See ``Desk``."""
    return Desk()


def test_who_follows_again_learns_who_is_away_and_misses_no_decision(desk: Desk) -> None:
    """Ctrl-C left the rollout running: the registry is away, its controller dies, and the next one goes on."""
    assert (["start"], "running") == desk.leave()[::2]
    desk.lives, desk.is_up, desk.ends_at = False, False, desk.now + 5
    assert ["waiting for ClearML: the fake registry is down"] == desk.follow()[1]
    desk.is_up, desk.ends_at = True, desk.now + 60
    problems = desk.follow()[1]
    assert problems
    assert all("nobody guards it" in one and "(c1 did)" in one for one in problems)
    desk.carrier, desk.ends_at, desk.lives = desk.controller("c2"), float("inf"), True
    desk.election = Election(desk.reports, "c2", clock=lambda: desk.now, wall=lambda: desk.now)
    assert (["start", "step", "promote"], "promoted") == desk.follow()[::2]


def test_without_a_controller_nothing_is_asked_for(desk: Desk) -> None:
    """It must not come true hours later."""
    with pytest.raises(DeployError, match=NOBODY):
        desk.run()
    desk.leave()
    desk.lives = False
    desk.wait(30)
    with pytest.raises(DeployError, match=NOBODY):
        desk.do("promote")
    asked = record.request(desk.task(), "e")
    assert asked is not None
    assert "run" == asked.command


@pytest.mark.parametrize(("command", "phase"), [("promote", "promoted"), ("abort", "aborted")])
def test_a_controller_carries_out_what_is_asked(desk: Desk, command: Command, phase: str) -> None:
    """The command waits until it is done. What never was, or has ended, is refused."""
    with pytest.raises(DeployError, match="there is no rollout of e"):
        desk.do(command)
    desk.leave()
    state = desk.do(command)
    assert state is not None
    assert (phase, f"{command}-1") == (state.phase, state.handled)
    with pytest.raises(DeployError, match=f"the rollout of e has ended: {phase}"):
        desk.do(command)


@pytest.mark.parametrize("is_hung", [False, True])
def test_an_abort_without_a_controller_writes_weight_0_itself(desk: Desk, is_hung: bool) -> None:
    """At once if none has written lately; a hung one gets the time in which another takes over. It ends it later."""
    desk.leave()
    assert {"e/1": ShadowSpec("e/1", "e/2", 5.0, 1.0)} == desk.serving().shadows
    carrier, desk.carrier = desk.carrier, lambda _task: False  # type: ignore[assignment]
    desk.lives = is_hung
    desk.wait(0 if is_hung else 21)
    began = desk.now
    assert desk.do("abort") is None
    assert (began + ABORTED_S if is_hung else began) <= desk.now <= began + ABORTED_S * is_hung + 1
    assert {"e/2": 0.0, "e/1": 1.0} == desk.weights()
    assert ({}, ()) == (desk.serving().shadows, desk.serving().faults)
    desk.carrier, desk.lives = carrier, True
    desk.wait(30)
    assert ("aborted", "requested by ann") == (desk.rollout().phase, desk.rollout().why)
    assert {"e/2": 0.0, "e/1": 1.0} == desk.weights()


def test_an_abort_before_the_beginning_withdraws_the_request(desk: Desk) -> None:
    """A promotion is refused. The one whose controller died is told so."""
    desk.start()
    carrier, desk.carrier = desk.carrier, lambda _task: False  # type: ignore[assignment]
    desk.lives, desk.ends_at = False, desk.now + 40
    decisions, problems, _ = desk.run()
    assert ([], True) == (decisions, problems[-1].startswith(NOBODY))
    with pytest.raises(DeployError, match="the rollout of e has not begun yet"):
        desk.do("promote")
    with pytest.raises(DeployError, match="its request is withdrawn"):
        desk.do("abort")
    desk.carrier = carrier
    desk.start()
    desk.wait(10)
    assert {} == record.rollouts(desk.task())
