"""What nothing needs any more is removed, and nothing else."""

from __future__ import annotations

import pytest

from deploy.controller.pruning import UNUSED_S, Pruner
from deploy.controller.wanted import carry_out
from gateway.registry import Kind, Record
from gateway.version_numbers import KIND, Numbers, encode
from tests.fakes import FakeRegistry

OF_ENDPOINTS: tuple[Kind, ...] = ("rollout", "rollout_request", "objective", "shadow")


class World(FakeRegistry):
    """A serving Task with a served model, and contents of more."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1e6
        self.pruner = Pruner(wall=lambda: self.now)
        self.add_endpoint("e", "served", version="1")
        for model in ("served", "numbered", "gone"):
            value = {"name": model, "uri": "u", "stated": "", "sha256": "c" * 64, "at": 1e6}
            self.ledger.write([Record("content_hash", model, value)])
        numbers = Numbers().with_models(["numbered"]).serving(())
        self.ledger.write([
            Record(KIND, "auto", encode(numbers)),
            *(Record(kind, key, {}) for kind in OF_ENDPOINTS for key in ("e", "e/1", "gone", "gone/1")),
        ])  # fmt: skip

    def left(self) -> set[str]:
        """Return the models with a content."""
        return set(self.ledger.read()["content_hash"])

    def kept(self) -> list[set[str]]:
        """Return the keys of records that are about endpoints, by kind."""
        return [set(self.ledger.read()[kind]) for kind in OF_ENDPOINTS]


@pytest.fixture
def world() -> World:
    """See ``World``."""
    return World()


def test_what_no_endpoint_or_number_names_goes_after_an_hour(world: World) -> None:
    """Its writer's clock may differ, or the Task be behind; while it cannot be read, nothing is unknown."""
    every = {"served", "numbered", "gone"}, [{"e", "e/1", "gone", "gone/1"}] * 4
    assert not carry_out(world, world.task(), world.pruner)
    world.now += UNUSED_S + 1
    world.sections["endpoints"] = "e { broken"
    assert not carry_out(world, world.task(), world.pruner)
    assert every == (world.left(), world.kept())
    del world.sections["endpoints"]
    assert carry_out(world, world.task(), world.pruner)
    assert ({"served", "numbered"}, [{"e", "e/1"}] * 4) == (world.left(), world.kept())
    assert not carry_out(world, world.task(), world.pruner)


def test_old_load_requests_go(world: World) -> None:
    """Or the names of replaced models would stay for ever."""
    ages = {"old": 90_000, "new": 9_000}
    world.ledger.write([Record("load_request", key, {"at": world.now - age}) for key, age in ages.items()])
    assert carry_out(world, world.task(), world.pruner)
    assert {"new"} == world.ledger.read()["load_request"].keys()


def test_records_of_an_endpoint_that_comes_back_within_the_hour_stay(world: World) -> None:
    """Tools remove and add in two steps; and it may be removed again much later."""
    for is_there in (False, True, False, False):
        world.endpoints.pop("gone/1", None)
        if is_there:
            world.add_endpoint("gone", "gone", version="1")
        carry_out(world, world.task(), world.pruner)
        assert [{"e", "e/1", "gone", "gone/1"}] * 4 == world.kept()
        world.now += UNUSED_S - 1
