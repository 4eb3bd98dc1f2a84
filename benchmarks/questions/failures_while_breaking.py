"""How many requests fail, and for how long, if a part of ``triton-gateway up`` is killed, stopped or out of disk?

A real ``up`` with two workers and one tiny model gets 200 requests a second on kept connections; nothing is repeated.
Each trial breaks one part and waits until requests succeed again. One JSON line reports the failures, the longest time
without an answer, and the time from the fault to the last failure. ``stopped-replica`` uses three Tritons behind one
gateway, one of them SIGSTOPped. ``full-*`` trials run on a full disk (a small tmpfs; needs root).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.shared import machine, processes, tiny
from benchmarks.shared.callers import Strict
from benchmarks.shared.command import ROOT, parser, tell
from benchmarks.shared.stack import Small
from deploy.laptop.supervisor import read_record
from deploy.tools.clearml_serving import ClearMLServing

TAKES = "12 minutes"
SAVES = ""
RATE = 200
CALM_S = 4.0
"""Seconds without a failure after which a part counts as recovered."""
MAX_S = 90.0


def trial(
    name: str, url: str, fault: Callable[[], object], *, pids: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Load ``url``, break something after two seconds, and continue until it has recovered; return what the client saw.

    ``pids`` names the processes that are broken; the trial waits until others have replaced them.
    """
    address, _, path = url.removeprefix("http://").partition("/")
    host, _, port = address.rpartition(":")
    strict = Strict(host, int(port), f"/{path}", tiny.BODY, rate=RATE)
    broken, replaced = [0.0], [0.0]
    before = pids()

    async def run() -> None:
        def is_over() -> bool:
            now = time.monotonic()
            if not broken[0]:
                return False
            if not replaced[0]:
                return now - broken[0] > MAX_S
            last = max((ended for _, ended, problem in strict.seen if problem), default=0.0)
            oks = [ended for _, ended, problem in strict.seen[-RATE:] if not problem]
            is_calm = now - max(last, broken[0]) > CALM_S and bool(oks) and now - oks[-1] < 1
            return is_calm or now - broken[0] > MAX_S

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
    """A real ``triton-gateway up`` with one endpoint. ``pids`` are looked up when they are needed."""

    def __init__(self, folder: Path, *, workers: int = 2, state: Path | None = None, is_new: bool = True) -> None:
        self.state = state or folder / "state"
        port = processes.free_port()
        self.url = f"http://127.0.0.1:{port}/serve/e"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CLEARML_", "TRITON_GATEWAY_"))}
        env = {**clean, "PYTHONPATH": str(ROOT)}
        argv = [sys.executable, "-m", "deploy.admin.cli", "up", "--state-dir", str(self.state), "--port", str(port),
                "--controlplane-port", "0", "--workers", str(workers)]  # fmt: skip
        log = folder / "up.log"
        self._server = processes.Server(
            "up", argv, env=env, cores=range(os.cpu_count() or 1), log=log, cwd=folder
        )  # fmt: skip
        try:
            if is_new:
                self._wait(lambda: "ready in " in log.read_text(), "up is up")
                self._register(folder, env)
            self._wait(lambda: processes.has_answered(self.url, tiny.BODY), "the endpoint is served")
        except BaseException:
            self.stop()
            raise

    def _register(self, folder: Path, env: dict[str, str]) -> None:
        for line in (self.state / "env").read_text().splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            env[name] = shlex.split(value)[0]
        cli = ClearMLServing(env=env, log=folder / "clearml-serving.log")
        model, code = tiny.multiplying(folder / "e.onnx", 2.0), tiny.code(folder / "code.py", "e")
        for arguments in (tiny.upload(model, "tiny model"), tiny.add("e", "tiny model", code)):
            asyncio.run(cli.run("--id", env["CLEARML_SERVING_TASK_ID"], *arguments))

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            if not self._server.is_running():
                raise processes.ServerFailed(f"up ended: {self._server.last_lines(20)}")
            return holds()

        processes.until(is_so, what)

    def pid(self, part: str) -> int:
        """Return the process id of a child of ``up``; 0 if there is none."""
        return int(read_record(self.state / "children.json").get(part, {}).get("pid", 0))

    def tritonserver(self) -> int:
        """Return the process id of the server below its launcher; 0 if there is none."""
        return next(
            (pid for pid in machine.children(self.pid("triton")) if "bin/tritonserver" in machine.command_line(pid)), 0
        )

    def workers(self) -> list[int]:
        """Return the process ids of the gateway's workers: those below it that hold the listening port and serve."""
        return [
            pid for pid in machine.children(self.pid("gateway")) if "resource_tracker" not in machine.command_line(pid)
        ]

    def stop(self) -> None:
        """End it, in order."""
        if self._server.is_running():
            with contextlib.suppress(processes.ServerFailed):
                self._server.end()


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
    """Fill the disk of ``folder`` completely."""
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            if file.write(b"\0" * 65536) < 65536:
                break


def stopped_replica(folder: Path) -> dict[str, Any]:
    """Run three Tritons behind one gateway; stop one, and let it continue afterwards."""
    stack = Small(folder / "fleet", tritons=3, workers=1)
    try:
        stack.upload(tiny.multiplying(folder / "r.onnx", 2.0), "tiny model")
        stack.add("e", "tiny model", tiny.code(folder / "r.py", "r"))
        stack.until(lambda status: "e" in str(status.get("endpoints")), "served")
        processes.until(lambda: processes.has_answered(f"{stack.url}/serve/e", tiny.BODY), "answered")
        time.sleep(5)  # all three have it
        server = next(p for p in machine.children(stack.tritons[1].pid) if "tritonserver" in machine.command_line(p))
        try:
            return trial("stopped-replica", f"{stack.url}/serve/e", lambda: _send(signal.SIGSTOP, server))
        finally:
            _send(signal.SIGCONT, server)
    finally:
        stack.stop()


def _break(name: str, up: Up, part: str, number: signal.Signals) -> dict[str, Any]:
    def pids() -> tuple[int, ...]:
        return tuple(pid for pid in PARTS[part](up) if pid)

    if name.startswith("full-"):  # the record of processes cannot be written: only requests show the recovery
        return trial(name, up.url, lambda: _send(number, *pids()))
    return trial(name, up.url, lambda: _send(number, *pids()), pids=pids)


def full_start(folder: Path) -> dict[str, Any]:
    """Stop an `up` in order, fill the disk, and start it again: how long until a request is answered?"""
    with _small_disk(folder / "disk", 400) as disk:
        Up(folder, state=disk / "state").stop()
        fill(disk)
        began = time.monotonic()
        up = Up(folder, state=disk / "state", is_new=False)
        try:
            return {"trial": "full-start", "served_after_s": round(time.monotonic() - began, 1)}
        finally:
            up.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trials that are named, or all."""
    stopped = [f"stopped-{name}" for name in STOPPED]
    names = [*PARTS, *stopped, *(f"full-{name}" for name in (*FULL, "start")), "stopped-replica"]
    arguments = parser(__name__, __doc__)
    arguments.add_argument("trials", nargs="*", metavar="TRIAL", help=f"any of {', '.join(names)}  [all]")
    wanted = arguments.parse_args(argv).trials or names
    if unknown := set(wanted) - set(names):
        arguments.error(f"no such trial: {', '.join(sorted(unknown))}")
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
