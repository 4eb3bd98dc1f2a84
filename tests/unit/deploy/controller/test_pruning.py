"""What nothing needs any more is removed, and nothing else."""

from __future__ import annotations

import pytest

from deploy.controller.pruning import EVERY_S, UNUSED_S, Pruner
from gateway.registry import Record
from gateway.testing import FakeRegistry
from gateway.version_numbers import KIND, Numbers, encode


class World(FakeRegistry):
    """A serving Task with a served model, and contents of more."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1e6
        self.pruner = Pruner(self, clock=lambda: self.now, wall=lambda: self.now)
        self.add_endpoint("e", "served", version="1")
        for model in ("served", "numbered", "gone"):
            value = {"name": model, "uri": "u", "stated": "", "sha256": "c" * 64, "at": 1e6}
            self.ledger.write([Record("content_hash", model, value)])
        numbers = Numbers().with_models(["numbered"]).serving(())
        decision = {"revision": "now", "urls": ["e/1"], "weights": [1.0], "at": 1.0}
        self.ledger.write([
            Record(KIND, "auto", encode(numbers)), Record("decision", "e", decision),
            Record("decision_mark", "now/retired", {"at": 1.0}), Record("decision_mark", "then/e/1 1", {"at": 1.0}),
        ])  # fmt: skip

    def left(self) -> tuple[set[str], set[str]]:
        """Return the models with a content, and the marks."""
        stored = self.ledger.read()
        return set(stored["content_hash"]), set(stored["decision_mark"])


@pytest.fixture
def world() -> World:
    """See ``World``."""
    return World()


def test_what_no_endpoint_number_or_decision_names_goes_after_an_hour(world: World) -> None:
    """Its writer's clock may differ, or the Task be behind."""
    assert world.pruner(world.task())
    assert ({"served", "numbered", "gone"}, {"now/retired"}) == world.left()
    world.now += UNUSED_S + 1
    assert world.pruner(world.task())
    assert ({"served", "numbered"}, {"now/retired"}) == world.left()
    assert not world.pruner(world.task())
    world.now += EVERY_S
    assert not world.pruner(world.task())


@pytest.mark.parametrize("how", ["unreadable", "away"])
def test_nothing_is_removed_while_the_task_or_its_records_cannot_be_read(world: World, how: str) -> None:
    """Unknown endpoints are not the same as none."""
    world.now += UNUSED_S + 1
    task = world.task()
    if how == "unreadable":
        world.sections["endpoints"] = "e { broken"
        task = world.task()
    else:
        world.ledger.is_up = False
    assert not world.pruner(task)
    world.ledger.is_up = True
    assert {"served", "numbered", "gone"} == world.left()[0]
