"""A rollout whose runner has ended is carried on by whoever leads, and ends as it would have."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from deploy.controller.rollouts import guard as rollouts
from deploy.controller.rollouts import record, steps
from deploy.controller.rollouts.guard import RolloutGuard
from deploy.controller.rollouts.record import CONTROLLER, LEASE_S, Lease, PendingCommand
from deploy.controller.rollouts.source import GatewaySource
from tests.unit.deploy.controller.rollouts.test_runner import World as Traffic
from tests.unit.deploy.controller.rollouts.test_runner import fresh


class World(Traffic):
    """A rollout that somebody began at a terminal, and the guard of a controller."""

    def __init__(self) -> None:
        super().__init__()
        self.names = iter(map(str, range(1000)))
        self.guard = self.another()
        self.terminal = self.runner("ann pid 1")
        self.terminal.start(fresh())

    def another(self) -> RolloutGuard:
        """The guard of a controller that has just begun to lead."""
        source = GatewaySource(("g1", "g2"), fetch=self.fetch)
        return RolloutGuard(self, source, self.statuses, next(self.names), wall=lambda: self.now)

    def look(self, guard: RolloutGuard, *, failing: bool = False) -> steps.Rollout:
        """Let callers ask both gateways for five seconds, then the guard look."""
        bad = 40 if failing else 0
        for gateway in self.counters:
            self.add(gateway, "2", "canary", ok=100 - bad, model_failed=bad)
            self.add(gateway, "1", "stable", ok=400, model_failed=1)
        self.now += 5.0
        assert guard(self.task()) is False
        found, _ = record.read(self.task(), "e")
        assert found is not None
        return found

    def holder(self) -> str:
        """Return who runs the rollout."""
        return record.read(self.task(), "e")[1].holder


@pytest.fixture
def world() -> World:
    """See ``World``."""
    return World()


def test_a_rollout_that_has_a_runner_is_left_alone_until_its_lease_is_over(world: World) -> None:
    """The terminal was killed: nobody gave the lease back."""
    for _ in range(int(LEASE_S / 5.0) - 1):
        world.look(world.guard)
        assert "ann pid 1" == world.holder()
    world.look(world.guard)
    assert world.holder().startswith(CONTROLLER)


@pytest.mark.parametrize("failing", [False, True])
def test_what_a_terminal_leaves_is_carried_on_at_once_and_ends(world: World, failing: bool) -> None:
    """Ctrl-C gives the lease back. A bad version is rolled back, a good one promoted."""
    world.terminal.release()
    for _ in range(60):
        rollout = world.look(world.guard, failing=failing)
        if rollout.is_over:
            break
        assert world.holder().startswith(CONTROLLER)
    assert ("rolled_back" if failing else "promoted") == rollout.phase
    assert "" == world.holder()


def test_a_controller_that_is_killed_at_every_look_ends_it_as_one_that_lives(world: World) -> None:
    """The next leader takes it from the earlier one at once, and continues from the records."""
    world.terminal.release()
    for _ in range(60):
        guard = world.another()
        world.look(guard)
        rollout = world.look(guard)
        if rollout.is_over:
            break
    assert "promoted" == rollout.phase


def test_two_that_lead_for_a_while_take_nothing_back(world: World) -> None:
    """Each takes it from the other and continues from the records; it ends once."""
    world.terminal.release()
    guards, weights = (world.another(), world.another()), []
    for turn in range(120):
        together = turn < 10 or 20 < turn < 30
        rollout = world.look(guards[turn % 2 if together else 0])
        weights.append(rollout.weight)
        if rollout.is_over:
            break
    assert "promoted" == rollout.phase
    assert sorted(weights) == weights
    assert 1 == sum(decision.what == "promote" for decision in rollout.history)


def test_a_person_stops_it_while_the_controller_runs_it(world: World) -> None:
    """`canary abort` leaves a command, which the next look carries out."""
    world.terminal.release()
    world.look(world.guard)
    world.write({}, [record.command("e", PendingCommand("c1", "abort", "bob"))])
    assert "aborted" == world.look(world.guard).phase


def test_a_person_takes_it_back_to_a_terminal(world: World) -> None:
    """`canary run` without a version; the controller then leaves it alone."""
    world.terminal.release()
    world.look(world.guard)
    assert world.holder().startswith(CONTROLLER)
    terminal = world.runner("bob pid 2")
    terminal.start(None, over=CONTROLLER)
    for _ in range(3):
        world.look(world.guard)
        terminal.look()
        assert "bob pid 2" == world.holder()


def test_without_gateways_it_says_that_nobody_guards(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """And takes nothing: whoever continues it at a terminal need not wait."""
    world.terminal.release()
    guard = RolloutGuard(world, None, world.statuses, "me", wall=lambda: world.now)
    for _ in range(3):
        guard(world.task())
    assert Lease() == record.read(world.task(), "e")[1]
    assert 1 == sum("nobody guards it" in one.message for one in caplog.records)


def test_a_name_stands_for_every_gateway_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters of one gateway must not be taken for those of another."""

    def answers(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        if host == "gone":
            raise OSError
        hosts = {"peers": ("10.0.0.2", "10.0.0.1", "fd00::1"), "127.0.0.1": ("127.0.0.1",)}[host]
        return [(0, 0, 0, "", (one, port)) for one in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    assert ["http://10.0.0.1:8080", "http://10.0.0.2:8080", "http://[fd00::1]:8080"] == rollouts.addresses(
        ["http://peers:8080"]
    )
    same = ["http://127.0.0.1:8080", "http://gone:80", "https://peers"]
    assert same == rollouts.addresses(same)
