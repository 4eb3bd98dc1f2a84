"""A day of drift counts of two gateways, through their `/metrics` text and a real Prometheus with our rules."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dashboards import rules
from gateway.metrics import catalog, drift
from gateway.metrics.accumulator import Accumulator, Floats
from gateway.metrics.drift import Bins
from gateway.metrics.exposition import Numbers, respond
from gateway.metrics.served import Served
from gateway.metrics.watch import Watch
from gateway.spec import MetricSpec, MetricVariable
from tests.prometheus import Prometheus, every, program
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.prometheus, pytest.mark.long]

DAY, SCRAPE, HOUR = 86_400, 300, 3600
GATEWAYS = 2
TEXTS = 10 * SCRAPE // 60
"""Ten a minute."""
_EVEN = np.array([*[0.1] * 10, 0.0])
VARIABLES: dict[str, tuple[Floats, bool]] = {
    "token_length": (_EVEN, True), "unknown_token_ratio": (np.array([0.9, 0.04, 0.03, 0.02, 0.01, 0.0]), True),
    "predicted_label": (np.array([0.5, 0.5, 0.0, 0.0]), False),
    "top_score": (_EVEN, True), "entropy": (_EVEN, True),
    "letter_case": (np.array([0.6, 0.3, 0.08, 0.02, 0.0, 0.0]), False),
    "declared share": (np.array([0.7, 0.15, 0.1, 0.04, 0.01, 0.0]), True),
    "declared category": (np.array([0.98, 0.02, 0.0, 0.0]), False),
}  # fmt: skip
"""Shares of each variable's bins in the reference, and whether the bins are ordered."""
LEVELS = 5
"""Reference, counts in its bins, how many, shares, distances: each is recorded from the one before."""


class Day:
    """Window counts of eight variables, drawn: a reference each, then a day of traffic."""

    def __init__(self, random: np.random.Generator) -> None:
        self.bins: dict[str, Bins] = {}
        for name, (p, ordered) in VARIABLES.items():
            counts, inner = tuple(random.multinomial(20_000, p / p.sum()).astype(float)), len(p) - 2
            self.bins[name] = (
                Bins("scalar", tuple(range(inner)), (), counts) if ordered
                else Bins("enum", (), tuple(f"value {number}" for number in range(inner)), counts)
            )  # fmt: skip
        self.counts: dict[str, Floats] = {}
        """Of each variable: by window of a scrape, gateway and bin."""
        for name, (p, _) in VARIABLES.items():
            shares = p / p.sum()
            later = np.roll(shares[:-1], 1) * 0.1 + shares[:-1] * 0.9  # from noon on it is a little otherwise
            later = np.append(later, shares[-1])
            self.counts[name] = np.stack([
                random.multinomial(TEXTS, shares if window < DAY // SCRAPE / 2 else later / later.sum(), size=GATEWAYS)
                for window in range(DAY // SCRAPE)
            ]).astype(float)  # fmt: skip

    def numbers(self, name: str, end: int, window: str, seconds: int) -> Iterator[tuple[str, str, float]]:
        """What the rules have to say: record, bin and value."""
        bins = self.bins[name]
        counts = self.counts[name][max(0, end - seconds // SCRAPE) : end].sum(axis=(0, 1))
        n, m = counts.sum(), bins.total
        q, p = ((one + 0.5) / (one.sum() + 0.5 * len(one)) for one in (counts, np.array(bins.counts)))
        middle = (p + q) / 2
        yield rules.psi(window), "", np.sum((q - p) * np.log(q / p))
        yield rules.drift_js(window), "", np.sum(p * np.log(p / middle) + q * np.log(q / middle)) / 2
        yield rules.drift_n(window), "", n
        yield rules.psi_bound(window), "", drift.chi2_quantile(0.99, len(p) - 1) * (1 / n + 1 / m)
        noise = 3.29 * np.sqrt(p * (1 - p) * (1 / n + 1 / m))
        for bin_name, shift, most in zip(bins.names, q - p, noise, strict=True):
            yield rules.drift_shift(window), bin_name, shift
            yield rules.drift_shift_noise(window), bin_name, most
        yield f"endpoint_version_variable:gateway_drift_missing:ratio{window}", "", counts[-1] / n
        if bins.kind == "enum":
            yield f"endpoint_version_variable:gateway_drift_other:ratio{window}", "", counts[-2] / n

    def scrapes(self, began: float) -> Iterator[str]:
        """What Prometheus would have read, as OpenMetrics with times: each gateway's own text, every five minutes."""
        gateways = []
        for _ in range(GATEWAYS):
            numbers = Accumulator()
            declared = MetricSpec("e/1", None, tuple(
                MetricVariable(name, bins.kind, bins.edges if bins.kind == "scalar" else bins.values)
                for name, bins in self.bins.items()
            ))  # fmt: skip
            served = {"e/1": Served("e", "1", reference=self.bins)}
            Watch(numbers, lambda: 0.0).configure(served, {"e/1": declared}, 1.0)
            gateways.append(numbers)
        for window in range(DAY // SCRAPE + 1):
            for gateway, numbers in enumerate(gateways):
                if window:
                    for name, bins in self.bins.items():
                        seen = self.counts[name][window - 1, gateway]
                        for bin_name, count in zip(bins.names, seen.tolist(), strict=True):
                            labels = ("e", "1", name, bins.id, bin_name)
                            numbers.count(catalog.DRIFT_OBSERVATIONS, *labels).value += count
                text, _ = respond("application/openmetrics-text", Numbers(numbers.snapshot()))
                for line in text.decode().splitlines():
                    if line.startswith("gateway_drift_") and "{" in line:
                        series, value = line.rsplit(" ", 1)
                        on = f'instance="g{gateway}",job="triton-gateway"'
                        yield f"{series[:-1]},{on}}} {value} {began + window * SCRAPE:.3f}\n"
        yield "# EOF\n"


def promtool(*arguments: str) -> None:
    """Run `promtool tsdb create-blocks-from`."""
    done = subprocess.run(
        [program("promtool"), "tsdb", "create-blocks-from", *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def recorded(folder: Path, files: list[Path], began: float, part: str) -> Path:
    """Let promtool evaluate the rules of a day that is over, each hour, on what a Prometheus has; return its blocks."""
    blocks = folder / part
    with Prometheus(folder) as prometheus:
        until(prometheus.is_ready)
        promtool("rules", f"--url={prometheus.url}", f"--start={began:.0f}", f"--end={began + DAY + HOUR:.0f}",
                 f"--output-dir={blocks}", *map(str, files))  # fmt: skip
    return blocks


def when(folder: Path, files: list[Path], began: float) -> float:
    """How many seconds after the hour Prometheus evaluates these rules: made of the name of their file."""
    text = "".join(f"gateway_drift_alarm_days 30 {began + at:.3f}\n" for at in range(0, 3 * HOUR, SCRAPE))
    (folder / "when.txt").write_text(f"{text}# EOF\n")
    promtool("openmetrics", str(folder / "when.txt"), str(folder / "tsdb"))
    blocks = recorded(folder, files, began, "when")
    (blocks / "wal").mkdir()  # or it is no data of a Prometheus
    dumped = subprocess.run(
        [program("promtool"), "tsdb", "dump", str(blocks)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    shutil.rmtree(folder / "tsdb")
    return int(dumped.splitlines()[0].split()[-1]) / 1000 % HOUR


def test_a_day_of_window_counts_is_judged_by_prometheus_as_numpy_judges_it(tmp_path: Path) -> None:
    """The quantities of `docs/drift.md`, "How large a change is", of every variable, window and hour: to 1e-6.

    Prometheus looks at the moment of a scrape here: between two, its `increase` guesses.
    """
    day, files = Day(np.random.default_rng(20)), every(tmp_path / "rules", "3600s", "drift.yml")
    began = 1_700_000_000.0 // DAY * DAY
    began += when(tmp_path, files, began)
    (tmp_path / "day.txt").write_text("".join(day.scrapes(began)))
    promtool("openmetrics", str(tmp_path / "day.txt"), str(tmp_path / "tsdb"))
    for level in range(LEVELS):  # rules read what other rules have recorded
        for block in recorded(tmp_path, files, began, f"level-{level}").iterdir():
            if (block / "meta.json").exists():
                shutil.move(block, tmp_path / "tsdb" / block.name)
    wrong, compared = [], 0
    with Prometheus(tmp_path) as prometheus:
        until(prometheus.is_ready)
        for hour in range(1, DAY // HOUR + 1):
            for window, seconds in (("5m", SCRAPE), ("1h", HOUR), ("1d", DAY)):
                at = began + hour * HOUR
                expected = {
                    (record, name, bin_name): value for name in day.bins
                    for record, bin_name, value in day.numbers(name, hour * HOUR // SCRAPE, window, seconds)
                }  # fmt: skip
                told = {
                    (labels["__name__"], labels["variable"], labels.get("bin", "")): value
                    for labels, value in prometheus.series(
                        f'{{__name__=~"{"|".join({key[0] for key in expected})}"}}', at
                    )
                }
                assert expected.keys() == told.keys(), at
                compared += len(expected)
                wrong += [
                    (at, key, told[key], value) for key, value in expected.items() if abs(told[key] - value) > 1e-6
                ]
    assert [] == wrong[:5]
    assert compared > 10_000
