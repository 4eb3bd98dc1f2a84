"""What does the gate of a rollout decide about good and bad versions, and after how many requests?

Whole rollouts, 200 of each kind with fixed seeds, through the ``steps`` and ``gate`` of ``triton-gateway canary run``:
100 requests a second, a look every five seconds, the default steps and shares that are mirrored. Then as many with the
kinds and steps of ``rollouts-on-real-servers``; and with shorter ones that do not wait for mirrored answers. Counts are
drawn, nothing is sent: 0.3 % of all requests fail, latencies are lognormal around 12 ms, labels fall half and half.
``--save`` keeps what was found and puts the first table into ``docs/canary.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import quantiles
from typing import Any, Final

import numpy as np

from benchmarks.shared.command import parser, tell
from benchmarks.shared.results import DOCS, put, save, table
from deploy.rollout.gate import Counts, Gate
from deploy.rollout.labels import LabelTest
from deploy.rollout.pairs import PairTest
from deploy.rollout.steps import STEPS, Rollout, Rules, Seen, begun, looked
from gateway.metrics.catalog import LATENCY_BUCKETS

TAKES = "2 minutes"
SAVES = "results/gate.json"
_MEDIAN_S, _SIGMA = 0.012, 0.5
_SLOW_PART_S: Final = _MEDIAN_S * float(np.exp(0.8416 * _SIGMA))
"""What four in five requests are faster than."""


@dataclass(frozen=True)
class Plan:
    """Requests a second, seconds between two looks, and what ``canary run`` is told."""

    rate: int = 100
    every_s: float = 5.0
    steps: tuple[float, ...] = STEPS
    min_requests: int = 200
    step_s: float = 60.0
    mirror_first: float = 20.0
    mirror_wait: float = 10.0
    """Step times that the first step waits for mirrored answers."""


SHORT: Final = Plan(60, 2.0, (10.0, 25.0, 50.0, 100.0), 200, 20.0)
"""That of ``rollouts-on-real-servers``."""
_BLIND: Final = replace(SHORT, min_requests=150, step_s=10.0, mirror_first=5.0, mirror_wait=0.0)


@dataclass(frozen=True)
class Kind:
    """How a version differs from stable: failures, times as slow, the slowest fifth so, other answers, one label."""

    errors: float = 0.003
    slower: float = 1.0
    tail: float = 1.0
    differs: float = 0.0
    first_label: float = 0.5


KINDS: Final[dict[str, Kind]] = {
    "the same model": Kind(), "a retrain, 3 % other answers": Kind(differs=0.03),
    "10 % of the answers flipped": Kind(differs=0.1), "25 % flipped": Kind(differs=0.25),
    "two labels swapped": Kind(differs=1.0), "always one label": Kind(differs=0.5, first_label=1.0),
    "30 % slower": Kind(slower=1.3), "40 % slower": Kind(slower=1.4), "the slowest fifth 30 % slower": Kind(tail=1.3),
    "the slowest fifth 40 % slower": Kind(tail=1.4), "2 % errors": Kind(errors=0.02),
}  # fmt: skip
REAL: Final = tuple(name for name, kind in KINDS.items() if kind.tail == 1 and kind.slower != 1.4)
"""Those that real servers are rolled out with as well."""


def side(random: np.random.Generator, requests: int, kind: Kind, pairs: tuple[int, int] = (0, 0)) -> Counts:
    """Return what one version counts in an interval."""
    failures = int(random.binomial(requests, kind.errors))
    took = kind.slower * random.lognormal(np.log(_MEDIAN_S), _SIGMA, requests - failures)
    took = np.where(took > _SLOW_PART_S, took * kind.tail, took)
    first = int(random.binomial(requests - failures, kind.first_label))
    slower = {bound: int((took > bound).sum()) for bound in LATENCY_BUCKETS}
    return Counts(
        requests, failures, len(took), slower, {"first": first, "second": requests - failures - first}, pairs
    )  # fmt: skip


def rollout(kind: Kind, seed: int, plan: Plan) -> Rollout:
    """Return a rollout of such a version at its end, or where it stands after an hour."""
    random, now = np.random.default_rng(seed), 0.0
    rules = Rules(plan.min_requests, plan.step_s, "predicted_label", 5.0, plan.mirror_first,
                  plan.step_s * plan.mirror_wait)  # fmt: skip
    gate = Gate(labels=LabelTest(0.1), pairs=PairTest(0.05))
    found = begun(Rollout("e", "e/2", "e/1", steps=plan.steps, rules=rules, gate=gate), now)
    while not found.is_over and now < 3600:
        now += plan.every_s
        requests = int(plan.rate * plan.every_s)
        canary = int(random.binomial(requests, found.weight / 100))
        mirrored = int(random.binomial(requests - canary, found.mirror / 100))
        differed = int(random.binomial(mirrored, kind.differs))
        new = side(random, canary, kind, (mirrored - differed, differed))
        found = looked(found, Seen(new, side(random, requests - canary, Kind())), now)
    return found


def judged(name: str, runs: int, plan: Plan) -> dict[str, Any]:
    """Return how ``runs`` rollouts of a kind ended."""
    ends = [rollout(KINDS[name], seed, plan) for seed in range(runs)]
    needed = [end.gate.canary_requests for end in ends if end.phase == "rolled_back"]
    logs = [end.gate.describe() for end in ends if end.phase == "rolled_back"]
    decided = Counter(max(("errors", "latency", "labels", "pairs"), key=lambda test: one[test]) for one in logs)
    return {
        "kind": name, **asdict(KINDS[name]), "runs": runs, "rolled_back": len(needed),
        "promoted": sum(end.phase == "promoted" for end in ends),
        "within_1000": sum(count <= 1000 for count in needed),
        "canary_requests": [int(n) for n in quantiles(needed, n=20)] if len(needed) > 1 else needed,
        "decided_by": dict(decided.most_common()),
        "seconds": [end.history[-1].at for end in sorted(ends, key=lambda one: one.history[-1].at)][runs // 2],
    }  # fmt: skip


def shown(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the page; ``found`` as it is saved."""
    rows = [["new version", "promoted", "rolled back", "after so many canary requests: half, 95 of 100", "found by"]]
    for one in found:
        counts = one["canary_requests"]
        after = f"{counts[9]:,}, {counts[18]:,}" if len(counts) == 19 else ", ".join(f"{n:,}" for n in counts) or "–"
        rows.append([one["kind"], str(one["promoted"]), str(one["rolled_back"]), after, ", ".join(one["decided_by"])])
    return table(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line per kind, then the table."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--runs", type=int, default=200)
    options = arguments.parse_args(argv)
    for file, plan in (("gate", Plan()), ("gate-short", SHORT), ("gate-blind", _BLIND)):
        found = []
        for name in KINDS if plan == Plan() else REAL:
            found.append(judged(name, options.runs, plan))
            tell(found[-1])
        print(text := shown(found))
        if options.save:
            save(file, found)
            if file == "gate":
                put(DOCS / "canary.md", "gate", text + "\n")
    return 0
