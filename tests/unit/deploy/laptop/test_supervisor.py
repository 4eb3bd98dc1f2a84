"""The supervisor with stand-in parts: small Python programs that become ready, die, or ignore signals."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from deploy.laptop.supervisor import Part, Supervisor
from deploy.tools.errors import DeployError
from tests.waiting import LIMIT_S, soon

SERVES = (
    "import os, signal, sys, time; open(sys.argv[1] + '.new', 'w').write(str(os.getpid()));"
    "os.replace(sys.argv[1] + '.new', sys.argv[1]); time.sleep(600)"
)
IGNORES_TERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SERVES}"
HAS_A_WORKER = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', "
    "'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'])\n" + SERVES
)
DIES_AT_START = "import sys; print('OSError: [Errno 98] Address already in use', file=sys.stderr); sys.exit(3)"


class Stand:
    """A supervisor in a temporary folder, what it has said, and parts that write their id when they are ready."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.supervisor = Supervisor(folder / "logs", self.said.append)

    def part(self, name: str, code: str, **options: float) -> Part:
        mark = self.folder / f"{name}.pid"

        async def probe() -> bool:
            return mark.exists() and is_alive(int(mark.read_text()))

        patient = {"ready_timeout": LIMIT_S, "stop_grace": LIMIT_S, **options}
        return Part(name, (sys.executable, "-S", "-c", code, str(mark)), dict(os.environ), probe, **patient)  # type: ignore[arg-type]

    def pid(self, name: str) -> int:
        return int((self.folder / f"{name}.pid").read_text())

    async def kill(self, name: str, count: int) -> None:
        """Kill a part, and wait until it is back for the ``count``-th time."""
        os.kill(self.pid(name), signal.SIGKILL)
        await soon(lambda: sum(f"{name} is back" in line for line in self.said) == count)


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    """A supervisor whose parts are always ended after the test."""
    one = Stand(tmp_path)
    yield one
    one.supervisor.hurry()
    await one.supervisor.stop()


def is_alive(pid: int) -> bool:
    """Return True if a process runs; a zombie has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def test_parts_stop_in_the_reverse_order_of_their_start(stand: Stand) -> None:
    """Each is ready before the next one starts, and none is left afterwards."""
    for name in ("one", "two", "three"):
        assert await stand.supervisor.start(stand.part(name, SERVES)) >= 0
        assert is_alive(stand.pid(name))
    await stand.supervisor.stop()
    assert [line.split(" (")[0] for line in stand.said] == ["three stopped", "two stopped", "one stopped"]
    assert not any(is_alive(stand.pid(name)) for name in ("one", "two", "three"))


async def test_a_part_that_cannot_be_started_is_refused_with_its_reason(stand: Stand) -> None:
    with pytest.raises(DeployError, match=r"bad died \(exit code 3\): OSError: .*Address already in use") as refused:
        await stand.supervisor.start(stand.part("bad", DIES_AT_START))
    assert "logs/bad.log" in refused.value.hint
    with pytest.raises(DeployError, match="did not work within"):
        await stand.supervisor.start(stand.part("slow", "import time; time.sleep(600)", ready_timeout=0.3))
    with pytest.raises(DeployError, match="none cannot be started"):
        await stand.supervisor.start(replace(stand.part("none", SERVES), argv=("/no/such/program",)))


@pytest.mark.parametrize("calm_s", [600.0, 0.0], ids=["soon", "far apart"])
async def test_a_part_that_dies_is_restarted_but_a_second_death_soon_after_ends_everything(
    stand: Stand, calm_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.laptop.supervisor.CALM_S", calm_s)
    for name, code in (("one", SERVES), ("two", HAS_A_WORKER)):
        await stand.supervisor.start(stand.part(name, code))
    before = stand.pid("two")
    (worker,) = psutil.Process(before).children()
    await stand.kill("two", 1)
    await soon(lambda: not is_alive(worker.pid))  # it would keep the port
    assert before != stand.pid("two")
    assert stand.said[0].startswith("two died (killed by SIGKILL); restarting (log: ")
    assert not stand.supervisor.failed.done()
    if calm_s:
        os.kill(stand.pid("two"), signal.SIGKILL)
        with pytest.raises(DeployError, match=r"two died \(killed by SIGKILL\), again"):
            await stand.supervisor.failed
    else:
        await stand.kill("two", 2)
        assert not stand.supervisor.failed.done()
    assert is_alive(stand.pid("one"))  # until `up` stops everything, in order


async def test_parts_that_ignore_the_signal_are_killed_after_their_grace_or_in_a_hurry(stand: Stand) -> None:
    for name, grace in (("two", LIMIT_S), ("one", LIMIT_S), ("brief", 0.2)):
        await stand.supervisor.start(stand.part(name, IGNORES_TERM, stop_grace=grace))
    stopping = asyncio.create_task(stand.supervisor.stop())
    await soon(lambda: bool(stand.said))
    assert stand.said[0].startswith("brief was killed")
    stand.supervisor.hurry()
    await stopping
    assert not any(is_alive(stand.pid(name)) for name in ("one", "two", "brief"))


async def test_stopping_while_a_part_starts_leaves_none(stand: Stand) -> None:
    async def probe() -> bool:
        return False

    starting = asyncio.create_task(stand.supervisor.start(replace(stand.part("one", SERVES), probe=probe)))
    await soon((stand.folder / "one.pid").exists)
    starting.cancel()
    await asyncio.wait({starting})
    await stand.supervisor.stop()
    assert not is_alive(stand.pid("one"))
