"""Decided weights stay in the serving Task: old copies are corrected, weights set on purpose are kept."""

from __future__ import annotations

import pytest

from deploy.controller import weights
from deploy.controller.rollouts import record
from deploy.controller.weights import WeightsKeeper
from deploy.tools import sections
from gateway.decisions import FORGOTTEN_S
from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.spec import decode
from gateway.testing import FakeRegistry

ENDPOINTS = {f"e/{v}": {"serving_url": "e", "version": v, "engine_type": "triton", "model_id": f"m{v}"} for v in "123"}


class World(FakeRegistry):
    """A serving Task with the route ``e``, a keeper that looks at it, and two clocks by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.sections["endpoints"] = sections.render(ENDPOINTS)
        self.now = 1_000_000.0
        self.keeper = WeightsKeeper(self, clock=lambda: self.now, wall=lambda: self.now)

    def stock(self, **weights: float) -> None:
        """Weights as `clearml-serving model canary` writes them: nothing is recorded."""
        self.sections |= record.with_weights(self.task(), "e", {f"e/{name[1:]}": w for name, w in weights.items()})

    def decide(self, **weights: float) -> None:
        """Weights as `triton-gateway canary set` writes them."""
        shares = {f"e/{name[1:]}": weight for name, weight in weights.items()}
        decision = record.decided(self.task(), "e", shares, now=self.now, by="ann", why="canary set")
        self.write(record.with_weights(self.task(), "e", shares), [decision])

    def look(self, seconds: float = 20.0) -> None:
        """Let the keeper look at the Task for a while, every two seconds."""
        for _ in range(int(seconds / 2)):
            self.keeper(self.task())
            self.now += 2

    @property
    def told(self) -> dict[str, float] | None:
        """What the Task says."""
        return record.weights(self.task(), "e")

    @property
    def served(self) -> str:
        """What gateways do."""
        route = decode(self.task()).canaries.get("e")
        return "" if route is None else ", ".join(f"{u} {w:g}" for u, w in zip(route.load_endpoints, route.weights))  # noqa: B905


@pytest.fixture
def world() -> World:
    """Ann has decided 20 % for the new version; before, it had 10 %."""
    world = World()
    world.stock(v2=0.1, v1=0.9)
    world.decide(v2=0.2, v1=0.8)
    return world


def test_an_old_copy_is_never_in_force_and_is_put_right(world: World) -> None:
    """Gateways ignore it at once, and the Task is corrected within seconds; then nothing more is logged."""
    world.stock(v2=0.1, v1=0.9)
    assert "e/2 0.2, e/1 0.8" == world.served
    assert "The decision of ann" in decode(world.task()).faults[0].message
    world.look()
    assert ({"e/2": 0.2, "e/1": 0.8}, ()) == (world.told, decode(world.task()).faults)


def test_a_route_that_an_old_copy_removes_stays(world: World) -> None:
    """The copy is older than the route."""
    world = World()
    world.decide(v2=0.2, v1=0.8)
    del world.sections["canary"]
    assert "e/2 0.2, e/1 0.8" == world.served
    world.look()
    assert {"e/2": 0.2, "e/1": 0.8} == world.told


def test_a_canary_that_was_decided_away_does_not_come_back(world: World) -> None:
    """A promotion removes it; an old copy brings it back for seconds in the Task, and never in a gateway."""
    world.decide()
    world.look()
    assert (None, "") == (world.told, world.served)
    world.stock(v2=0.2, v1=0.8)
    assert "" == world.served
    world.look()
    assert (None, "", ()) == (world.told, world.served, decode(world.task()).faults)
    world.stock(v3=1.0)
    assert "e/3 1" == world.served


def test_other_weights_are_somebodys_will(world: World) -> None:
    """They count at once, stay, and end the decision; afterwards even the replaced weights count."""
    world.stock(v2=0.5, v1=0.5)
    assert "e/2 0.5, e/1 0.5" == world.served
    world.look()
    world.stock(v2=0.1, v1=0.9)
    assert "e/2 0.1, e/1 0.9" == world.served
    world.look()
    assert {"e/2": 0.1, "e/1": 0.9} == world.told


def test_weights_that_are_set_again_after_they_were_put_right_are_meant(world: World) -> None:
    """The first time they cannot be told from an old copy; the second time they were set on purpose."""
    world.stock(v2=0.1, v1=0.9)
    world.look()
    world.stock(v2=0.1, v1=0.9)
    assert "e/2 0.1, e/1 0.9" == world.served
    world.look()
    assert ({"e/2": 0.1, "e/1": 0.9}, ()) == (world.told, decode(world.task()).faults)


def test_the_same_shares_written_otherwise_are_no_old_copy(world: World) -> None:
    """An old copy is identical to the last digit; a person writes the same shares differently."""
    world.stock(v1=9, v2=1)
    assert "e/1 9, e/2 1" == world.served


def test_what_our_commands_set_counts_at_once(world: World) -> None:
    """Even if it equals the former weights."""
    world.decide(v2=0.1, v1=0.9)
    assert "e/2 0.1, e/1 0.9" == world.served
    world.look()
    assert {"e/2": 0.1, "e/1": 0.9} == world.told
    world.stock(v2=0.2, v1=0.8)  # a copy from before this one
    assert "e/2 0.1, e/1 0.9" == world.served


def test_old_weights_after_a_long_time_are_meant(world: World) -> None:
    """No call of the stock CLI takes an hour."""
    world.now += FORGOTTEN_S + 1
    world.stock(v2=0.1, v1=0.9)
    world.look()
    assert ("e/2 0.1, e/1 0.9", {"e/2": 0.1, "e/1": 0.9}) == (world.served, world.told)


def test_a_decision_that_is_just_being_written_is_left_alone(world: World) -> None:
    """The record is written before the weights: nothing is corrected, so no weights are marked as set on purpose."""
    world.write({}, [record.decided(world.task(), "e", {"e/2": 0.3}, now=world.now, by="ann", why="w")])
    assert "e/2 0.3" == world.served
    world.look(weights.SETTLED_S - 1)
    assert {"e/2": 0.2, "e/1": 0.8} == world.told
    world.stock(v2=0.3)
    world.look()
    assert "decision_mark" not in world.ledger.read()


def test_a_decision_about_a_version_that_is_gone_is_not_in_force(world: World) -> None:
    """Somebody removed the endpoint, so the weights in the Task count."""
    world.sections["endpoints"] = sections.render({"e/1": ENDPOINTS["e/1"]})
    world.stock(v2=0.1, v1=0.9)
    assert "e/2 0.1, e/1 0.9" == world.served
    world.look()
    assert {"e/2": 0.1, "e/1": 0.9} == world.told


def test_a_section_that_cannot_be_read_is_left_alone(world: World) -> None:
    """An unreadable section does not mean that there is no route."""
    world.sections["canary"] = "{"
    world.look()
    assert "{" == world.sections["canary"]


def test_two_keepers_write_the_same(world: World) -> None:
    """They run beside two Tritons, and one reads the Task later."""
    other = WeightsKeeper(world, clock=lambda: world.now, wall=lambda: world.now)
    world.stock(v2=0.1, v1=0.9)
    late = world.task()
    other(late)
    world.look()
    assert other(late)  # what it saw is no longer so
    assert {"e/2": 0.2, "e/1": 0.8} == world.told
    assert 1 == len(world.ledger.read()["decision_mark"])


def test_a_registry_that_refuses_harms_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways follow the decision; the failure is logged once, and writing is retried."""
    world.stock(v2=0.1, v1=0.9)
    for error in (RegistryUnavailable("away"), RegistryRefused("may only read")):
        with monkeypatch.context() as patched:
            patched.setattr(world, "write", lambda *_a, error=error: (_ for _ in ()).throw(error))
            world.look()
        assert "e/2 0.2, e/1 0.8" == world.served
    world.look()
    assert {"e/2": 0.2, "e/1": 0.8} == world.told


def test_weights_that_were_decided_and_never_written_are_written(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The writer or ClearML died: no other client is blamed, and a later old copy is still corrected."""
    caplog.set_level("INFO")
    world.look()
    stale = dict(world.sections)
    decision = record.decided(world.task(), "e", {"e/2": 0.3, "e/1": 0.7}, now=world.now, by="ann", why="canary set")
    world.write({}, [decision])
    assert "e/2 0.3, e/1 0.7" == world.served
    world.look()
    assert {"e/2": 0.3, "e/1": 0.7} == world.told
    assert "another ClearML client" not in caplog.text
    assert "were missing in the serving Task; they are written now" in caplog.text
    world.sections = dict(stale)
    world.look()
    assert {"e/2": 0.3, "e/1": 0.7} == world.told
    assert "another ClearML client overwrote the weights of e with an old copy" in caplog.text
    world.sections = dict(stale)
    world.look()
    assert {"e/2": 0.2, "e/1": 0.8} == world.told, "the third time they are somebody's will"
