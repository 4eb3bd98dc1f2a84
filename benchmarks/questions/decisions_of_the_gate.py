"""What does the gate of a rollout decide about good and bad versions, and after how many requests?

It runs whole rollouts, 200 of each kind with fixed seeds, through the ``steps`` and ``gate`` of ``triton-gateway canary
run``: 100 requests a second, a look every five seconds, the default steps and mirrored shares. Then the same number
with the steps of ``rollouts-on-real-servers``, and with shorter steps that do not wait for mirrored answers. Counts are
drawn at random and nothing is sent: 0.3 % of all requests fail, latencies are lognormal around 12 ms, and groups of
texts are drawn independently of each other. ``--save`` keeps the result and puts the first table into
``docs/canary.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from benchmarks.shared.command import parser, tell
from benchmarks.shared.results import DOCS, put, save, table
from benchmarks.shared.rollouts import SHORT, Plan, ended, rolled
from deploy.controller.rollouts.gate import Counts
from deploy.controller.rollouts.steps import Observation, Rollout
from gateway.metrics.catalog import LATENCY_BUCKETS

TAKES = "2 minutes"
SAVES = "results/gate.json"
_MEDIAN_S, _SIGMA = 0.012, 0.5
_SLOW_PART_S: Final = _MEDIAN_S * float(np.exp(0.8416 * _SIGMA))
"""Seconds: four of five requests are faster than this."""


_BLIND: Final = replace(SHORT, min_requests=150, step_s=10.0, mirror_first=5.0, mirror_wait=0.0)
_GROUPS: Final[dict[str, dict[str, float]]] = {
    "label": {"first": 0.5, "second": 0.45, "rare": 0.05}, "language": {"en": 0.85, "none": 0.1, "de": 0.05},
    "length": {"short": 0.06, "middle": 0.88, "long": 0.06},
}  # fmt: skip
"""Shares of the groups that requests are in."""


@dataclass(frozen=True)
class Kind:
    """How a version differs: failures, slowdown, slowdown of the slowest fifth, other answers, and the group of texts
    that it is always wrong about.
    """

    errors: float = 0.003
    slower: float = 1.0
    tail: float = 1.0
    differs: float = 0.0
    group: str = ""


KINDS: Final[dict[str, Kind]] = {
    "the same model": Kind(), "a retrain, 6.7 % other answers": Kind(differs=0.067),
    "20 % of the answers flipped": Kind(differs=0.2), "two labels swapped": Kind(differs=0.95),
    "1.5 % of the texts fail": Kind(errors=0.018), "one class is never answered (5 %)": Kind(group="label rare"),
    "all long texts are wrong (6 %)": Kind(group="length long"),
    "all German texts are wrong (5 %)": Kind(group="language de"), "30 % slower": Kind(slower=1.3),
    "40 % slower": Kind(slower=1.4), "the slowest fifth 30 % slower": Kind(tail=1.3),
    "the slowest fifth 40 % slower": Kind(tail=1.4),
}  # fmt: skip


_SHORT_KINDS: Final = tuple(name for name, kind in KINDS.items() if kind.slower == kind.tail == 1)
"""Kinds that are also rolled out with short steps."""


def side(random: np.random.Generator, requests: int, kind: Kind) -> Counts:
    """Return the counts of one version in an interval."""
    failures = int(random.binomial(requests, kind.errors))
    took = kind.slower * random.lognormal(np.log(_MEDIAN_S), _SIGMA, requests - failures)
    took = np.where(took > _SLOW_PART_S, took * kind.tail, took)
    shares = dict(_GROUPS["label"])
    if kind.group == "label rare":
        shares["first"] += shares.pop("rare")
    labels = dict(zip(shares, random.multinomial(len(took), [*shares.values()]).tolist(), strict=True))
    slower = {bound: int((took > bound).sum()) for bound in LATENCY_BUCKETS}
    return Counts(requests, failures, len(took), slower, labels)


def mirrored(random: np.random.Generator, requests: int, kind: Kind) -> Counts:
    """Return the counts of mirrored requests."""
    failed = random.random(requests) < kind.errors - Kind().errors
    differed = failed | (random.random(requests) < kind.differs)
    drawn = {by: random.choice(len(of), requests, p=[*of.values()]) for by, of in _GROUPS.items()}
    if kind.group:
        by, value = kind.group.split()
        differed |= drawn[by] == [*_GROUPS[by]].index(value)
    groups = {}
    for by, of in _GROUPS.items():
        every, other = (np.bincount(drawn[by][chosen], minlength=len(of)) for chosen in (differed | True, differed))
        groups |= {f"{by} {value}": (int(n - m), int(m)) for value, n, m in zip(of, every, other, strict=True)}
    other = int(differed.sum())
    return Counts(pairs=(requests - other, other), mirror_failures=int(failed.sum()), groups=groups)


def draws(random: np.random.Generator, kind: Kind, plan: Plan) -> Callable[[Rollout], Observation]:
    """Return a function that draws the next look at a rollout of such a version."""
    requests = int(plan.rate * plan.every_s)

    def drawn(rollout: Rollout) -> Observation:
        canary = int(random.binomial(requests, rollout.weight / 100))
        copies = mirrored(random, int(random.binomial(requests - canary, rollout.mirror / 100)), kind)
        new = side(random, canary, kind)
        return Observation(
            replace(new, pairs=copies.pairs, mirror_failures=copies.mirror_failures, groups=copies.groups),
            side(random, requests - canary, Kind()),
        )

    return drawn


def drawn(name: str, runs: int, plan: Plan) -> dict[str, Any]:
    """Return how ``runs`` rollouts of a kind ended."""
    kind = KINDS[name]
    ends = []
    for seed in range(runs):
        draw = draws(np.random.default_rng(seed), kind, plan)
        ends.append(rolled(plan, lambda rollout, _, draw=draw: draw(rollout)))
    return {"kind": name, **asdict(kind), **ended(ends)}


def shown(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the page; ``found`` as it is saved."""
    rows = [["new version", "promoted", "rolled back", "canary requests until then: median, p95", "found by"]]
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
        for name in KINDS if plan == Plan() else _SHORT_KINDS:
            found.append(drawn(name, options.runs, plan))
            tell(found[-1])
        print(text := shown(found))
        if options.save:
            save(file, found)
            if file == "gate":
                put(DOCS / "canary.md", "gate", text + "\n")
    return 0
