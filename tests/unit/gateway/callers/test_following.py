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
from gateway.callers.access import Access
from gateway.callers.following import Following
from gateway.callers.keys import KEY, Key, KeyFile, RegistryKeys, records_of, written
from gateway.errors import NotAuthenticated
from gateway.registry import Record
from tests.fakes import FakeRegistry
from tests.unit.gateway.callers.test_keys import made, written_file
from tests.waiting import LIMIT_S, soon


def answer(access: Access, text: str) -> str:
    """Return the tenant of a key, or the reason of its refusal."""
    try:
        return access.caller_of({b"x-api-key": text.encode()}).tenant
    except NotAuthenticated as error:
        return error.because


# --- a file -----------------------------------------------------------------------------------------------------------


class Mounted:
    """Keys as Kubernetes mounts a Secret: a file name behind a symbolic link that is swapped."""

    def __init__(self, root: Path) -> None:
        self._root, self._count = root, 0
        self.source = KeyFile(str(root / "keys.json"))
        self.told: list[tuple[str, bool]] = []
        self.access = Access()
        (root / "keys.json").symlink_to(Path("..data") / "keys.json")
        self.following = Following(self.access, {"keys_file": self.source}, lambda *told: self.told.append(told))

    def swap(self, raw: bytes | None) -> None:
        """Replace the content atomically; None for no file of keys."""
        self._count += 1
        folder = self._root / f"..{self._count}"
        folder.mkdir()
        if raw is not None:
            (folder / "keys.json").write_bytes(raw)
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
    """Half written or missing; then valid again. Before any good state, no key is accepted."""
    mounted, (first, one), (second, other) = Mounted(tmp_path), made(), made()
    mounted.swap(b"{")
    assert [False] == await mounted.knows(first)
    assert ("", None) == (mounted.status("known"), mounted.status("read"))
    mounted.swap(written_file(one))
    assert [True, False] == await mounted.knows(first, second)
    whole = written_file(other)
    mounted.swap(whole)
    assert [False, True] == await mounted.knows(first, second)
    for raw, why in (whole[:-20], "not JSON"), (None, "keys.json cannot be read"):
        mounted.swap(raw)
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

    def __init__(self) -> None:
        self.registry = FakeRegistry()
        self.gateways = [Following(Access(), {"registry": RegistryKeys()}) for _ in range(2)]
        self.store = RegistryKeyStore(self.registry)

    def create(self) -> str:
        text, key = a_new_key()
        with self.store.editing() as keys:
            keys.append(key)
        return text

    async def ask(self, text: str) -> list[str]:
        """Let every gateway read the serving Task, and ask it."""
        for gateway in self.gateways:
            await gateway.learn(self.registry.task())
        return [answer(gateway.access, text) for gateway in self.gateways]

    def status(self) -> Any:
        """Return the first gateway's status."""
        return self.gateways[0].status()["registry"]


def a_new_key() -> tuple[str, Key]:
    """Return a key for everything, and its text."""
    return key_file.new_key(Key("", "", "acme", created=written(1)))


@pytest.fixture
def fleet() -> Fleet:
    """See the class."""
    return Fleet()


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
    with fleet.store.editing() as keys:
        keys[0] = replace(keys[0], revoked=written(2))
    assert ["revoked"] * 2 == await fleet.ask(text)
    fleet.registry.ledger.write([Record(KEY, "broken", {"hash": "x"})])
    assert ["revoked"] * 2 == await fleet.ask(text)
    assert "keys.broken.hash" in fleet.status()["problem"]


async def test_keys_survive_a_restart_while_the_registry_is_away(make_stack: Any, tmp_path: Path) -> None:
    """As they were read last, revocations too; also those of a time when the rest of the Task could not be read."""
    stack = make_stack(keys_from_registry=True)
    store = RegistryKeyStore(stack.registry)
    made = [a_new_key() for _ in range(2)]
    with store.editing() as keys:
        keys += [key for _, key in made]

    async def answers(client: Any) -> list[int]:
        asked = [client.post("/serve/e", json={"text": "a"}, headers={"x-api-key": text}) for text, _ in made]
        return [(await one).status_code for one in asked]

    async with stack.gateway.running(), stack.client:
        stack.deploy("e", "m1")
        await stack.served("e")
        assert [200, 200] == await answers(stack.client)
        stack.registry.sections["endpoints"] = "{"
        with store.editing() as keys:
            keys[:] = [replace(key, revoked=written(2)) if key.id == made[0][1].id else key for key in keys]
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
