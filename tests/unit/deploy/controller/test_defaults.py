"""The controller records the first version once, and no later automatic change replaces it."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.controller import default_versions
from deploy.controller.pruning import Pruner
from deploy.controller.wanted import Wanted, carry_out
from gateway.spec import ServingTask, decode
from tests.fakes import FakeRegistry


class World(FakeRegistry):
    """A serving Task, and a controller that looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.pruner = Pruner(wall=lambda: self.now)

    def keeper(self, task: ServingTask) -> Wanted | None:
        """Return the missing defaults."""
        return default_versions.recorded(task, wall=lambda: self.now)

    def look(self, seconds: float = 20.0) -> None:
        """Look for a while, every two seconds."""
        for _ in range(int(seconds / 2)):
            for duty in (self.keeper, self.pruner):
                carry_out(self, self.task(), duty)
            self.now += 2

    @property
    def means(self) -> dict[str, str]:
        """Return the default version of each endpoint."""
        return dict(decode(self.task()).defaults)


@pytest.fixture
def world() -> World:
    """Version 2 was added first, then 1: the order of addition counts, not the number."""
    world = World()
    world.add_endpoint("faq", "m2", version="2")
    world.add_endpoint("faq", "m1", version="1")
    world.look(2)
    return world


def test_the_first_version_added_is_recorded_and_a_later_one_changes_nothing(world: World) -> None:
    """One record is written, however often the Task is read."""
    world.add_endpoint("faq", "m3", version="3")
    world.look()
    assert {"faq": "faq/2"} == world.means
    assert 1 == len(world.ledger.read()["default_version"])


def test_a_default_is_awaited_until_it_is_recorded_and_only_if_it_will_be() -> None:
    """Not for a name that has a canary, even a broken one, nor for versions of auto-update: its limit retires them."""
    world = World()
    world.add_endpoint("faq", "m1", version="1")
    world.add_endpoint("alone", "m1")
    world.sections["model_monitoring_eps"] = (
        'auto/1 { serving_url = "auto", version = "1", engine_type = "triton", model_id = "m1" }'
    )
    assert ["faq"] == default_versions.awaited(decode(world.task()))
    world.canary = {"faq": {"endpoint": "faq", "weights": [], "load_endpoints": ["faq/1"]}}
    assert [] == default_versions.awaited(decode(world.task()))
    world.canary = {}
    world.look(2)
    assert ([], {"faq": "faq/1"}) == (default_versions.awaited(decode(world.task())), world.means)


def test_nothing_is_recorded_while_a_section_cannot_be_read() -> None:
    """A canary of the name may stand there: then it would have no default."""
    world = World()
    world.add_endpoint("faq", "m1", version="1")
    world.sections["canary"] = "faq { weights = ["
    assert ["section canary"] == [fault.subject for fault in decode(world.task()).unreadable]
    assert world.keeper(world.task()) is None


def test_a_person_chooses_and_nobody_changes_it_back_until_the_endpoint_is_gone(world: World) -> None:
    """One command is enough, also while the chosen version is away. Tools may remove and add in two writes."""
    world.write({}, [default_versions.chosen("faq", "faq/1", now=world.now, by="ann", why="default")])
    world.look()
    for endpoints, seconds in (({"faq/2": world.endpoints["faq/2"]}, 600), ({}, 12), (dict(world.endpoints), 20)):
        world.endpoints = endpoints
        world.look(seconds)
    assert {"faq": "faq/1"} == world.means
    world.endpoints = {}
    world.look(30)
    world.add_endpoint("faq", "m3", version="3")
    world.look()
    assert {"faq": "faq/3"} == world.means


@pytest.mark.parametrize("broken", [{"engine_type": "none"}, None])
def test_a_default_stays_while_its_version_is_broken_or_nothing_can_be_read(world: World, broken: Any) -> None:
    """Its entry is still there; whoever wrote it may repair it. Unknown versions are not the same as no versions."""
    good, world.endpoints = world.endpoints, {"faq/2": {**world.endpoints["faq/2"], **(broken or {})}}
    if broken is None:
        world.sections["endpoints"] = "faq { broken"
    world.look(600)
    world.sections.pop("endpoints", None)
    world.endpoints = {"faq/2": good["faq/2"], "faq/0": {**good["faq/2"], "version": "0"}}
    assert {"faq": "faq/2"} == world.means
