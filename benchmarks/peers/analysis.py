"""From cells to claims: medians over rounds, ratios within rounds, and the checklist of what the product promises.

Pure: takes the cells of a run, returns rows and checks. A ratio is formed within each round, between cells measured
seconds apart on the same machine, and the median of those is compared with the target: what disturbs a round disturbs
both sides of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.peers.plan import FORMS
from benchmarks.shared.statistics import Spread, spread

Cell = Mapping[str, Any]
Key = tuple[str, str, int, float, str]
Value = Callable[[Cell], float]

FIGURES = ("own_us", "triton_us", "rps", "p50_ms", "p90_ms", "p99_ms", "batch", "rss_mb", "own_cores")
ARTICLE_GAIN = 2.93
"""The throughput gain (+193 %) over the same pipeline inside Triton that ClearML's article on its serving claims."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a system at one load, over all its rounds."""

    backend: str
    texts: str
    connections: int
    rate: float
    system: str
    rounds: int
    errors: int
    figures: Mapping[str, Spread]


@dataclass(frozen=True, slots=True)
class Check:
    """One promise: the measured value and its bound. ``value`` is None if a part was not measured."""

    text: str
    bound: Literal["<=", ">="]
    target: float
    value: Spread | None
    missing: str = ""
    unit: str = ""

    @property
    def holds(self) -> bool | None:
        """True if the median meets the target; None if it was not measured."""
        if self.value is None:
            return None
        return self.value.median <= self.target if self.bound == "<=" else self.value.median >= self.target

    def line(self) -> str:
        """Return it as one line of the checklist."""
        target = f"target {self.bound} {self.target:g}{self.unit}"
        if self.value is None:
            return f"[ ?? ] {self.text}: not measured ({self.missing}; {target})"
        mark = " ok " if self.holds else "MISS"
        range_ = f"{self.value.low:.2f}–{self.value.high:.2f}"
        return f"[{mark}] {self.text}: {self.value.median:.2f}{self.unit} ({range_}; {target})"


def key(cell: Cell) -> Key:
    """Return what identifies a cell apart from its round."""
    return cell["backend"], cell["texts"], cell["connections"], cell["rate"], cell["system"]


def rows(cells: Iterable[Cell]) -> list[Row]:
    """Return one row per system and load, in the order in which they first appear."""
    groups: dict[Key, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return [
        Row(
            backend, texts, connections, rate, system, len(group), sum(c["errors"] for c in group),
            {name: spread([float(c[name]) for c in group]) for name in FIGURES},
        )
        for (backend, texts, connections, rate, system), group in groups.items()
    ]  # fmt: skip


def ratio(
    cells: Sequence[Cell], above: str, below: str, value: Value, *, backend: str = "instant", texts: str = "short",
    connections: int = 64, rates: tuple[float, float] = (0.0, 0.0),
) -> Spread | None:  # fmt: skip
    """Return ``value`` of one system over that of another, round by round; None if they share no round.

    ``rates`` are the rates of their open loops; 0 is a closed loop.
    """
    place = (backend, texts, connections)
    first = {c["round"]: value(c) for c in cells if key(c) == (*place, rates[0], above)}
    second = {c["round"]: value(c) for c in cells if key(c) == (*place, rates[1], below)}
    found = [first[r] / second[r] for r in sorted(first) if second.get(r)]
    return spread(found) if found else None


def own(cell: Cell) -> float:
    """CPU time per request in front of Triton."""
    return float(cell["own_us"])


def total(cell: Cell) -> float:
    """CPU time per request in front of Triton and inside it."""
    return float(cell["own_us"]) + float(cell["triton_us"])


def figure(name: str) -> Value:
    """Return a reader of one figure of a cell."""
    return lambda cell: float(cell[name])


def checklist(run: Mapping[str, Any]) -> list[Check]:
    """Return every promise that a run's cells can check, in the order of the documentation."""
    cells: Sequence[Cell] = run["cells"]
    missing: Mapping[str, str] = run["missing"]
    checks: list[Check] = []

    def add(
        text: str, bound: Literal["<=", ">="], target: float, above: str, below: str, value: Value, **where: Any
    ) -> None:
        found = ratio(cells, above, below, value, **where)
        backend = where.get("backend", "instant")
        reasons = (missing.get(f"{backend}/{name}", "") for name in (above, below))
        why = next((r for r in reasons if r), "not part of this run")
        checks.append(Check(text, bound, target, found, why.splitlines()[0][:100]))

    for name, label, short, long in (("gateway", "gateway", 1.0, 0.7), ("gateway_nocache", "word cache off", 1.4, 1.2)):
        add(f"{label}: CPU / floor, 64 connections, short texts", "<=", short, name, "floor", own)
        add(f"{label}: CPU / floor, 64 connections, long texts", "<=", long, name, "floor", own, texts="long")
    for name in FORMS[1:]:
        add(f"{name}: CPU / the same embedding through /serve", "<=", 1.15, name, "gateway", own, backend="vectors")
    add("gateway + Triton CPU / ensemble on tokenizers", "<=", 0.55, "gateway", "ensemble_lean", total)
    add("gateway + Triton CPU / ensemble on AutoTokenizer", "<=", 0.45, "gateway", "ensemble_auto", total)
    for peer, label, target in (
        ("clearml_lean", "clearml-serving, leanest hook", 6.5), ("clearml_auto", "clearml-serving, AutoTokenizer", 7.0),
        ("kserve", "KServe transformer", 8.5),
    ):  # fmt: skip
        add(f"{label}: CPU / gateway", ">=", target, peer, "gateway", own)
        for percentile in ("p50", "p99"):
            add(f"{label}: {percentile} / gateway", ">=", 1.0, peer, "gateway", figure(f"{percentile}_ms"))
    checks.append(_added_latency(run))
    for peer, label, target in (
        ("ensemble_auto", "one AutoTokenizer instance", 2.0), ("ensemble_lean", "tokenizers", 1.5),
    ):  # fmt: skip
        add(f"GPU-like, 256 connections: throughput / ensemble ({label})", ">=", target, "gateway", peer,
            figure("rps"), backend="gpu", connections=256)  # fmt: skip
    for peer, label in (("ensemble_auto", "one AutoTokenizer instance"), ("ensemble_lean", "tokenizers")):
        # requests per core-second: the throughput if nothing else competes for the cores
        add(f"GPU-like, 256 connections: requests per CPU second / ensemble ({label})", ">=", 1.0, peer, "gateway",
            total, backend="gpu", connections=256)  # fmt: skip
    batches = [float(c["batch"]) for c in cells if key(c) == ("gpu", "short", 256, 0.0, "gateway")]
    most = run["facts"].get("max_batch", 64)
    checks.append(
        Check(f"GPU-like, 256 connections: mean Triton batch of at most {most}", ">=", 0.8 * most,
              spread(batches) if batches else None, "not part of this run")
    )  # fmt: skip
    add("2 workers: CPU per request / 1 worker on the same 2 cores, 1500 requests a second and worker", "<=", 1.1,
        "gateway_w2", "gateway_w1", own, connections=256, rates=(3000.0, 1500.0))  # fmt: skip
    return checks


def _added_latency(run: Mapping[str, Any]) -> Check:
    text = "1 connection: p50 added over the same tensors straight to Triton, without tokenization"
    alone = {
        d["round"]: float(d["call_p50_ms"]) + float(d["tokenize_p50_ms"])
        for d in run["direct"]
        if d["backend"] == "instant"
    }
    added = [
        float(c["p50_ms"]) - alone[c["round"]]
        for c in run["cells"]
        if key(c) == ("instant", "short", 1, 0.0, "gateway") and c["round"] in alone
    ]
    if not added:
        return Check(text, "<=", 1.0, None, "not part of this run", " ms")
    return Check(text, "<=", 1.0, spread(added), unit=" ms")


def scaling(run: Mapping[str, Any], *, max_cores: int = 8) -> list[tuple[int, float]] | None:
    """Return (gateway cores, throughput over the AutoTokenizer ensemble) on a machine with enough cores for both sides.

    From measured costs: a gateway core answers 1 s / CPU per request until the model's own limit is reached; the
    ensemble's throughput is the measured one, as its one tokenizer instance uses one core however many there are.
    """
    place = ("gpu", "short", 256, 0.0)
    costs = [own(c) for c in run["cells"] if key(c) == (*place, "gateway")]
    rates = [float(c["rps"]) for c in run["cells"] if key(c) == (*place, "ensemble_auto")]
    limit = float(run["facts"].get("gpu_rows_per_second", 0.0))
    if not costs or not rates or not limit:
        return None
    per_core, ensemble = 1e6 / statistics.median(costs), statistics.median(rates)
    return [(n, min(n * per_core, limit) / ensemble) for n in range(1, max_cores + 1)]


def cores_needed(points: Sequence[tuple[int, float]], gain: float = ARTICLE_GAIN) -> int | None:
    """Return the fewest cores whose throughput passes ``gain``; None when none does."""
    return next((cores for cores, ratio_ in points if ratio_ > gain), None)
