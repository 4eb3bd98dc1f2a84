"""One content per model: the first report counts, and whatever overwrites it is found."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from deploy.controller.contents import EVERY_S, ContentKeeper
from deploy.controller.wanted import carry_out
from gateway.errors import RegistryRefused
from gateway.spec import CONTENT_HASH, Content, contents, decode, records_of, triton_model_name
from tests.fakes import FakeRegistry


class World(FakeRegistry):
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
def world(tmp_path: Path) -> World:
    """See ``World``."""
    return World(tmp_path)


def sha(content: bytes) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(content).hexdigest()


def test_the_first_report_is_the_models_content_and_other_models_are_looked_at(world: World) -> None:
    """One record each, whatever is reported later."""
    assert {"s": sha(b"first")} == {name: one.sha256 for name, one in world.look().items()}
    world.report("a", "b")
    found = world.look()["m"]
    assert ("a", "parts of a", "b") == (found.sha256, found.parts, found.found)
    assert ["model m (m)"] == world.faults
    world.report("a")
    assert "" == world.look()["m"].found
    assert [] == world.faults


def test_a_model_that_had_company_before_anybody_looked_is_named_with_a_few_of_it(world: World) -> None:
    """The bytes are those of the last upload, if they differ; the last one itself is fine. Each of hundreds would
    otherwise name all the others, and the records would outgrow their document. Addresses that say what is there are
    not compared.
    """
    world.put("m-0123456789abcdef.zip", b"packed")
    for name, count, file in (("later", 30, "s"), ("packed", 2, "m-0123456789abcdef.zip")):
        for number in range(count):
            model = f"{name[0]}{number}"
            world.add_model(model, world.folder / file, name=name, created=f"2026-01-02T00:{number:02d}")
            world.add_endpoint(model, model, engine="sklearn")
    found = world.look()
    assert ("later (l0)", 6, ()) == (found["s"].newer[0], len(found["s"].newer), found["l29"].newer)
    assert ((), ()) == (found["p0"].newer, found["p1"].newer)
    assert "model s (s)" in world.faults


def test_a_model_at_a_new_address_is_another_model(world: World) -> None:
    """A person has uploaded it again."""
    world.look()
    world.put("other", b"second")
    world.add_model("s", world.folder / "other", created="2026-01-01")
    assert sha(b"second") == world.look()["s"].sha256
    assert [] == world.faults


def test_what_cannot_be_read_or_written_is_tried_again(world: World) -> None:
    """A file that is missing, a ledger that takes nothing."""
    (world.folder / "s").unlink()
    assert {} == world.look()
    world.put("s", b"first")
    world.ledger.is_read_only = True
    with pytest.raises(RegistryRefused):
        world.look()
    world.ledger.is_read_only = False
    assert {"s"} == world.look().keys()
