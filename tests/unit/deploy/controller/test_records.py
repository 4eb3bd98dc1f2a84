"""Records that the controller keeps: the first version of each endpoint as its default, one content per model, whatever
overwrites it; and what nothing needs is removed, and nothing else.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from deploy.controller import default_versions
from deploy.controller.contents import EVERY_S, ContentKeeper
from deploy.controller.pruning import UNUSED_S, Pruner
from deploy.controller.wanted import Wanted, carry_out
from gateway.errors import RegistryRefused
from gateway.registry import Kind, Record
from gateway.spec import CONTENT_HASH, Content, ServingTask, contents, decode, records_of, triton_model_name
from gateway.version_numbers import KIND, Numbers, encode
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
            carry_out(self, self.task(), self.keeper)
            self.prune()
            self.now += 2

    def prune(self) -> bool:
        """Remove what is unused; return whether anything was."""
        return carry_out(self, self.task(), self.pruner)

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
    world.sections["canary"] = "faq { weights = ["  # a canary of the name may stand there
    assert world.keeper(world.task()) is None
    del world.sections["canary"]
    world.look(2)
    assert ([], {"faq": "faq/1"}) == (default_versions.awaited(decode(world.task())), world.means)


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


OF_ENDPOINTS: tuple[Kind, ...] = ("rollout", "rollout_request", "objective", "shadow")
EVERY = [{"e", "e/1", "gone", "gone/1"}] * len(OF_ENDPOINTS)


@pytest.fixture
def full() -> World:
    """A served model, contents of more, and records of an endpoint that has gone."""
    world = World()
    world.add_endpoint("e", "served", version="1")
    for model in ("served", "numbered", "gone"):
        value = {"name": model, "uri": "u", "sha256": "c" * 64, "at": world.now}
        world.ledger.write([Record("content_hash", model, value)])
    world.ledger.write([
        Record(KIND, "auto", encode(Numbers().with_models(["numbered"]).serving(()))),
        *(Record(kind, key, {}) for kind in OF_ENDPOINTS for key in EVERY[0]),
    ])  # fmt: skip
    return world


def kept(world: World) -> tuple[set[str], list[set[str]]]:
    """Return the models with a content, and the keys of records that are about endpoints, by kind."""
    records = world.ledger.read()
    return set(records["content_hash"]), [set(records[kind]) for kind in OF_ENDPOINTS]


def test_what_no_endpoint_or_number_names_goes_after_an_hour(full: World) -> None:
    """Its writer's clock may differ, or the Task be behind; while it cannot be read, nothing is unknown. A gateway's
    request to load a model goes after a day.
    """
    full.now += 90_000
    for key, age in (("old", 90_000), ("new", 9_000)):
        full.ledger.write([Record("load_request", key, {"at": full.now - age})])
    full.sections["endpoints"] = "e { broken"
    assert not full.prune()
    assert ({"served", "numbered", "gone"}, EVERY) == kept(full)
    del full.sections["endpoints"]
    assert full.prune()
    assert (({"served", "numbered"}, EVERY), {"new"}) == (kept(full), set(full.ledger.read()["load_request"]))
    full.now += UNUSED_S + 1
    assert full.prune()
    assert ({"served", "numbered"}, [{"e", "e/1"}] * 4) == kept(full)
    assert not full.prune()


def test_records_of_an_endpoint_that_comes_back_within_the_hour_stay(full: World) -> None:
    """Tools remove and add in two steps; and it may be removed again much later."""
    for is_there in (False, True, False, False):
        full.endpoints.pop("gone/1", None)
        if is_there:
            full.add_endpoint("gone", "gone", version="1")
        full.prune()
        assert EVERY == kept(full)[1]
        full.now += UNUSED_S - 1


class Uploads(FakeRegistry):
    """A Triton model ``m`` and an sklearn model ``s``, and what model syncs report; reads happen at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.now = 1e6
        self.told: dict[str, list[tuple[str, str]]] = {}
        for name, engine in (("m", "triton"), ("s", "sklearn")):
            self.put(name, b"first")
            self.add_model(name, folder / name, created="2026-01-01")
            self.add_endpoint(name, name, engine=engine)
        self.keeper = ContentKeeper(self, lambda: self.told, wall=lambda: self.now, start=lambda work: work())

    def put(self, name: str, content: bytes) -> None:
        """Upload a file."""
        (self.folder / name).write_bytes(content)

    def report(self, *hashes: str) -> None:
        """Let model syncs report these hashes of ``m``."""
        name = triton_model_name(decode(self.task()).endpoints["m"], self.model("m"))
        self.told = {name: [(sha256, f"parts of {sha256}") for sha256 in hashes]}

    def look(self) -> dict[str, Content]:
        """Let the controller look until nothing changes; return what is recorded."""
        for _ in range(5):
            self.now += EVERY_S
            carry_out(self, self.task(), self.keeper)
        self.now += EVERY_S
        assert not carry_out(self, self.task(), self.keeper), "what is known is not written again"
        return contents(records_of(self.task(), CONTENT_HASH))

    @property
    def faults(self) -> list[str]:
        """Subjects of the faults that gateways show."""
        return [fault.subject for fault in decode(self.task()).faults]


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    """See ``Uploads``."""
    return Uploads(tmp_path)


def sha(content: bytes) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(content).hexdigest()


def test_the_first_report_is_the_models_content_and_other_models_are_looked_at(uploads: Uploads) -> None:
    """One record each, whatever is reported later."""
    assert {"s": sha(b"first")} == {name: one.sha256 for name, one in uploads.look().items()}
    uploads.report("a", "b")
    found = uploads.look()["m"]
    assert ("a", "parts of a", "b") == (found.sha256, found.parts, found.found)
    assert ["model m (m)"] == uploads.faults
    uploads.report("a")
    assert "" == uploads.look()["m"].found
    assert [] == uploads.faults


def test_a_model_that_had_company_before_anybody_looked_is_named_with_a_few_of_it(uploads: Uploads) -> None:
    """The bytes are those of the last upload, if they differ; the last one itself is fine. Each of hundreds would
    otherwise name all the others, and the records would outgrow their document. Addresses that say what is there are
    not compared.
    """
    uploads.put("m-0123456789abcdef.zip", b"packed")
    for name, count, file in (("later", 30, "s"), ("packed", 2, "m-0123456789abcdef.zip")):
        for number in range(count):
            model = f"{name[0]}{number}"
            uploads.add_model(model, uploads.folder / file, name=name, created=f"2026-01-02T00:{number:02d}")
            uploads.add_endpoint(model, model, engine="sklearn")
    found = uploads.look()
    assert ("later (l0)", 6, ()) == (found["s"].newer[0], len(found["s"].newer), found["l29"].newer)
    assert ((), ()) == (found["p0"].newer, found["p1"].newer)
    assert "model s (s)" in uploads.faults


def test_a_model_at_a_new_address_is_another_model(uploads: Uploads) -> None:
    """A person has uploaded it again."""
    uploads.look()
    uploads.put("other", b"second")
    uploads.add_model("s", uploads.folder / "other", created="2026-01-01")
    assert sha(b"second") == uploads.look()["s"].sha256
    assert [] == uploads.faults


def test_what_cannot_be_read_or_written_is_tried_again(uploads: Uploads) -> None:
    """A file that is missing, a ledger that takes nothing."""
    (uploads.folder / "s").unlink()
    assert {} == uploads.look()
    uploads.put("s", b"first")
    uploads.ledger.is_read_only = True
    with pytest.raises(RegistryRefused):
        uploads.look()
    uploads.ledger.is_read_only = False
    assert {"s"} == uploads.look().keys()
