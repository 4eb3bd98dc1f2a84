"""What a controller records stays bounded: ten thousand models in a row, published under an auto-update rule."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from deploy.controller import default_versions
from deploy.controller.auto_update import AutoUpdate
from deploy.controller.contents import ContentKeeper
from deploy.controller.history.recorder import Observer
from deploy.controller.pruning import Pruner
from deploy.controller.rollouts.duty import Rollouts
from deploy.controller.wanted import Duty, carry_out
from deploy.tools import sections
from gateway.spec import triton_model_name
from tests.fakes import FakeLedger, FakeRegistry

MODELS = 10_000
AT_ONCE = 100
"""Models that are published between two looks."""


class World(FakeRegistry):
    """A rule that serves the newest hundred models, all of which every Triton loads at once; simulated time."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.now = 1e9
        self.folder = folder
        rule = {"base_serving_url": "auto", "monitor_name": "m", "max_versions": AT_ONCE, "engine_type": "triton"}
        self.sections["model_monitoring"] = sections.render({"auto": rule})
        self.add_endpoint("fixed", "f", version="1")
        self.duties: Sequence[Duty] = (
            AutoUpdate(self, self.loaded, clock=self.clock, settle_s=30.0),
            default_versions.recorded,
            Rollouts(None, "me", wall=self.clock),
            ContentKeeper(self, self.hashes, wall=self.clock, start=lambda work: work()),
            Observer(self, clock=self.clock),
            Pruner(wall=self.clock),
        )

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def loaded(self) -> set[tuple[str, str]]:
        """Return what every Triton has loaded."""
        return {(one.url, str(one.model_id)) for one in self.spec().endpoints.values()}

    def hashes(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        """Return the hashes of what is loaded, by the model's name in Triton."""
        served = [one for one in self.spec().endpoints.values() if one.model_id in self.models]
        names = {triton_model_name(one, self.models[str(one.model_id)]): str(one.model_id) for one in served}
        return {name: [(hashlib.sha256(model.encode()).hexdigest(), "")] for name, model in names.items()}

    def publish(self, number: int) -> None:
        """Publish a model; one that is five hundred models old is deleted."""
        path = self.folder / f"{number:032x}"
        path.write_bytes(b"x")
        self.add_model(path.name, path, name="m")
        if number >= 500:
            gone = self.folder / f"{number - 500:032x}"
            self.models.pop(gone.name)
            gone.unlink()

    def look(self) -> None:
        """Let an hour pass and the controller decide, twice in it: the second time, new versions have settled."""
        for _ in range(2):
            self.now += 1800
            task = self.task()
            while any(carry_out(self, task, duty) for duty in self.duties):
                task = self.task()


def size(ledger: FakeLedger) -> int:
    """Return the bytes of all records."""
    return len(json.dumps(ledger.read()))


@pytest.mark.long
def test_records_of_ten_thousand_versions_are_as_long_as_those_of_two_thousand(tmp_path: Path) -> None:
    """Every gateway reads them at each change; ClearML's document may not exceed 16 MiB."""
    world, sizes, histories = World(tmp_path), [], []
    for number in range(MODELS):
        world.publish(number)
        if (number + 1) % AT_ONCE == 0:
            world.look()
        if (number + 1) % (MODELS // 5) == 0:
            sizes.append(size(world.ledger))
            histories.append(size(world.history))
    served = {one.version for one in world.spec().endpoints.values() if one.is_auto}
    assert {str(number) for number in range(MODELS - AT_ONCE + 1, MODELS + 1)} <= served
    assert max(sizes) < 1.1 * min(sizes)
    assert max(*sizes, *histories) < 1_000_000
