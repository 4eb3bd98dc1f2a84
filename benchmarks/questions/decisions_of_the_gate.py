"""What does the gate of a rollout decide about good and bad versions, and after how many requests?

Whole rollouts, 200 of each kind with fixed seeds, through the ``steps`` and ``gate`` of ``triton-gateway canary run``:
100 requests a second, a look every five seconds, the default steps, 5 % of stable's requests mirrored. Counts are
drawn, nothing is sent: 0.3 % of all requests fail, latencies are lognormal around 12 ms, labels fall half and half.
``--save`` keeps the table and puts it into ``docs/canary.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import quantiles
from typing import Any, Final

import numpy as np

from benchmarks.shared.command import parser, tell
from benchmarks.shared.results import DOCS, put, save, table
from deploy.rollout.gate import Counts, Gate
from deploy.rollout.labels import LabelTest
from deploy.rollout.pairs import PairTest
from deploy.rollout.steps import Rollout, Rules, Seen, begun, looked
from gateway.metrics.catalog import LATENCY_BUCKETS

TAKES = "4 minutes"
SAVES = "results/gate.json"
_RATE, _EVERY_S, _MIRRORED = 100, 5.0, 0.05
_MEDIAN_S, _SIGMA = 0.012, 0.5
_SLOW_PART_S: Final = _MEDIAN_S * float(np.exp(0.8416 * _SIGMA))
"""What four in five requests are faster than."""


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


def rollout(kind: Kind, seed: int) -> Rollout:
    """Return a rollout of such a version at its end, or where it stands after an hour."""
    random, now = np.random.default_rng(seed), 0.0
    found = begun(
        Rollout("e", "e/2", "e/1", rules=Rules(variable="predicted_label", mirror=_MIRRORED * 100),
                gate=Gate(labels=LabelTest(0.1), pairs=PairTest(0.05))), now,
    )  # fmt: skip
    while not found.is_over and now < 3600:
        now += _EVERY_S
        requests = int(_RATE * _EVERY_S)
        canary = int(random.binomial(requests, found.weight / 100))
        mirrored = int(random.binomial(requests - canary, _MIRRORED))
        differed = int(random.binomial(mirrored, kind.differs))
        new = side(random, canary, kind, (mirrored - differed, differed))
        found = looked(found, Seen(new, side(random, requests - canary, Kind())), now)
    return found


def judged(name: str, runs: int) -> dict[str, Any]:
    """Return how ``runs`` rollouts of a kind ended."""
    ends = [rollout(KINDS[name], seed) for seed in range(runs)]
    needed = [end.gate.canary_requests for end in ends if end.phase == "rolled_back"]
    logs = [end.gate.describe() for end in ends if end.phase == "rolled_back"]
    decided = Counter(max(("errors", "latency", "labels", "pairs"), key=lambda test: one[test]) for one in logs)
    return {
        "kind": name, **asdict(KINDS[name]), "runs": runs, "rolled_back": len(needed),
        "promoted": sum(end.phase == "promoted" for end in ends),
        "within_1000": sum(count <= 1000 for count in needed),
        "canary_requests": [int(n) for n in quantiles(needed, n=20)] if len(needed) > 1 else needed,
        "decided_by": dict(decided.most_common()),
    }  # fmt: skip


def shown(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the page; ``found`` as it is saved."""
    rows = [["new version", "promoted", "rolled back", "after so many canary requests: half, 95 of 100", "found by"]]
    for one in found:
        counts = one["canary_requests"]
        after = f"{counts[9]:,}, {counts[18]:,}" if len(counts) == 19 else ", ".join(map(str, counts)) or "–"
        rows.append([one["kind"], str(one["promoted"]), str(one["rolled_back"]), after, ", ".join(one["decided_by"])])
    return table(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line per kind, then the table."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--runs", type=int, default=200)
    options = arguments.parse_args(argv)
    found = []
    for name in KINDS:
        found.append(judged(name, options.runs))
        tell(found[-1])
    text = shown(found)
    print(text)
    if options.save:
        save("gate", found)
        put(DOCS / "canary.md", "gate", text + "\n")
    return 0
