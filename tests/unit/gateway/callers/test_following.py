"""Files of keys that are replaced, half written or missing: the last good state stays, and the problem is logged."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from gateway.callers.access import Access
from gateway.callers.following import Following
from gateway.callers.keys import Key, KeyFile, digest, name_of, new_key
from gateway.errors import NotAuthenticated
from tests.unit.gateway.callers.test_keys import PEPPER, written_file
from tests.waiting import LIMIT_S


class Mounted:
    """Keys and pepper as Kubernetes mounts a Secret: file names behind a symbolic link that is swapped."""

    def __init__(self, root: Path) -> None:
        self._root, self._count = root, 0
        self.keys_file = root / "keys.json"
        self.keys: list[Key] = []
        self.told: list[tuple[str, bool]] = []
        self.access = Access()
        for name in ("keys.json", "keys.json.pepper"):
            (root / name).symlink_to(Path("..data") / name)
        self.following = Following(
            self.access, {"keys_file": KeyFile(str(root / "keys.json"))}, lambda *told: self.told.append(told)
        )

    def add(self) -> str:
        key, name = new_key()
        self.keys.append(Key(name, digest(PEPPER, key.encode()).hex(), "acme"))
        return key

    def write(self) -> None:
        """Replace the content by the keys."""
        self.swap(written_file(*self.keys))

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

    def knows(self, key: str) -> bool:
        try:
            self.access.caller_of({b"x-api-key": key.encode()})
        except NotAuthenticated:
            return False
        return True


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    """An empty Secret."""
    return Mounted(tmp_path)


async def test_a_swapped_secret_is_read_at_the_next_look(mounted: Mounted) -> None:
    """Additions and removals."""
    first = mounted.add()
    mounted.write()
    await mounted.following.look()
    assert mounted.knows(first)
    second = mounted.add()
    mounted.keys.pop(0)
    mounted.write()
    await mounted.following.look()
    assert (False, True) == (mounted.knows(first), mounted.knows(second))


async def test_an_unusable_file_leaves_the_last_good_state_and_is_logged_once(
    mounted: Mounted, caplog: pytest.LogCaptureFixture
) -> None:
    """Half written, with another pepper, or missing; then valid again."""
    key = mounted.add()
    whole = written_file(*mounted.keys, pepper=name_of(PEPPER))
    mounted.swap(whole)
    await mounted.following.look()
    for raw, pepper, why in (
        (whole[:-20], PEPPER, "not JSON"), (whole, b"q" * 32, "made with the pepper"),
        (None, PEPPER, "keys.json cannot be read: No such file or directory; `triton-gateway keys create` makes it"),
    ):  # fmt: skip
        caplog.clear()
        mounted.swap(raw, pepper)
        for _ in range(3):
            await mounted.following.look()
        assert mounted.knows(key)
        assert ("keys_file", False) == mounted.told[-1]
        [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert why in line
        assert "stays in use" in line
        told = mounted.following.status()["keys_file"]
        assert why in told["problem"]
        assert told["known"].startswith("1 keys")
    mounted.swap(whole)
    await mounted.following.look()
    assert mounted.knows(key)
    assert ("keys_file", True) == mounted.told[-1]
    assert None is mounted.following.status()["keys_file"]["problem"]


async def test_without_a_good_state_no_key_is_accepted(mounted: Mounted) -> None:
    """The gateway fails closed."""
    key = mounted.add()
    mounted.swap(b"{")
    await mounted.following.look()
    assert not mounted.knows(key)
    assert {"known": "", "read": None} == {k: mounted.following.status()["keys_file"][k] for k in ("known", "read")}


async def test_a_slow_source_delays_no_other(mounted: Mounted) -> None:
    """An issuer or registry does not answer. Revocations of keys still take effect."""
    answers = threading.Event()

    class Slow:
        period = 0.01

        def look(self) -> None:
            answers.wait(LIMIT_S)

    key = mounted.add()
    mounted.write()
    following = Following(mounted.access, {"slow": Slow(), "keys_file": KeyFile(str(mounted.keys_file))})
    task = asyncio.create_task(following.run())
    try:
        async with asyncio.timeout(LIMIT_S):
            while not mounted.knows(key):
                await asyncio.sleep(0.01)
            mounted.keys.clear()
            mounted.write()
            while mounted.knows(key):
                await asyncio.sleep(0.01)
    finally:
        answers.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
