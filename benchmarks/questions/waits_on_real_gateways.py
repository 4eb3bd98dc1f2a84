"""How long do requests wait with many gateways, a slow Triton, a greedy tenant, or a step of demand?

Real gateway processes, in front of stand-ins for Tritons with a GPU, over HTTP and gRPC on this machine. A stand-in
takes 22 ms per call and 0.5 ms per row, one call after the other, and needs hardly any CPU. Requests arrive at random,
whether answers come or not, and times count from when a request was due. Parts:

gateways   1, 2, 4, 8 and 16 gateways (``TRITON_GATEWAY_REPLICAS`` set) in front of four Tritons at the same load, with
           and without a dynamic batcher in the Tritons
slow       one gateway, four Tritons at 70 % of their capacity: equal ones, one three times slower, one that pauses half
           a second in every three; taking turns
tenants    two tenants with a key each in front of one Triton (20 ms per call, 1.5 ms per row): one sends three tenths
           of the capacity, the other its share (half the capacity), or 20 times that; taking turns
step       one gateway, one Triton: from 0.8 to 1.4 times the capacity from one moment to the next

A measurement whose requests could not be sent in time is marked (not all sent): its figures say nothing about gateways.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.peers.run import commit
from benchmarks.shared import machine, processes
from benchmarks.shared.command import ROOT, Say, narrator, parser
from benchmarks.shared.gateways_on_sockets import Price, Tritons, gateways
from benchmarks.shared.one_gateway import BODY
from benchmarks.shared.results import DOCS, put, save, saved, table

TAKES = "12 minutes"
SAVES = "results/overload.json, docs/overload.md"
COUNTS: Final = (1, 2, 4, 8, 16)
CHEAP: Final[Price] = (22e-3, 0.5e-3)
COSTLY: Final[Price] = (20e-3, 1.5e-3)
_LOADS: Final = (0.1, 0.3)
_SLOW_LOAD: Final = 0.7
_QUIET_LOAD: Final = 0.3
_SHARE: Final = 0.5
_GREEDY: Final = 20.0
_STEP: Final = (0.8, 1.4)
_KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "four equal Tritons": {}, "one three times slower": {"times": 3.0}, "one pauses": {"pauses": (3.0, 0.5)},
}  # fmt: skip
_SETTLE_S: Final = 3.0
_CALM_S: Final = 7.0
"""Seconds without load after which a limit of work is no longer in force."""
_LATE_MS: Final = 20.0
_HEADS: Final = ("question", "conditions", "p50, ms", "p99, ms", "times p50", "times p99", "goal", "answered")


@contextlib.contextmanager
def crowd(urls: Sequence[str], phases: Sequence[tuple[float, float]], folder: Path, *, key: str = "", seed: int = 1
          ) -> Iterator[Callable[[], list[dict[str, Any]]]]:  # fmt: skip
    """Send ``(rate, seconds)`` phases from another process; yield what waits for the result of each phase."""
    bodies = folder / "bodies"
    bodies.write_bytes(BODY + b"\n")
    argv = [sys.executable, "-m", "benchmarks.shared.crowd", *urls, "--bodies", str(bodies), "--critical", "0",
            "--seed", str(seed), *(["--key", key] if key else [])]  # fmt: skip
    for rate, seconds in phases:
        argv += ["--phase", f"{rate}:{seconds}"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    def result() -> list[dict[str, Any]]:
        out, errors = process.communicate(timeout=sum(seconds for _, seconds in phases) + 60)
        if process.returncode:
            raise processes.ServerFailed(f"the load failed: {errors.strip().splitlines()[-1:]}")
        found: list[dict[str, Any]] = json.loads(out.splitlines()[-1])["phases"]
        return found

    try:
        yield result
    finally:
        process.kill()
        process.wait()


def measure(urls: Sequence[str], pids: Sequence[int], rate: float, seconds: float, folder: Path, *, key: str = "",
            seed: int = 1) -> dict[str, Any]:  # fmt: skip
    """Send one load and return what its callers saw after some seconds, and the CPU time of the gateways."""
    spent, began = machine.cpu_seconds(pids), time.monotonic()
    with crowd(urls, [(rate, _SETTLE_S), (rate, seconds)], folder, key=key, seed=seed) as result:
        found = result()[1]
    cpu = (machine.cpu_seconds(pids) - spent) / (time.monotonic() - began)
    return {**found, "rate": rate, "cpu": round(cpu, 3), "load_average": os.getloadavg()[0]}


def is_short(found: Mapping[str, Any]) -> bool:
    """Return whether the sender was the limit, or that of the load beside it."""
    is_late = bool(found["sent"] < 0.99 * found["offered"] or found["late"]["p99_ms"] > _LATE_MS)
    return is_late or ("beside" in found and is_short(found["beside"]))


def _tell(say: Say, what: str, found: Mapping[str, Any]) -> None:
    mark = " (not all sent)" if is_short(found) else ""
    cpu = f", gateways {found['cpu']:.2f} cores" if "cpu" in found else ""
    say(f"{what}: p50 {found['answered']['p50_ms']:.0f} ms, p99 {found['answered']['p99_ms']:.0f} ms, "
        f"{found['answers'] / max(found['offered'], 1):.1%} of {found['offered'] / found['seconds']:,.0f}/s "
        f"answered{cpu}, sent {found['late']['p99_ms']:.0f} ms late (p99){mark}")  # fmt: skip


def many(folder: Path, seconds: float, rounds: int, say: Say) -> list[dict[str, Any]]:
    """Return the waits at the same load with each number of gateways."""
    del rounds
    rows = []
    for merges in (True, False):
        with contextlib.closing(Tritons(4, CHEAP, folder / f"tritons-{merges}", merges=merges)) as tritons:
            for count in COUNTS:
                say(f"starting {count} gateways")
                with gateways(count, tritons, folder / f"{merges}-{count}") as (urls, pids):
                    for load in _LOADS:
                        found = measure(urls, pids, load * tritons.capacity, seconds, folder)
                        rows.append({"gateways": count, "merges": merges, "load": load, "seen": found})
                        name = "dynamic batcher" if merges else "no dynamic batcher"
                        _tell(say, f"{count} gateways, {name}, load {load}", found)
    return rows


def slow(folder: Path, seconds: float, rounds: int, say: Say) -> list[dict[str, Any]]:
    """Return the waits with four equal Tritons, and with one that is slow or pauses."""
    rows = []
    with (
        contextlib.closing(Tritons(4, CHEAP, folder / "tritons", merges=True)) as tritons,
        gateways(1, tritons, folder / "gateways") as (urls, pids),
    ):
        for round_ in range(rounds):
            for kind, change in _KINDS.items():
                say(f"round {round_ + 1} of {rounds}: {kind}")
                before = tritons.change(**change)["rows"]
                found = measure(urls, pids, _SLOW_LOAD * tritons.capacity, seconds, folder, seed=round_ + 1)
                share = [now - then for now, then in zip(tritons.change()["rows"], before, strict=True)]
                rows.append({"kind": kind, "round": round_, "share": share[0] / max(sum(share), 1), "seen": found})
                _tell(say, f"{kind}, with {rows[-1]['share']:.0%} of the rows", found)
    return rows


def tenants(folder: Path, seconds: float, rounds: int, say: Say) -> list[dict[str, Any]]:
    """Return the waits of a tenant beside another one that sends its share, or 20 times that."""
    quiet, greedy = (_key(folder, name) for name in ("quiet", "greedy"))
    settings = {"TRITON_GATEWAY_KEYS_FILE": str(folder / "keys.json"), "TRITON_GATEWAY_ALLOW_ANONYMOUS": "false"}
    rows = []
    with (
        contextlib.closing(Tritons(1, COSTLY, folder / "tritons", merges=True)) as tritons,
        gateways(1, tritons, folder / "gateways", settings=settings, key=quiet) as (urls, pids),
    ):
        for round_ in range(rounds):
            for times in (0.0, 1.0, _GREEDY):
                say(f"round {round_ + 1} of {rounds}: a tenant that sends {times:g} times its share")
                other = max(times * _SHARE * tritons.capacity, 0.1)
                with crowd(urls, [(other, _SETTLE_S + seconds + 1)], folder, key=greedy, seed=100 + round_) as result:
                    found = measure(urls, pids, _QUIET_LOAD * tritons.capacity, seconds, folder, key=quiet,
                                    seed=round_ + 1)  # fmt: skip
                    found["beside"] = beside = result()[0]
                rows.append({"times": times, "round": round_, "seen": found})
                _tell(say, f"tenant beside one that sends {times:g} times its share", found)
                if times:
                    _tell(say, "    that one", beside)
                if times > 1:
                    time.sleep(_CALM_S)
    return rows


def _key(folder: Path, tenant: str) -> str:
    from gateway.callers.keys import Key, digest, name_of, new_key, new_pepper, read_pepper

    path, pepper = folder / "keys.json", folder / "keys.json.pepper"
    if not pepper.exists():
        pepper.write_bytes(new_pepper())
        path.write_text(json.dumps({"pepper": name_of(read_pepper(pepper.read_bytes())), "keys": []}))
    shown, name = new_key()
    kept = json.loads(path.read_text())
    kept["keys"].append(
        Key(name, digest(read_pepper(pepper.read_bytes()), shown.encode()).hex(), tenant).to_json()
    )  # fmt: skip
    path.write_text(json.dumps(kept))
    return shown


def step(folder: Path, seconds: float, rounds: int, say: Say) -> list[dict[str, Any]]:
    """Return the waits after steps of demand, with the work limit's default and with ``always``."""
    rows = []
    with contextlib.closing(Tritons(1, CHEAP, folder / "tritons", merges=True)) as tritons:
        say("starting a gateway for each setting; a step takes twice its seconds, and ten more")
        for limit in ("auto", "always"):
            settings = {"TRITON_GATEWAY_WORK_LIMIT": limit}
            with gateways(1, tritons, folder / limit, settings=settings) as (urls, _):
                for round_ in range(rounds):
                    before, after = (times * tritons.capacity for times in _STEP)
                    say(f"{limit}, step {round_ + 1} of {rounds}")
                    phases = [(before, _SETTLE_S), (before, seconds), (after, seconds)]
                    with crowd(urls, phases, folder, seed=round_ + 1) as result:
                        _, calm, seen = result()
                    rows.append({"limit": limit, "round": round_, "before": calm, "seen": seen,
                                 "share": seen["answers"] / seen["seconds"] / tritons.capacity,
                                 "load_average": os.getloadavg()[0]})  # fmt: skip
                    _tell(say, f"{limit}, at 0.8 times the capacity", calm)
                    _tell(say, f"{limit}, at 1.4 times, as quick as before after {seen['settled_s']:.1f} s", seen)
                    time.sleep(_CALM_S)
    return rows


PARTS: Final = {"gateways": many, "slow": slow, "tenants": tenants, "step": step}


def _row(question: str, seen: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]], conditions: str,
         goal: str = "") -> list[str]:  # fmt: skip
    """Return a line of the table: medians of the rounds, ratios within rounds."""
    mark = " (not all sent)" if any(map(is_short, seen)) else ""
    figures, times = [], []
    for p in ("p50_ms", "p99_ms"):
        figures.append(f"{median(one['answered'][p] for one in seen):,.0f}")
        pairs = zip(seen, base, strict=True) if base else ()
        ratios = [one["answered"][p] / max(other["answered"][p], 1e-9) for one, other in pairs]
        times.append(f"{median(ratios):.2f}" if ratios else "–")
    answered = sum(one["answers"] for one in seen) / max(sum(one["offered"] for one in seen), 1)
    return [question, conditions + mark, *figures, *times, goal or "–", f"{answered:.1%}"]


def rows_of(parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[list[str]]:
    """Return the lines of the table for the parts that were measured."""
    found = []
    for one in parts.get("gateways", ()):
        base = [
            other["seen"] for other in parts["gateways"]
            if (1, one["merges"], one["load"]) == (other["gateways"], other["merges"], other["load"])
        ] if one["gateways"] > 1 else []  # fmt: skip
        name = f"{one['load']:g} of the capacity, {'' if one['merges'] else 'no '}dynamic batcher"
        word = "gateway" if one["gateways"] == 1 else "gateways"
        found.append(_row(name, [one["seen"]], base, f"{one['gateways']} {word}", "p50 1.10" if base else ""))
    for part, field, word, first, goals in (
        ("slow", "kind", "{}", "four equal Tritons", {"one three times slower": "p99 1.3", "one pauses": "p99 1.3"}),
        ("tenants", "times", "beside a tenant that sends {:g} times its share", 1.0, {_GREEDY: "p99 1.2"}),
    ):
        rows: dict[Any, list[Any]] = {}
        for one in parts.get(part, ()):
            rows.setdefault(one[field], []).append(one["seen"])
        for value, seen in rows.items():
            base = [] if value == first else rows.get(first, [])
            name = "0.7 of the capacity" if part == "slow" else "a tenant that sends 0.3 of the capacity"
            found.append(_row(name, seen, base, word.format(value), goals.get(value, "")))
    for limit in ("auto", "always"):
        rounds = [one for one in parts.get("step", ()) if one["limit"] == limit]
        if rounds:
            after = sorted(one["seen"]["settled_s"] for one in rounds)
            shown = f"`{limit}`; as quick as before after {median(after):.1f} s, at most {after[-1]:.1f} s"
            shown += f"; {median(one['share'] for one in rounds):.2f} of the capacity answered"
            found.append(_row("step from 0.8 to 1.4 of the capacity", [one["seen"] for one in rounds],
                              [one["before"] for one in rounds], shown, "0.5 s"))  # fmt: skip
    return found


def shown(found: Mapping[str, Any]) -> str:
    """Return the table of the page for a saved result."""
    if "real" not in found:
        return "No run is saved yet."
    return table([_HEADS, *rows_of(found["real"]["parts"])])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--part", action="append", default=[], choices=PARTS, help="only this; may be repeated")
    arguments.add_argument("--seconds", type=float, default=6.0, help="seconds of every measurement [6]")
    arguments.add_argument("--rounds", type=int, default=3, help="rounds of slow, tenants and step [3]")
    options = arguments.parse_args(argv)
    say = narrator()
    facts = {"commit": commit(), "cpu": machine.cpu_model(), "cores": os.cpu_count(), "seconds": options.seconds,
             "began": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}  # fmt: skip
    parts: dict[str, Any] = {}
    for name in (one for one in PARTS if not options.part or one in options.part):
        say(f"part {name}: starting it takes some seconds")
        with tempfile.TemporaryDirectory() as folder:
            parts[name] = PARTS[name](Path(folder), options.seconds, options.rounds, say)
        if options.save:
            kept = saved("overload") or {}
            former = kept.get("real", {})
            kept["real"] = {
                "facts": {**former.get("facts", {}), name: facts},
                "parts": {**former.get("parts", {}), name: parts[name]},
            }  # fmt: skip
            save("overload", kept)
            put(DOCS / "overload.md", "real", shown(kept))
    print(table([_HEADS, *rows_of(parts)]))
    return 0
