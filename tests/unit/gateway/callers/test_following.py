"""Keys in a file or beside the serving Task: gateways follow every change, and what cannot be used changes nothing."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.cli import key_file
from deploy.cli.key_file import RegistryKeyStore
from deploy.tools.errors import DeployError
from gateway.callers.access import Access
from gateway.callers.following import Following
from gateway.callers.keys import KEY, Key, KeyFile, RegistryKeys, name_of, records_of, written
from gateway.errors import NotAuthenticated
from gateway.registry import Record
from tests.fakes import FakeRegistry
from tests.unit.gateway.callers.test_keys import PEPPER, made, written_file
from tests.waiting import LIMIT_S, soon


def answer(access: Access, text: str) -> str:
    """Return the tenant of a key, or the reason of its refusal."""
    try:
        return access.caller_of({b"x-api-key": text.encode()}).tenant
    except NotAuthenticated as error:
        return error.because


# --- a file -----------------------------------------------------------------------------------------------------------


class Mounted:
    """Keys and pepper as Kubernetes mounts a Secret: file names behind a symbolic link that is swapped."""

    def __init__(self, root: Path) -> None:
        self._root, self._count = root, 0
        self.source = KeyFile(str(root / "keys.json"))
        self.told: list[tuple[str, bool]] = []
        self.access = Access()
        for name in ("keys.json", "keys.json.pepper"):
            (root / name).symlink_to(Path("..data") / name)
        self.following = Following(self.access, {"keys_file": self.source}, lambda *told: self.told.append(told))

    def swap(self, raw: bytes | None, pepper: bytes = PEPPER) -> None:
        """Replace the content atomically; None for no file of keys."""
        self._count += 1
        folder = self._root / f"..{self._count}"
        folder.mkdir()
        if raw is not None:
            (folder / "keys.json").write_bytes(raw)
        (folder / "keys.json.pepper").write_bytes(pepper)
        (self._root / "..new").symlink_to(folder.name)
        (self._root / "..new").replace(self._root / "..data")

    async def knows(self, *texts: str) -> list[bool]:
        """Look once; return which of the keys are known."""
        await self.following.look()
        return [answer(self.access, text) == "acme" for text in texts]

    def status(self, name: str) -> Any:
        """Return a field of the status."""
        return self.following.status()["keys_file"][name]


async def test_the_last_good_state_of_a_file_stays(tmp_path: Path) -> None:
    """Half written, with another pepper, or missing; then valid again. Before any good state, no key is accepted."""
    mounted, (first, one), (second, other) = Mounted(tmp_path), made(), made()
    mounted.swap(b"{")
    assert [False] == await mounted.knows(first)
    assert ("", None) == (mounted.status("known"), mounted.status("read"))
    mounted.swap(written_file(one))
    assert [True, False] == await mounted.knows(first, second)
    whole = written_file(other, pepper=name_of(PEPPER))
    mounted.swap(whole)
    assert [False, True] == await mounted.knows(first, second)
    for raw, pepper, why in (
        (whole[:-20], PEPPER, "not JSON"), (whole, b"q" * 32, "made with the pepper"),
        (None, PEPPER, "keys.json cannot be read"),
    ):  # fmt: skip
        mounted.swap(raw, pepper)
        assert [True] == await mounted.knows(second)
        assert ("keys_file", False) == mounted.told[-1]
        assert why in mounted.status("problem")
        assert mounted.status("known").startswith("1 keys")
    mounted.swap(whole)
    assert [True] == await mounted.knows(second)
    assert (("keys_file", True), None) == (mounted.told[-1], mounted.status("problem"))


async def test_a_slow_source_delays_no_other(tmp_path: Path) -> None:
    """An issuer or registry does not answer. Revocations of keys still take effect."""
    answers = threading.Event()

    class Slow:
        period = 0.01

        def look(self) -> None:
            answers.wait(LIMIT_S)

    mounted, (text, key) = Mounted(tmp_path), made()
    mounted.swap(written_file(key))
    task = asyncio.create_task(Following(mounted.access, {"slow": Slow(), "keys_file": mounted.source}).run())
    try:
        await soon(lambda: answer(mounted.access, text) == "acme")
        mounted.swap(written_file())
        await soon(lambda: answer(mounted.access, text) != "acme")
    finally:
        answers.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- the registry -----------------------------------------------------------------------------------------------------


class Fleet:
    """A registry, the command that writes to it, and two gateways."""

    def __init__(self, folder: Path) -> None:
        self.registry = FakeRegistry()
        self.pepper = folder / "pepper"
        self.pepper.write_bytes(PEPPER)
        self.gateways = [Following(Access(), {"registry": RegistryKeys(str(self.pepper))}) for _ in range(2)]

    def store(self) -> RegistryKeyStore:
        return RegistryKeyStore(self.registry, self.pepper)

    def create(self) -> str:
        text, key = new_key_of(self.store())
        with self.store().editing() as stored:
            stored.keys.append(key)
        return text

    async def ask(self, text: str) -> list[str]:
        """Let every gateway read the serving Task, and ask it."""
        for gateway in self.gateways:
            await gateway.learn(self.registry.task())
        return [answer(gateway.access, text) for gateway in self.gateways]

    def status(self) -> Any:
        """Return the first gateway's status."""
        return self.gateways[0].status()["registry"]


def new_key_of(store: RegistryKeyStore) -> tuple[str, Key]:
    """Return a key for everything, and its text."""
    return key_file.new_key(store, Key("", "", "acme", created=written(1)))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """See the class."""
    return Fleet(tmp_path)


async def test_a_change_in_the_registry_reaches_every_gateway_at_its_next_poll(fleet: Fleet) -> None:
    """Records that are unreadable, or invalid because somebody edited them in ClearML, leave the last good keys, and
    the status says so. A gateway that has never read any accepts none.
    """
    text, task = fleet.create(), fleet.registry.task()
    assert ["unknown_key"] * 2 == [answer(gateway.access, text) for gateway in fleet.gateways]
    await fleet.gateways[0].learn(task)
    for gateway in fleet.gateways:
        await gateway.learn(replace(task, records={}, problem="the records cannot be read"))
    assert ["acme", "unknown_key"] == [answer(gateway.access, text) for gateway in fleet.gateways]
    assert "cannot be read" in fleet.status()["problem"]
    assert ["acme"] * 2 == await fleet.ask(text)
    assert None is fleet.status()["problem"]
    with fleet.store().editing() as stored:
        stored.keys[0] = replace(stored.keys[0], revoked=written(2))
    assert ["revoked"] * 2 == await fleet.ask(text)
    fleet.registry.ledger.write([Record(KEY, "broken", {"hash": "x"})])
    assert ["revoked"] * 2 == await fleet.ask(text)
    assert "keys.broken.hash" in fleet.status()["problem"]


async def test_keys_survive_a_restart_while_the_registry_is_away(make_stack: Any, tmp_path: Path) -> None:
    """As they were read last, revocations too; also those of a time when the rest of the Task could not be read."""
    pepper = tmp_path / "pepper"
    pepper.write_bytes(PEPPER)
    stack = make_stack(keys_from_registry=True, pepper_file=str(pepper))
    store = RegistryKeyStore(stack.registry, pepper)
    made = [new_key_of(store) for _ in range(2)]
    with store.editing() as stored:
        stored.keys += [key for _, key in made]

    async def answers(client: Any) -> list[int]:
        asked = [client.post("/serve/e", json={"text": "a"}, headers={"x-api-key": text}) for text, _ in made]
        return [(await one).status_code for one in asked]

    async with stack.gateway.running(), stack.client:
        stack.deploy("e", "m1")
        await stack.served("e")
        assert [200, 200] == await answers(stack.client)
        stack.registry.sections["endpoints"] = "{"
        with store.editing() as stored:
            stored.keys = [replace(key, revoked=written(2)) if key.id == made[0][1].id else key for key in stored.keys]
        await stack.until(lambda: answer(stack.gateway._callers.access, made[0][0]) == "revoked")
        [saved] = tmp_path.rglob("last-good.json")
        await stack.until(lambda: '"revoked"' in saved.read_text())
    stack.registry.is_up = stack.registry.ledger.is_up = False
    stack.backend.is_up = True
    stack.gateway = stack.new_gateway()
    async with stack.gateway.running(), stack.new_client(stack.gateway) as client:
        await stack.until(lambda: "e" in stack.gateway.table.current.endpoints)
        assert [401, 200] == await answers(client)
    assert not any(text in saved.read_text() for text, _ in made)


def test_only_changed_keys_are_written() -> None:
    """Other commands may write other keys at the same time."""
    old = [Key(name, "ab" * 32, "t") for name in ("a", "b")]
    new = [old[0], Key("b", "ab" * 32, "t", revoked=written(0)), Key("c", "cd" * 32, "t")]
    assert ["b", "c"] == [record.key for record in records_of(old, new)]


async def test_all_gateways_share_one_pepper(fleet: Fleet) -> None:
    """A key with another one would be listed and work nowhere: the command refuses it, gateways report it. The pepper
    is not created anew while there are keys.
    """
    text = fleet.create()
    assert ["acme"] * 2 == await fleet.ask(text)
    fleet.pepper.write_bytes(b"another pepper, by mistake")
    with pytest.raises(DeployError, match="another pepper"):
        fleet.create()
    assert ["unknown_key"] * 2 == await fleet.ask(text)
    assert "1 of another pepper" in fleet.status()["known"]
    fleet.pepper.unlink()
    with pytest.raises(DeployError, match="pepper"):
        fleet.store().pepper()
    RegistryKeyStore(fleet.registry).read()
    with pytest.raises(DeployError, match="a new key needs"):
        new_key_of(RegistryKeyStore(fleet.registry))
