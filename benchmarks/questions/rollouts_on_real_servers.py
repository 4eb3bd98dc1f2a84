"""What does the gate decide about good and bad versions on real servers, and after how many requests?

The rollouts that ``decisions-of-the-gate`` draws, with nothing drawn: real control plane, model sync, Triton (ONNX
Runtime) and gateway with two workers, stock CLI, ``triton-gateway canary run`` with its defaults but shorter steps. The
models classify texts by a word; each kind is wrong, late or broken about its share of the texts, chosen by another
word. 60 requests a second, 5 % of stable's mirrored. ``--save`` keeps every rollout as it ends (rollouts of the same
kind are added to those that are kept) and puts the table into ``docs/canary.md``, beside what was drawn.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.shared import processes, tiny
from benchmarks.shared.command import parser, tell
from benchmarks.shared.load import Steady
from benchmarks.shared.machine import cpu_model
from benchmarks.shared.results import DOCS, put, save, saved, table
from benchmarks.shared.stack import Small

TAKES = "two hours; 12 minutes with --runs 1"
SAVES = "results/rollouts.json"
_RATE: Final = 60.0
_STEPS: Final = "10,25,50,100"
_FAILING: Final = 0.003
_WORK: Final = 80
"""Multiplications that a call takes: about 5 ms."""
_TESTS: Final = ("errors", "latency", "labels", "pairs")
_TENSORS: Final = (
    "--input-name", "input_ids", "attention_mask", "--input-type", "int64", "int64", "--input-size", "[-1, -1]",
    "[-1, -1]", "--output-name", "logits", "--output-type", "float32", "--output-size", "[-1, 2]",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """How a version differs: texts with the other label, always one label, failing texts, times as slow; its end."""

    flipped: float = 0.0
    always: bool = False
    failing: float = _FAILING
    slower: float = 1.0
    ends: str = "roll back"


KINDS: Final[dict[str, Kind]] = {
    "the same model": Kind(ends="promote"), "a retrain, 3 % other answers": Kind(flipped=0.03, ends="promote"),
    "10 % of the answers flipped": Kind(flipped=0.1), "25 % flipped": Kind(flipped=0.25),
    "two labels swapped": Kind(flipped=1.0), "always one label": Kind(always=True), "30 % slower": Kind(slower=1.3),
    "2 % errors": Kind(failing=0.02),
}  # fmt: skip


class Stack:
    """The servers, with a model for every kind; ``kinds`` are those that are asked for."""

    def __init__(self, folder: Path, kinds: Sequence[str]) -> None:
        self._small = Small(folder / "stack", tritons=1, workers=2)
        chance = random.Random(1)
        self._bodies = [json.dumps({"text": tiny.seeded_text(chance.random)}).encode() for _ in range(20_000)]
        try:
            self._upload(folder, "stable", Kind(), _WORK)
            work = _WORK
            if any(KINDS[name].slower != 1 for name in kinds):
                work = self._slower_by(folder, 1.3)
            for name in kinds:
                self._upload(folder, name, KINDS[name], work if KINDS[name].slower != 1 else _WORK)
        except BaseException:
            self._small.stop()
            raise

    def stop(self) -> None:
        """Stop everything."""
        self._small.stop()

    def _upload(self, folder: Path, name: str, kind: Kind, steps: int) -> None:
        bundle = tiny.seeded_bundle(
            folder / name.replace(" ", "-").replace("%", ""), flipped=kind.flipped, failing=kind.failing,
            always=kind.always, steps=steps,
        )  # fmt: skip
        self._small.run(*tiny.upload(bundle, name))

    def _slower_by(self, folder: Path, times: float) -> int:
        """Return how many multiplications make whole requests so many times as slow: measured with two of them.

        At the rates of a rollout's first step: what waits for others is part of a request's time.
        """
        self._upload(folder, "probe", Kind(), 3 * _WORK)
        with self._served("probed", "stable", "probe") as name:
            loads = [
                Steady(f"{self._small.url}/serve/{name}/{version}", *self._bodies, rate=_RATE * share)
                for version, share in (("1", 0.9), ("2", 0.1))
            ]
            with loads[0].running(), loads[1].running():
                for load in loads:
                    processes.until(lambda load=load: load.total.requests > 200, "answers of the probed models")
        short, long = (median(load.total.latencies) for load in loads)
        found = round(_WORK + (times - 1) * short * 2 * _WORK / max(long - short, 1e-4))
        told = f"{short * 1e3:.1f} ms with {_WORK}, {long * 1e3:.1f} ms with {3 * _WORK}: {found} it is"
        print(told, file=sys.stderr)
        return found

    @contextlib.contextmanager
    def _served(self, endpoint: str, *models: str) -> Iterator[str]:
        """Serve models as versions 1, 2, … of an endpoint while the context is open."""
        urls = {f"{endpoint}/{number}": model for number, model in enumerate(models, 1)}
        for url, model in urls.items():
            self._small.run("model", "add", "--engine", "triton", "--endpoint", endpoint, "--version", url[-1],
                            "--name", model, "--project", tiny.PROJECT, *_TENSORS)  # fmt: skip
        self._small.until(lambda s: urls.keys() <= {e["url"] for e in s["endpoints"]}, f"{endpoint} being served")
        try:
            yield endpoint
        finally:
            for url in urls:
                self._small.run("model", "remove", "--endpoint", url)

    def rollout(self, kind: str, run: int) -> dict[str, Any]:
        """Roll a version out beside the stable one; return how it ended."""
        with self._served(f"rolled-{list(KINDS).index(kind)}-{run}-{time.time_ns() % 10**6}", "stable", kind) as name:
            small = self._small
            canary = [sys.executable, "-m", "deploy.admin.cli", "canary"]
            subprocess.run([*canary, "set", "--endpoint", name, "1=1"], env=small.env, check=True, stdout=sys.stderr)
            small.until(lambda s: name in s["canaries"], f"{name} being routed")
            load = Steady(f"{small.url}/serve/{name}", *self._bodies[run * 997 :], rate=_RATE)
            began = time.monotonic()
            with load.running():
                done = subprocess.run(
                    [*canary, "run", "--endpoint", name, "--to", "2", "--steps", _STEPS, "--min-requests", "150",
                     "--step-time", "10s", "--interval", "2s", "--gateway", small.url, "--json"],
                    env=small.env, stdout=subprocess.PIPE, text=True, check=False, timeout=900,
                )  # fmt: skip
            seconds = time.monotonic() - began
            half = {row["version"]: row["p50"] for row in small.status()["last_minute"]
                    if row["endpoint"] == name and row["route"] in ("canary", "stable")}  # fmt: skip
        decisions = [json.loads(line) for line in done.stdout.splitlines()]
        last = decisions[-1]
        evidence = last["evidence"]
        found = max(_TESTS, key=lambda test: evidence.get(test, 0.0)) if last["what"] == "roll back" else None
        return {
            "kind": kind, **asdict(KINDS[kind]), "run": run, "ended": last["what"], "found_by": found,
            "canary_requests": evidence["canary"][0], "canary_failures": evidence["canary"][1],
            "stable_requests": evidence["stable"][0], "mirrored": evidence.get("mirrored"),
            "times_as_slow": round(half["2"] / half["1"], 2) if half.get("1") and half.get("2") else None,
            "evidence": evidence["evidence"], "seconds": round(seconds, 1), "why": last["why"],
            "differs": [one["why"] for one in decisions if one["what"] == "differs"],
            "client": {name: value for name, value in load.summary().items() if name != "first_error"},
        }  # fmt: skip


def shown(found: Sequence[Mapping[str, Any]], drawn: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the page: real rollouts, and beside them the half of the requests of those drawn."""
    rows = [["new version", "rollouts", "promoted", "rolled back", "canary requests: half, most", "found by",
             "drawn: rolled back, half"]]  # fmt: skip
    beside = {one["kind"]: one for one in drawn}
    for kind in KINDS:
        of = [one for one in found if one["kind"] == kind]
        if not of:
            continue
        needed = sorted(one["canary_requests"] for one in of if one["ended"] == "roll back")
        by = Counter(one["found_by"] for one in of if one["found_by"])
        one = beside.get(kind)
        counts = one["canary_requests"] if one else []
        half = f", {counts[9]:,}" if len(counts) == 19 else ""
        slow = sorted(each["times_as_slow"] for each in of if each["slower"] != 1 and each["times_as_slow"])
        measured = f" (measured: {slow[0]:g} to {slow[-1]:g} times as slow)" if slow else ""
        rows.append([
            kind + measured, str(len(of)), str(sum(each["ended"] == "promote" for each in of)), str(len(needed)),
            f"{median(needed):,.0f}, {needed[-1]:,}" if needed else "–", ", ".join(by) or "–",
            f"{one['rolled_back']} of {one['runs']}{half}" if one else "–",
        ])  # fmt: skip
    return table(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rollouts that are asked for; the exit code is 0 if each ended as it should."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}  [all]".replace("%", "%%"))
    arguments.add_argument("--runs", type=int, default=10, help="rollouts of each kind  [10]")
    options = arguments.parse_args(argv)
    kinds = options.kinds or list(KINDS)
    if unknown := set(kinds) - set(KINDS):
        arguments.error(f"no such kind: {', '.join(sorted(unknown))}")
    kept = (saved("rollouts") or {"rollouts": []})["rollouts"] if options.save else []
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="rollouts-") as temporary:
        stack = Stack(Path(temporary), kinds)
        try:
            for run in range(options.runs):  # in turn: an hour in which the machine is busy is nobody's
                for kind in kinds:
                    found.append(stack.rollout(kind, run))
                    tell(found[-1])
                    if options.save:
                        every = [*kept, *found]
                        save("rollouts", {"cpu": cpu_model(), "cores": os.cpu_count(), "rollouts": every})
                        put(DOCS / "canary.md", "rollouts", shown(every, saved("gate") or ()) + "\n")
        finally:
            stack.stop()
    print(shown([*kept, *found], saved("gate") or ()))
    return 0 if all(one["ended"] == one["ends"] for one in found) else 1
