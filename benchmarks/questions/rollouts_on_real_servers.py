"""What does the gate decide about good and bad versions on real servers, and after how many requests?

The rollouts of ``decisions-of-the-gate``, with nothing drawn at random: real control plane, model sync, Triton (ONNX
Runtime) and gateway with two workers, stock CLI, ``triton-gateway canary run`` with its defaults but shorter steps. The
models classify texts by one word; each kind is wrong, late or broken for its share of the texts, chosen by another
word. Each kind is an endpoint with 60 requests a second while a version of it is rolled out. Rollouts of several kinds
run at the same time, except those of late models, which run alone: a request that waits for others is no slower if its
model is late.

``--save`` keeps every rollout as it ends, with the counts that its judge got at each look, and runs only missing ones.
It puts the table into ``docs/canary.md``, next to 200 **replayed** rollouts of each kind: the same judge gets recorded
counts. For each block, one recorded look of that kind at the step's share is chosen at random, and the judge gets it
and the next four (they are correlated: a queue, a slow moment). For a step that no rollout of a kind reached, the looks
of the share below are used.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.shared import processes, tiny
from benchmarks.shared.command import parser, tell
from benchmarks.shared.load import Steady
from benchmarks.shared.machine import cpu_model
from benchmarks.shared.results import DOCS, RESULTS, put, save, saved, table
from benchmarks.shared.rollouts import SHORT, TESTS, ended, rolled
from benchmarks.shared.stack import Small
from deploy.rollout.looks import LookRecord
from deploy.rollout.steps import Observation, Rollout

TAKES = "40 minutes; 5 minutes with --runs 1"
SAVES = "results/rollouts.json"
LOOKS: Final = RESULTS / "rollouts-looks.jsonl"
"""The counts that judges of real rollouts got: one line each."""
REPLAYS: Final = 200
_BLOCK: Final = 5
"""Consecutive looks that are replayed together."""
_RATE: Final = 60.0
_STEPS: Final = "10,25,50,100"
_FAILING: Final = 0.003
_WORK: Final = 40
"""Matrix multiplications in a call: about 3 ms."""
_WORK_OF_LATE: Final = 80
"""The same if a late model is compared, so that the model takes most of a request's time."""
_TENSORS: Final = (
    "--input-name", "input_ids", "attention_mask", "--input-type", "int64", "int64", "--input-size", "[-1, -1]",
    "[-1, -1]", "--output-name", "logits", "--output-type", "float32", "--output-size", "[-1, 2]",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """How a version differs: texts with the other label, always one label, failing texts, slowdown; and its expected
    end.
    """

    flipped: float = 0.0
    always: bool = False
    failing: float = _FAILING
    slower: float = 1.0
    ends: str = "roll back"

    @property
    def is_late(self) -> bool:
        """True for a version that is slower than stable."""
        return self.slower != 1


KINDS: Final[dict[str, Kind]] = {
    "the same model": Kind(ends="promote"), "a retrain, 3 % other answers": Kind(flipped=0.03, ends="promote"),
    "10 % of the answers flipped": Kind(flipped=0.1), "25 % flipped": Kind(flipped=0.25),
    "two labels swapped": Kind(flipped=1.0), "always one label": Kind(always=True), "30 % slower": Kind(slower=1.3),
    "2 % errors": Kind(failing=0.02),
}  # fmt: skip


class Stack:
    """The servers, with an endpoint of two versions for each of ``kinds``."""

    def __init__(self, folder: Path, kinds: Sequence[str]) -> None:
        self._folder = folder
        self._small = Small(folder / "stack", tritons=1, workers=2)
        chance = random.Random(1)
        self._bodies = [json.dumps({"text": tiny.seeded_text(chance.random)}).encode() for _ in range(20_000)]
        try:
            self._upload(folder, "stable", Kind(), _WORK)
            for name in kinds:
                stable, work = "stable", _WORK
                if KINDS[name].is_late:
                    stable = "stable of late"
                    self._upload(folder, stable, Kind(), _WORK_OF_LATE)
                    work = self._slower_by(folder, stable, KINDS[name].slower)
                self._upload(folder, name, KINDS[name], work)
                self._serve(_endpoint(name), stable, name)
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

    def _slower_by(self, folder: Path, stable: str, times: float) -> int:
        """Return the multiplications that make whole requests ``times`` as slow, measured with two calls.

        At the request rates of a rollout's first step, because waiting for others is part of a request's time.
        """
        work = _WORK_OF_LATE
        self._upload(folder, "probe", Kind(), 3 * work)
        with self._served("probed", stable, "probe") as name:
            loads = [
                Steady(f"{self._small.url}/serve/{name}/{version}", *self._bodies, rate=_RATE * share)
                for version, share in (("1", 0.9), ("2", 0.1))
            ]
            with loads[0].running(), loads[1].running():
                for load in loads:
                    processes.until(lambda load=load: load.total.requests > 200, "answers of the probed models")
        short, long = (median(load.total.latencies) for load in loads)
        found = round(work + (times - 1) * short * 2 * work / max(long - short, 1e-4))
        told = f"{short * 1e3:.1f} ms with {work}, {long * 1e3:.1f} ms with {3 * work}: {found} it is"
        print(told, file=sys.stderr)
        return found

    @contextlib.contextmanager
    def _served(self, endpoint: str, *models: str) -> Iterator[str]:
        """Serve models as versions 1, 2, … of an endpoint while the context is open."""
        urls = self._serve(endpoint, *models)
        try:
            yield endpoint
        finally:
            for url in urls:
                self._small.run("model", "remove", "--endpoint", url)

    def _serve(self, endpoint: str, *models: str) -> Sequence[str]:
        urls = {f"{endpoint}/{number}": model for number, model in enumerate(models, 1)}
        for url, model in urls.items():
            self._small.run("model", "add", "--engine", "triton", "--endpoint", endpoint, "--version", url[-1],
                            "--name", model, "--project", tiny.PROJECT, *_TENSORS)  # fmt: skip
        self._small.until(lambda s: urls.keys() <= {e["url"] for e in s["endpoints"]}, f"{endpoint} being served")
        return tuple(urls)

    def rollout(self, kind: str, run: int) -> dict[str, Any]:
        """Roll a version out next to the stable one; return how it ended."""
        name, small = _endpoint(kind), self._small
        canary = [sys.executable, "-m", "deploy.admin.cli", "canary"]
        subprocess.run([*canary, "set", "--endpoint", name, "1=1"], env=small.env, check=True, stdout=sys.stderr)
        small.until(lambda s: s["canaries"].get(name, {}).get(f"{name}/1") == 1, f"{name} being routed")
        load = Steady(f"{small.url}/serve/{name}", *self._bodies[run * 997 :], rate=_RATE)
        began, looks = time.monotonic(), self._folder / f"{name}-{run}.looks"
        with load.running():
            done = subprocess.run(
                [*canary, "run", "--endpoint", name, "--to", "2", "--steps", _STEPS, "--step-time", "20s",
                 "--interval", "2s", "--gateway", small.url, "--json", "--looks", str(looks)],
                env=small.env, stdout=subprocess.PIPE, text=True, check=False, timeout=900,
            )  # fmt: skip
        seconds = time.monotonic() - began
        half = {row["version"]: row["p50"] for row in small.status()["last_minute"]
                if row["endpoint"] == name and row["route"] in ("canary", "stable")}  # fmt: skip
        decisions = [json.loads(line) for line in done.stdout.splitlines()]
        last = decisions[-1]
        evidence = last["evidence"]
        found = max(TESTS, key=lambda test: evidence.get(test, 0.0)) if last["what"] == "roll back" else None
        return {
            "kind": kind, **asdict(KINDS[kind]), "run": run, "ended": last["what"], "found_by": found,
            "canary_requests": evidence["canary"][0], "canary_failures": evidence["canary"][1],
            "stable_requests": evidence["stable"][0], "mirrored": evidence.get("mirrored"),
            "times_as_slow": round(half["2"] / half["1"], 2) if half.get("1") and half.get("2") else None,
            "evidence": evidence["evidence"], "seconds": round(seconds, 1), "why": last["why"],
            "differs": [one["why"] for one in decisions if one["what"] == "differs"],
            "client": {name: value for name, value in load.summary().items() if name != "first_error"},
            "looks": _since(decisions[0]["at"], looks),
        }  # fmt: skip


def _endpoint(kind: str) -> str:
    return f"rolled-{list(KINDS).index(kind)}"


def _since(began: float, looks: Path) -> list[dict[str, Any]]:
    """Return what was recorded, in seconds since the rollout began."""
    found = [json.loads(line) for line in looks.read_text().splitlines()]
    return [{**one, "at": round(one["at"] - began, 3)} for one in found]


def recorded(lines: Sequence[str]) -> dict[str, dict[int, list[LookRecord]]]:
    """Return the recorded counts: kind → number of the rollout → looks."""
    found: dict[str, dict[int, list[LookRecord]]] = {}
    for line in lines:
        one = json.loads(line)
        found.setdefault(one["kind"], {})[one["run"]] = [*map(LookRecord.from_json, one["looks"])]
    return found


def replayed(rollouts: Sequence[Sequence[LookRecord]], seed: int) -> Rollout:
    """Return how a rollout ends whose judge gets recorded counts, in randomly chosen blocks."""
    chance = random.Random(seed)
    steps: dict[float, list[list[LookRecord]]] = {}
    for looks in rollouts:
        for weight in {look.weight for look in looks}:
            # The first look of a rollout has no earlier counts to subtract.
            if at := [look for look in looks[1:] if look.weight == weight]:
                steps.setdefault(weight, []).append(at)
    gaps = [after.at - before.at for looks in rollouts for before, after in itertools.pairwise(looks)]
    block: list[LookRecord] = []
    standing = 0.0

    def look(rollout: Rollout, _now: float) -> Observation:
        nonlocal block, standing
        if not block or rollout.weight != standing:
            pool = steps[max(weight for weight in steps if weight <= rollout.weight)]
            at, number = chance.choice([(at, number) for at in pool for number in range(len(at))])
            block, standing = [at[(number + i) % len(at)] for i in range(_BLOCK)], rollout.weight
        return block.pop(0).seen

    return rolled(replace(SHORT, every_s=median(gaps)), look)


def replays(told: Mapping[str, Mapping[int, Sequence[LookRecord]]]) -> dict[str, dict[str, Any]]:
    """Return how ``REPLAYS`` rollouts of each recorded kind ended."""
    return {
        kind: ended([replayed([*told[kind].values()], seed) for seed in range(REPLAYS)]) for kind in KINDS
        if kind in told
    }  # fmt: skip


def shown(found: Sequence[Mapping[str, Any]], beside: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of the page: real rollouts and, next to them, replayed ones."""
    rows = [["new version", "rollouts", "promoted", "rolled back", "canary requests: median, most", "found by",
             "replayed: promoted", "rolled back", "canary requests: median, p95", "found by"]]  # fmt: skip
    for kind in KINDS:
        of = [one for one in found if one["kind"] == kind]
        if not of:
            continue
        needed = sorted(one["canary_requests"] for one in of if one["ended"] == "roll back")
        by = Counter(one["found_by"] for one in of if one["found_by"])
        slow = sorted(each["times_as_slow"] for each in of if each["slower"] != 1 and each["times_as_slow"])
        measured = f" (measured: {slow[0]:g} to {slow[-1]:g} times as slow)" if slow else ""
        rows.append([
            kind + measured, str(len(of)), str(sum(each["ended"] == "promote" for each in of)), str(len(needed)),
            f"{median(needed):,.0f}, {needed[-1]:,}" if needed else "–", ", ".join(by) or "–",
            *_replayed(beside.get(kind)),
        ])  # fmt: skip
    return table(rows)


def _replayed(one: Mapping[str, Any] | None) -> list[str]:
    if one is None:
        return ["–"] * 4
    counts = one["canary_requests"]
    after = f"{counts[9]:,}, {counts[18]:,}" if len(counts) == 19 else ", ".join(f"{each:,}" for each in counts) or "–"
    return [f"{one['promoted']} of {one['runs']}", str(one["rolled_back"]), after, ", ".join(one["decided_by"]) or "–"]


def missing(found: Sequence[Mapping[str, Any]], kinds: Sequence[str], runs: int) -> list[tuple[str, int]]:
    """Return the rollouts that are still missing: one of each kind in turn, so that a busy hour affects all kinds."""
    have = Counter(one["kind"] for one in found)
    return [(kind, run) for run in range(runs) for kind in kinds if run >= have[kind]]


class Lanes:
    """Several rollouts of different kinds at the same time. ``ended`` gets the results, one at a time."""

    def __init__(self, wanted: Sequence[tuple[str, int]], roll_out: Callable[[str, int], Any],
                 ended: Callable[[Any], None]) -> None:  # fmt: skip
        self._wanted = [*wanted]
        self._roll_out, self._ended = roll_out, ended
        self._changed = threading.Condition()
        self._busy: set[str] = set()

    def run(self, lanes: int) -> None:
        """Run all of them. After a failure no new one begins; it is raised when the running ones have ended."""
        with ThreadPoolExecutor(lanes) as pool:
            for lane in [pool.submit(self._lane) for _ in range(lanes)]:
                lane.result()

    def _lane(self) -> None:
        while (one := self._next()) is not None:
            try:
                result = self._roll_out(*one)
            except BaseException:
                with self._changed:
                    self._wanted.clear()
                    self._changed.notify_all()
                raise
            with self._changed:
                self._ended(result)
                self._busy.discard(one[0])
                self._changed.notify_all()

    def _next(self) -> tuple[str, int] | None:
        with self._changed:
            while self._wanted:
                for one in self._wanted:
                    if one[0] not in self._busy:
                        self._wanted.remove(one)
                        self._busy.add(one[0])
                        return one
                self._changed.wait()
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested rollouts; the exit code is 0 if each ended as it should."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument(
        "kinds", nargs="*", metavar="KIND", help=f"any of {', '.join(KINDS)}  [all]".replace("%", "%%")
    )
    arguments.add_argument("--runs", type=int, default=10, help="rollouts of each kind  [10]")
    arguments.add_argument("--lanes", type=int, default=3, help="rollouts at the same time, except of late models  [3]")
    options = arguments.parse_args(argv)
    kinds = options.kinds or list(KINDS)
    if unknown := set(kinds) - set(KINDS):
        arguments.error(f"no such kind: {', '.join(sorted(unknown))}")
    found = (saved("rollouts") or {"rollouts": []})["rollouts"] if options.save else []

    lines = LOOKS.read_text().splitlines() if LOOKS.exists() else []

    def over(one: dict[str, Any]) -> None:
        lines.append(json.dumps({"kind": one["kind"], "run": one["run"], "looks": one.pop("looks")}))
        found.append(one)
        tell(one)
        if options.save:
            LOOKS.write_text("\n".join(lines) + "\n")
            save("rollouts", {"cpu": cpu_model(), "cores": os.cpu_count(), "rollouts": found})

    if wanted := missing(found, kinds, options.runs):
        with tempfile.TemporaryDirectory(prefix="rollouts-") as temporary:
            stack = Stack(Path(temporary), [kind for kind in kinds if any(kind == one for one, _ in wanted)])
            try:
                for lanes, are_late in ((options.lanes, False), (1, True)):
                    Lanes([one for one in wanted if KINDS[one[0]].is_late == are_late], stack.rollout, over).run(lanes)
            finally:
                stack.stop()
    again = replays(recorded(lines))
    print(text := shown(found, again))
    if options.save:
        save("rollouts-replayed", again)
        put(DOCS / "canary.md", "rollouts", text + "\n")
    return 0 if all(one["ended"] == one["ends"] for one in found) else 1
