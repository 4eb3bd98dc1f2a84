"""``python -m benchmarks.recovery``: parts of ``triton-gateway up`` are killed and stopped under a strict client.

A real ``up`` with two workers, one tiny model, 200 requests a second on connections that are kept, never repeated. Each
trial breaks one part and waits until requests succeed again; one JSON line says how many failed, the longest time
without an answer and how long after the fault the last failure was. ``stopped-replica`` is the fleet's: three Tritons
behind one gateway, one of them SIGSTOPped. ``full-*`` trials run on a disk without room (a small tmpfs; needs root).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import servers
from benchmarks.small import Small
from benchmarks.swaps import HOOK, model
from deploy.laptop.supervisor import read_record
from deploy.tools.stock_cli import StockCli

ROOT = Path(__file__).resolve().parents[1]
RATE = 200
PATIENCE_S = 10.0
"""How long the client waits for one answer."""
CALM_S = 4.0
"""A part is back when nothing has failed for so long."""
MOST_S = 90.0
_BODY = b'{"x": [[1.0, 2.0]]}'
_TENSORS = ["--input-name", "x", "--input-type", "float32", "--input-size", "[-1, 2]",
            "--output-name", "y", "--output-type", "float32", "--output-size", "[-1, 2]"]  # fmt: skip


@dataclass
class Strict:
    """An open loop that never repeats a request: ``(sent, ended, problem)`` of each, in seconds of one clock."""

    host: str
    port: int
    path: str
    seen: list[tuple[float, float, str]] = field(default_factory=list)
    _idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def run(self, until: Callable[[], bool]) -> None:
        """Send until ``until()``."""
        due = time.monotonic()
        running: set[asyncio.Task[None]] = set()
        while not until():
            task = asyncio.create_task(self._one())
            running.add(task)
            task.add_done_callback(running.discard)
            due += 1 / RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*running)

    async def _one(self) -> None:
        sent, problem = time.monotonic(), ""
        try:
            async with asyncio.timeout(PATIENCE_S):
                status = await self._ask()
            problem = "" if status == 200 else str(status)
        except TimeoutError:
            problem = "no answer"
        except (OSError, EOFError, ValueError) as error:
            problem = type(error).__name__
        self.seen.append((sent, time.monotonic(), problem))

    async def _ask(self) -> int:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():  # closed while nothing was asked: not a failure
                break
        else:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % (self.path.encode(), len(_BODY)) + _BODY)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0]))
        except BaseException:
            writer.close()
            raise
        if b"connection: close" in head:
            writer.close()
        else:
            self._idle.append((reader, writer))
        return int(head.split(b" ", 2)[1])


def trial(
    name: str, url: str, fault: Callable[[], object], *, pids: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Load ``url``, break something after two seconds, go on until all is well; return what the client saw.

    ``pids`` names the processes that are broken: it is waited until others have taken their place.
    """
    address, _, path = url.removeprefix("http://").partition("/")
    host, _, port = address.rpartition(":")
    strict = Strict(host, int(port), f"/{path}")
    broken, replaced = [0.0], [0.0]
    before = pids()

    async def run() -> None:
        def is_over() -> bool:
            now = time.monotonic()
            if not broken[0]:
                return False
            if not replaced[0]:
                return now - broken[0] > MOST_S
            last = max((ended for _, ended, problem in strict.seen if problem), default=0.0)
            oks = [ended for _, ended, problem in strict.seen[-RATE:] if not problem]
            is_calm = now - max(last, broken[0]) > CALM_S and bool(oks) and now - oks[-1] < 1
            return is_calm or now - broken[0] > MOST_S

        async def break_it() -> None:
            await asyncio.sleep(2.0)
            await asyncio.to_thread(fault)
            broken[0] = time.monotonic()
            while before is not None and pids() in (before, ()):  # noqa: ASYNC110 - a fact about other processes
                await asyncio.sleep(0.1)
            replaced[0] = time.monotonic()

        breaking = asyncio.create_task(break_it())
        await strict.run(is_over)
        breaking.cancel()

    asyncio.run(run())
    problems: dict[str, int] = {}
    for _, _, problem in strict.seen:
        if problem:
            problems[problem] = problems.get(problem, 0) + 1
    good = sorted(ended for _, ended, problem in strict.seen if not problem)
    last = max((ended for _, ended, problem in strict.seen if problem), default=broken[0])
    slowest = max((ended - sent for sent, ended, problem in strict.seen if not problem), default=0.0)
    return {
        "trial": name, "requests": len(strict.seen), "failed": sum(problems.values()), "problems": problems,
        "longest_gap_s": round(max((b - a for a, b in pairwise(good)), default=0.0), 2),
        "last_failure_after_s": round(max(0.0, last - broken[0]), 2), "slowest_answer_s": round(slowest, 2),
        "replaced_after_s": round(replaced[0] - broken[0], 2) if replaced[0] else None,
    }  # fmt: skip


class Up:
    """A real ``triton-gateway up`` with one endpoint; ``pids`` are looked up when they are needed."""

    def __init__(self, folder: Path, *, workers: int = 2, state: Path | None = None, is_new: bool = True) -> None:
        self.state = state or folder / "state"
        self.port = servers.free_port()
        self.url = f"http://127.0.0.1:{self.port}/serve/e"
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        for name in [name for name in env if name.startswith(("CLEARML_", "TRITON_GATEWAY_"))]:
            del env[name]
        argv = [sys.executable, "-m", "deploy.admin.cli", "up", "--state-dir", str(self.state),
                "--port", str(self.port), "--controlplane-port", "0", "--workers", str(workers)]  # fmt: skip
        self.log = folder / "up.log"
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(argv, env=env, stdout=out, stderr=subprocess.STDOUT, cwd=folder)
        try:
            if is_new:
                self._wait(lambda: "Ctrl-C stops everything" in self.log.read_text(), "up is up")
            if is_new:
                self._register(folder, env)
            self._wait(self._answers, "the endpoint is served")
        except BaseException:
            self.stop()
            raise

    def _register(self, folder: Path, env: dict[str, str]) -> None:
        for line in (self.state / "env").read_text().splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            env[name] = shlex.split(value)[0]
        cli = StockCli(env=env, log=folder / "clearml-serving.log")
        path, code = model(folder / "e.onnx", 2.0), folder / "code.py"
        code.write_text(HOOK.format(name="e"))
        task = env["CLEARML_SERVING_TASK_ID"]
        for arguments in (
            ("model", "upload", "--name", "tiny model", "--project", "recovery", "--path", str(path), "--publish",
             "--framework", "onnx"),
            ("model", "add", "--engine", "triton", "--endpoint", "e", "--name", "tiny model", "--project", "recovery",
             "--preprocess", str(code), *_TENSORS),
        ):  # fmt: skip
            asyncio.run(cli.run("--id", task, *arguments))

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(servers.ask(self.url, _BODY))
        return False

    def _wait(self, holds: Callable[[], bool], what: str, within: float = 120.0) -> None:
        began = time.monotonic()
        while not holds():
            if self.process.poll() is not None or time.monotonic() - began > within:
                raise servers.ServerFailed(f"not so within {within:.0f} s: {what}: {self.log.read_text()[-2000:]}")
            time.sleep(0.1)

    def pid(self, part: str) -> int:
        """Return the process id of a child of ``up``; 0 while there is none."""
        return int(read_record(self.state / "children.json").get(part, {}).get("pid", 0))

    def tritonserver(self) -> int:
        """Return the process id of the server under its launcher; 0 while there is none."""
        return next((pid for pid in _children(self.pid("triton")) if "bin/tritonserver" in _command(pid)), 0)

    def workers(self) -> list[int]:
        """Return the process ids of the gateway's workers: whoever below it holds the listening port and serves."""
        return [pid for pid in _children(self.pid("gateway")) if "resource_tracker" not in _command(pid)]

    def stop(self) -> None:
        """End it, in order."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


def _children(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def _send(number: signal.Signals, *pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


PARTS: dict[str, Callable[[Up], tuple[int, ...]]] = {
    "triton": lambda up: (up.tritonserver(),),
    "launcher": lambda up: (up.pid("triton"),),
    "worker": lambda up: tuple(up.workers()[:1]),
    "workers": lambda up: tuple(up.workers()),
    "parent": lambda up: (up.pid("gateway"),),
    "sync": lambda up: (up.pid("sync"),),
    "controlplane": lambda up: (up.pid("controlplane"),),
}
STOPPED = ("triton", "workers", "parent", "controlplane")
FULL = ("parent", "triton", "launcher", "sync")


@contextlib.contextmanager
def _small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Leave no byte free on the disk of ``folder``."""
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            if file.write(b"\0" * 65536) < 65536:
                break


def stopped_replica(folder: Path) -> dict[str, Any]:
    """Three Tritons behind one gateway; one is stopped, and goes on afterwards."""
    stack = Small(folder / "fleet", tritons=3, workers=1)
    try:
        path, code = model(folder / "r.onnx", 2.0), folder / "r.py"
        code.write_text(HOOK.format(name="r"))
        stack.run("model", "upload", "--name", "tiny model", "--project", "recovery", "--path", str(path), "--publish",
                  "--framework", "onnx")  # fmt: skip
        stack.run("model", "add", "--engine", "triton", "--endpoint", "e", "--name", "tiny model",
                  "--project", "recovery", "--preprocess", str(code), *_TENSORS)  # fmt: skip
        stack.until(lambda status: "e" in str(status.get("endpoints")), "served")
        began = time.monotonic()
        while time.monotonic() - began < 60:
            with contextlib.suppress(OSError):
                servers.ask(f"{stack.url}/serve/e", _BODY)
                break
            time.sleep(0.2)
        time.sleep(5)  # all three have it
        server = next(p for p in _children(stack.tritons[1].pid) if "tritonserver" in _command(p))
        try:
            return trial("stopped-replica", f"{stack.url}/serve/e", lambda: _send(signal.SIGSTOP, server))
        finally:
            _send(signal.SIGCONT, server)
    finally:
        stack.stop()


def _break(name: str, up: Up, part: str, number: signal.Signals) -> dict[str, Any]:
    def pids() -> tuple[int, ...]:
        return tuple(pid for pid in PARTS[part](up) if pid)

    if name.startswith("full-"):  # the record of what runs cannot be written there: requests alone tell
        return trial(name, up.url, lambda: _send(number, *pids()))
    return trial(name, up.url, lambda: _send(number, *pids()), pids=pids)


def full_start(folder: Path) -> dict[str, Any]:
    """Stop an `up` in order, leave no byte free, and start it again: how long until a request is answered."""
    with _small_disk(folder / "disk", 400) as disk:
        Up(folder, state=disk / "state").stop()
        fill(disk)
        began = time.monotonic()
        up = Up(folder, state=disk / "state", is_new=False)
        try:
            return {"trial": "full-start", "served_after_s": round(time.monotonic() - began, 1)}
        finally:
            up.stop()


def main() -> int:
    """Run the trials that are named, or all."""
    stopped = [f"stopped-{name}" for name in STOPPED]
    names = [*PARTS, *stopped, *(f"full-{name}" for name in (*FULL, "start")), "stopped-replica"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=f"of {', '.join(names)}  [all]")
    wanted = parser.parse_args().trials or names
    if unknown := set(wanted) - set(names):
        parser.error(f"no such trial: {', '.join(sorted(unknown))}")

    def tell(result: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="recovery-") as temporary:
        folder = Path(temporary)
        if plain := [name for name in wanted if name in PARTS or name in stopped]:
            up = Up(folder)
            try:
                for name in plain:
                    number = signal.SIGSTOP if name in stopped else signal.SIGKILL
                    tell(_break(name, up, name.removeprefix("stopped-"), number))
                    time.sleep(3)
            finally:
                up.stop()
        for name in [name for name in wanted if name.startswith("full-")]:
            place = folder / name
            place.mkdir()
            if name == "full-start":
                tell(full_start(place))
                continue
            with _small_disk(place / "disk", 400) as disk:
                up = Up(place, state=disk / "state")
                try:
                    fill(disk)
                    tell(_break(name, up, name.removeprefix("full-"), signal.SIGKILL))
                finally:
                    up.stop()
        if "stopped-replica" in wanted:
            tell(stopped_replica(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
