"""Where does the gateway's CPU time go, sampled by py-spy under the benchmark's own load?

It prints functions by self time, and by the share of samples in which they are on the stack. Only samples in which a
thread used the CPU count.
"""

from __future__ import annotations

import collections
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.plan import Scenario
from benchmarks.peers.run import bring_up, prepare_bodies, start, start_load
from benchmarks.shared import machine
from benchmarks.shared.command import ROOT, STATE, Say, narrator, parser
from tests import processes

TAKES = "2 minutes"
SAVES = ""
_RATE = 200
_SHOWN = 45
_FRAME = re.compile(r"^(?P<function>.+) \((?P<file>.+?)(?::\d+)?\)$")
_WAITING = re.compile(r"^(epoll_p?wait|0x[0-9a-f]+) \(libc")
"""Innermost frames of sleeping threads: with C frames, py-spy cannot tell them from working ones. This loses the cost
of the event loop's own system call.
"""
_PACKAGES = re.compile(r".*/(?:site-packages|lib/python3\.\d+)/")


@dataclass(frozen=True, slots=True)
class Shares:
    """Samples by function: on top of the stack, and anywhere on it."""

    total: int
    own: Mapping[str, int]
    within: Mapping[str, int]


def count(stacks: Iterable[str]) -> Shares:
    """Count collapsed stacks (``frame;frame;frame samples``, outermost first); lines of one function are one."""
    own: collections.Counter[str] = collections.Counter()
    within: collections.Counter[str] = collections.Counter()
    total = 0
    for line in stacks:
        stack, _, samples = line.rpartition(" ")
        if not stack or not samples.isdigit():
            continue
        frames = [function_of(frame) for frame in stack.split(";")]
        if _WAITING.match(frames[-1]):
            continue
        total += int(samples)
        own[frames[-1]] += int(samples)
        for frame in set(frames):
            within[frame] += int(samples)
    return Shares(total, own, within)


def function_of(frame: str) -> str:
    """Return a frame as function and file, without line and machine path."""
    found = _FRAME.match(frame.strip())
    if not found:
        return frame.strip()
    file = _PACKAGES.sub("", found["file"]).removeprefix(f"{ROOT}/")
    return f"{found['function']} ({file})"


def table(shares: Shares, *, cpu_us: float) -> str:
    """Return the functions as text, by falling self time; ``cpu_us`` is the CPU time of a whole request."""
    lines = [f"{'self':>6} {'µs':>7} {'within':>7}  function"]
    ordered = sorted(shares.own.items(), key=lambda item: -item[1])[:_SHOWN]
    for function, samples in ordered:
        share = samples / shares.total
        within = shares.within[function] / shares.total
        lines.append(f"{share:6.1%} {share * cpu_us:7.1f} {within:7.1%}  {function}")
    lines += ["", f"{'within':>7} {'µs':>7}  functions of the gateway, with all that they call"]
    ours = [(f, n) for f, n in shares.within.items() if "(gateway/" in f or "(preprocessing/" in f]
    for function, samples in sorted(ours, key=lambda item: -item[1])[:_SHOWN]:
        share = samples / shares.total
        lines.append(f"{share:7.1%} {share * cpu_us:7.1f}  {function}")
    return "\n".join(lines) + "\n"


def profile(state: Path, *, backend: str, texts: str, seconds: float, say: Say) -> None:
    """Profile the gateway under 64 connections and print where its time goes."""
    scenario = Scenario(backend, texts, 64, ("gateway",), 1, seconds)
    with contextlib.ExitStack() as stack:
        bench = bring_up(stack, [scenario], state, say)
        pyspy = bench.python("profile").parent / "py-spy"
        running = start(bench, stack, backend, "gateway")
        bench.triton.pin(running.triton_cores)
        bodies = prepare_bodies(bench, running, scenario, "gateway")
        pid = running.pids[0]
        raw = state / "profile.raw"
        load = start_load(running.url, bodies, scenario, seconds + 3)
        try:
            _record(pyspy, pid, raw, seconds)
        finally:
            found = load()
        cpu_us, threads = _cost(running.url, bodies, scenario, pid)
        say(f"{backend}, {texts} texts, 64 connections, {found['rps']:.0f} requests/s while profiled")
        sys.stdout.write(f"{threads}\n{table(count(raw.read_text().splitlines()), cpu_us=cpu_us)}")


def _record(pyspy: Path, pid: int, path: Path, seconds: float) -> None:
    argv = [
        str(pyspy), "record", "--pid", str(pid), "--native", "--rate", str(_RATE), "--duration", str(int(seconds)),
        "--format", "raw", "--output", str(path),
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + 120, check=False)
    if done.returncode or not path.exists():
        raise processes.ServerFailed(f"py-spy failed: {done.stderr.strip().splitlines()[-1:]}")


def _cost(url: str, bodies: Path, scenario: Scenario, pid: int) -> tuple[float, str]:
    """Return the CPU time of one request, and its share per thread, as text."""
    before, first = machine.cpu_seconds([pid]), machine.thread_seconds(pid)
    found = start_load(url, bodies, scenario, 6.0)()
    requests = max(1, found["requests"])
    total = (machine.cpu_seconds([pid]) - before) / requests * 1e6
    threads: dict[str, float] = {}
    for (thread, name), seconds in machine.thread_seconds(pid).items():
        label = "main thread (event loop)" if thread == pid else f"threads named {name}"
        threads[label] = threads.get(label, 0.0) + seconds - first.get((thread, name), 0.0)
    ordered = sorted(threads.items(), key=lambda item: -item[1])
    lines = [f"{spent / requests * 1e6:8.1f} µs  {label}" for label, spent in ordered if spent > 0]
    return total, "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Profile the gateway."""
    arguments = parser(__name__, __doc__)
    arguments.add_argument("--state-dir", type=Path, default=STATE, help="folder for files kept between runs")
    arguments.add_argument("--backend", default="instant")
    arguments.add_argument("--texts", default="short")
    arguments.add_argument("--seconds", type=float, default=12.0)
    given = arguments.parse_args(argv)
    say = narrator()
    try:
        profile(given.state_dir.absolute(), backend=given.backend, texts=given.texts, seconds=given.seconds, say=say)
    except processes.ServerFailed as error:
        say(f"error: {error}")
        return 1
    return 0
