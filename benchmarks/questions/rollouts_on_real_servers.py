"""What does the gate decide about good and bad versions on real servers, and after how many requests?

Nothing is drawn at random but the texts: real control plane, model sync, Triton (ONNX Runtime) and gateway with two
workers, stock CLI, ``triton-gateway canary run`` with its defaults but shorter steps. The models are small classifiers
of four topics (``benchmarks/shared/topics``): the stable one, others that were trained on other texts, and the stable
one with a fault in one group of the texts. Each fault is in 1.5 to 6 % of all texts, fewer than a fine retrain answers
differently. Each rollout is an endpoint of its own with 25 requests a second; they run one after another.

``--save`` keeps every rollout as it ends and runs only missing ones. It puts the table into ``docs/canary.md``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.shared import tiny, topics
from benchmarks.shared.command import parser, tell
from benchmarks.shared.load import Steady
from benchmarks.shared.machine import cpu_model
from benchmarks.shared.results import DOCS, put, save, saved, table
from benchmarks.shared.rollouts import TESTS
from benchmarks.shared.stack import Small

TAKES = "40 minutes"
SAVES = "results/rollouts.json"
_RATE: Final = 25.0
_STEPS: Final = "10,25,50,100"
_TENSORS: Final = (
    "--input-name", "input_ids", "attention_mask", "--input-type", "int64", "int64", "--input-size", "[-1, -1]",
    "[-1, -1]", "--output-name", "logits", "--output-type", "float32", "--output-size",
    f"[-1, {len(topics.LABELS)}]",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """How a version differs: by the texts that it was trained on, or by a fault; and its expected end."""

    is_retrained: bool = False
    fault: str = ""
    ends: str = "roll back"
    runs: int = 1


KINDS: Final[dict[str, Kind]] = {
    "the same model": Kind(ends="promote", runs=3),
    "a retrain": Kind(is_retrained=True, ends="promote", runs=3),
    "1.5 % of the texts fail": Kind(fault="fails"), "one class is never answered": Kind(fault="vanished"),
    "all long texts are wrong": Kind(fault="long"), "all German texts are wrong": Kind(fault="german"),
    "one class is always wrong": Kind(fault="class"),
}  # fmt: skip


class Stack:
    """The servers, with an endpoint of two versions for each of the ``rollouts`` (kind, number)."""

    def __init__(self, folder: Path, rollouts: Sequence[tuple[str, int]]) -> None:
        self._small = Small(folder / "stack", tritons=1, workers=2)
        self.texts = topics.texts(1_000, 6_000)
        self._bodies = [json.dumps({"text": text}).encode() for text in self.texts]
        try:
            self._upload(folder / "stable", "stable")
            self.stable = topics.answers(folder / "stable", self.texts)
            self.differs = {}
            for kind, run in rollouts:
                one, name = KINDS[kind], endpoint(kind, run)
                seed = 2 + run if one.is_retrained else 1
                self._upload(folder / name, name, seed=seed, fault=one.fault)
                new = topics.answers(folder / name, self.texts)
                other = sum(a != b for a, b in zip(self.stable, new, strict=True))
                self.differs[name] = round(other / len(self.texts), 4)
                self._serve(name, "stable", name)
        except BaseException:
            self._small.stop()
            raise

    def stop(self) -> None:
        """Stop everything."""
        self._small.stop()

    def _upload(self, folder: Path, name: str, **model: Any) -> None:
        self._small.run(*tiny.upload(topics.bundle(folder, **model), name))

    def _serve(self, endpoint: str, *models: str) -> None:
        urls = {f"{endpoint}/{number}": model for number, model in enumerate(models, 1)}
        for url, model in urls.items():
            self._small.run("model", "add", "--engine", "triton", "--endpoint", endpoint, "--version", url[-1],
                            "--name", model, "--project", tiny.PROJECT, *_TENSORS)  # fmt: skip
        self._small.until(lambda s: urls.keys() <= {e["url"] for e in s["endpoints"]}, f"{endpoint} being served")

    def rollout(self, kind: str, run: int) -> dict[str, Any]:
        """Roll a version out next to the stable one; return how it ended."""
        name, small = endpoint(kind, run), self._small
        load = Steady(f"{small.url}/serve/{name}", *self._bodies[run * 997 :], rate=_RATE)
        began = time.monotonic()
        with load.running():
            done = subprocess.run(
                [sys.executable, "-m", "deploy.cli.main", "canary", "run", "--endpoint", name, "--to", "2",
                 "--steps", _STEPS, "--step-time", "20s", "--interval", "2s", "--gateway", small.url, "--json"],
                env=small.env, stdout=subprocess.PIPE, text=True, check=False, timeout=900,
            )  # fmt: skip
        seconds = time.monotonic() - began
        decisions = [json.loads(line) for line in done.stdout.splitlines()]
        last = decisions[-1]
        evidence = last["evidence"]
        found = max(TESTS, key=lambda test: evidence.get(test, 0.0)) if last["what"] == "roll back" else None
        return {
            "kind": kind, **asdict(KINDS[kind]), "run": run, "differs": self.differs[name], "ended": last["what"],
            "found_by": found, "canary_requests": evidence["canary"][0], "canary_failures": evidence["canary"][1],
            "stable_requests": evidence["stable"][0], "mirrored": evidence["mirrored"],
            "evidence": evidence["evidence"], "seconds": round(seconds, 1), "why": last["why"],
            "decisions": [[one["weight"], one["what"]] for one in decisions],
            "client": {name: value for name, value in load.summary().items() if name != "first_error"},
        }  # fmt: skip


def endpoint(kind: str, run: int) -> str:
    """Return the endpoint of a rollout."""
    return f"rolled-{list(KINDS).index(kind)}-{run}"


def shown(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the page."""
    rows = [["new version", "texts answered differently", "rollouts", "promoted", "rolled back",
             "mirrored answers until then: median, most", "found by"]]  # fmt: skip
    for kind in KINDS:
        of = [one for one in found if one["kind"] == kind]
        if not of:
            continue
        differs = sorted({one["differs"] for one in of})
        needed = sorted(one["mirrored"]["compared"] for one in of if one["ended"] == "roll back")
        by = Counter(one["found_by"] for one in of if one["found_by"])
        rows.append([
            kind, " to ".join(dict.fromkeys(f"{share:.1%}" for share in (differs[0], differs[-1]))), str(len(of)),
            str(sum(each["ended"] == "promote" for each in of)), str(len(needed)),
            f"{median(needed):,.0f}, {needed[-1]:,}" if needed else "–", ", ".join(by) or "–",
        ])  # fmt: skip
    return table(rows)


def missing(found: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> list[tuple[str, int]]:
    """Return the rollouts that are still missing: kind and number."""
    have = Counter(one["kind"] for one in found)
    return [(kind, run) for kind in kinds for run in range(have[kind], KINDS[kind].runs)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested rollouts; the exit code is 0 if each ended as it should."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument(
        "kinds", nargs="*", metavar="KIND", help=f"any of {', '.join(KINDS)}  [all]".replace("%", "%%")
    )
    options = arguments.parse_args(argv)
    kinds = options.kinds or list(KINDS)
    if unknown := set(kinds) - set(KINDS):
        arguments.error(f"no such kind: {', '.join(sorted(unknown))}")
    found = (saved("rollouts") or {"rollouts": []})["rollouts"] if options.save else []
    if wanted := missing(found, kinds):
        with tempfile.TemporaryDirectory(prefix="rollouts-") as temporary:
            stack = Stack(Path(temporary), wanted)
            try:
                for one in wanted:
                    found.append(stack.rollout(*one))
                    tell(found[-1])
                    if options.save:
                        save("rollouts", {"cpu": cpu_model(), "cores": os.cpu_count(), "rollouts": found})
            finally:
                stack.stop()
    print(text := shown(found))
    if options.save:
        put(DOCS / "canary.md", "rollouts", text + "\n")
    return 0 if all(one["ended"] == one["ends"] for one in found) else 1
