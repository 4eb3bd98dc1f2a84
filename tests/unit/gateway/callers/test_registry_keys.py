"""Keys stored beside the serving Task: gateways get them with their next poll, revocations too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.cli import key_file
from deploy.cli.key_file import RegistryKeyStore
from deploy.tools.errors import DeployError
from gateway.callers.access import Access
from gateway.callers.following import Following
from gateway.callers.keys import KEY, Key, RegistryKeys, digest, new_key, records_of, written
from gateway.callers.sources import sources_of
from gateway.errors import NotAuthenticated
from gateway.registry import Record
from gateway.settings import Settings
from tests.fakes import FakeRegistry
from tests.unit.gateway.callers.test_keys import PEPPER


class Fleet:
    """A registry, the command that writes to it, and two gateways."""

    def __init__(self, folder: Path) -> None:
        self.registry = FakeRegistry()
        self.ledger = self.registry.ledger
        self.pepper = folder / "pepper"
        self.pepper.write_bytes(PEPPER)
        self.gateways = [Following(Access(), {"registry": RegistryKeys(str(self.pepper))}) for _ in range(2)]

    def store(self) -> RegistryKeyStore:
        return RegistryKeyStore(self.registry, self.pepper)

    def create(self) -> tuple[str, Key]:
        text, name = new_key()
        key = Key(name, digest(PEPPER, text.encode()).hex(), "acme", created=written(1))
        with self.store().editing() as stored:
            stored.keys.append(key)
        return text, key

    async def look(self) -> None:
        """Every gateway reads the serving Task."""
        for gateway in self.gateways:
            await gateway.learn(self.registry.task())

    def ask(self, text: str) -> list[str]:
        return [_answer(gateway, text) for gateway in self.gateways]


def _answer(gateway: Following, text: str) -> str:
    return _answer_of(gateway.access, text)


def _answer_of(access: Access, text: str) -> str:
    try:
        return access.caller_of({b"x-api-key": text.encode()}).tenant
    except NotAuthenticated as error:
        return error.because


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """See the class."""
    return Fleet(tmp_path)


async def test_a_change_reaches_every_gateway_at_its_next_poll(fleet: Fleet) -> None:
    """Not before."""
    await fleet.look()
    text, key = fleet.create()
    assert ["unknown_key"] * 2 == fleet.ask(text)
    await fleet.look()
    assert ["acme"] * 2 == fleet.ask(text)
    with fleet.store().editing() as stored:
        stored.keys[0] = Key(**{**{f: getattr(key, f) for f in Key.__slots__}, "revoked": written(2)})
    await fleet.look()
    assert ["revoked"] * 2 == fleet.ask(text)


async def test_unreadable_records_leave_the_last_good_keys(fleet: Fleet) -> None:
    """The status says so. A gateway that has never read any accepts none."""
    text, _ = fleet.create()
    await fleet.gateways[0].learn(fleet.registry.task())
    task = fleet.registry.task()
    for gateway in fleet.gateways:
        await gateway.learn(replace(task, records={}, problem="the records cannot be read"))
    assert ["acme", "unknown_key"] == fleet.ask(text)
    assert "cannot be read" in fleet.gateways[0].status()["registry"]["problem"]
    await fleet.look()
    assert ["acme", "acme"] == fleet.ask(text)
    assert None is fleet.gateways[0].status()["registry"]["problem"]


@pytest.mark.parametrize("sections", [{}, {"endpoints": "{"}], ids=["readable", "unreadable"])
async def test_keys_survive_a_restart_while_the_registry_is_away(
    make_stack: Any, tmp_path: Path, sections: dict[str, str]
) -> None:
    """As they were read last, revocations too; also those of a time when the rest of the Task could not be read."""
    pepper = tmp_path / "pepper"
    pepper.write_bytes(PEPPER)
    stack = make_stack(keys_from_registry=True, pepper_file=str(pepper))
    store = RegistryKeyStore(stack.registry, pepper)
    texts = []
    with store.editing() as stored:
        for _ in range(2):
            text, key = new_key_of(store)
            texts.append(text)
            stored.keys.append(key)

    async def answers(client: Any) -> list[int]:
        asked = [client.post("/serve/e", json={"text": "a"}, headers={"x-api-key": text}) for text in texts]
        return [(await one).status_code for one in asked]

    async with stack.gateway.running(), stack.client:
        stack.deploy("e", "m1")
        await stack.until(lambda: "e" in stack.gateway.table.current.endpoints)
        assert [200, 200] == await answers(stack.client)
        stack.registry.sections |= sections
        with store.editing() as stored:
            stored.keys[0] = replace(stored.keys[0], revoked=written(2))
        revoked = texts.index(next(text for text in texts if stored.keys[0].id in text))
        access = stack.gateway._callers.access
        await stack.until(lambda: _answer_of(access, texts[revoked]) == "revoked")
        [saved] = tmp_path.rglob("last-good.json")
        await stack.until(lambda: '"revoked"' in saved.read_text())
    stack.registry.is_up = stack.registry.ledger.is_up = False
    stack.backend.is_up = True
    stack.gateway = stack.new_gateway()
    async with stack.gateway.running(), stack.new_client(stack.gateway) as client:
        await stack.until(lambda: "e" in stack.gateway.table.current.endpoints)
        assert [401 if one == revoked else 200 for one in range(2)] == await answers(client)
    assert not [path for path in tmp_path.rglob("last-good.json") if any(text in path.read_text() for text in texts)]


async def test_an_invalid_record_changes_nothing(fleet: Fleet) -> None:
    """For example one that was edited in ClearML."""
    text, _ = fleet.create()
    await fleet.look()
    fleet.ledger.write([Record(KEY, "broken", {"hash": "x"})])
    await fleet.look()
    assert ["acme"] * 2 == fleet.ask(text)
    assert "keys.broken.hash" in fleet.gateways[0].status()["registry"]["problem"]


def test_only_changed_keys_are_written() -> None:
    """Other commands may write other keys at the same time."""
    old = [Key(name, "ab" * 32, "t") for name in ("a", "b")]
    new = [old[0], Key("b", "ab" * 32, "t", revoked=written(0)), Key("c", "cd" * 32, "t")]
    assert ["b", "c"] == [record.key for record in records_of(old, new)]
    assert not records_of(new, new)


def test_all_gateways_share_one_pepper(fleet: Fleet) -> None:
    """The setting requires it. It is not created anew while there are keys."""
    with pytest.raises(ValueError, match="PEPPER_FILE is needed"):
        sources_of(Settings(keys_from_registry=True))
    assert {"registry"} == set(sources_of(Settings(keys_from_registry=True, pepper_file="p")))
    fleet.create()
    fleet.pepper.unlink()
    with pytest.raises(DeployError, match="pepper"):
        fleet.store().pepper()


async def test_a_key_with_another_pepper_is_refused_by_the_command_and_reported_by_gateways(fleet: Fleet) -> None:
    """Otherwise it would be listed and work nowhere."""
    text, key = new_key_of(fleet.store())
    with fleet.store().editing() as stored:
        stored.keys.append(key)
    await fleet.look()
    assert ["acme"] * 2 == fleet.ask(text)
    fleet.pepper.write_bytes(b"another pepper, by mistake")
    with pytest.raises(DeployError, match="another pepper"):
        new_key_of(fleet.store())
    await fleet.look()
    assert ["unknown_key"] * 2 == fleet.ask(text)
    assert "1 of another pepper" in fleet.gateways[0].status()["registry"]["known"]
    RegistryKeyStore(fleet.registry).read()
    with pytest.raises(DeployError, match="a new key needs"):
        new_key_of(RegistryKeyStore(fleet.registry))


def new_key_of(store: RegistryKeyStore) -> tuple[str, Key]:
    """Return a key for everything, and its text."""
    return key_file.new_key(store, Key("", "", "acme", created=written(1)))
