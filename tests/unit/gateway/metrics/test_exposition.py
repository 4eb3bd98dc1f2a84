"""The text of /metrics: what prometheus_client's own classes would say, recorded once.

``data/`` was written by prometheus_client's Counter, Gauge, Histogram and multiprocess mode, for the same events.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from gateway.metrics import exposition
from gateway.metrics.exposition import Numbers
from gateway.metrics.observer import Observer
from tests import expositions
from tests.unit.gateway.metrics.events import FAILURES, happen, summed

DATA = Path(__file__).with_name("data")
OPENMETRICS = "application/openmetrics-text"


def seen(times: int = 1) -> Observer:
    """Return an observer that has counted everything that can happen."""
    observer = Observer(failures=FAILURES)
    happen(observer, times)
    return observer


@pytest.mark.parametrize(("name", "accept"), [("of-one-worker", "*/*"), ("of-one-worker.openmetrics", OPENMETRICS)])
def test_exposition_is_that_of_prometheus_clients_classes(
    name: str, accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line in both forms, exemplars included; families in the same order, series in any."""
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.25)
    observer = seen()
    text, _ = exposition.respond(accept, Numbers(observer.snapshot()))
    recorded, found = lines((DATA / f"{name}.txt").read_text()), lines(text.decode())
    assert sorted(recorded) == sorted(found)
    assert [line for line in recorded if line[0] == "#"] == [line for line in found if line[0] == "#"]


def lines(text: str) -> list[str]:
    """Return all lines; numbers are rounded to twelve digits, because the order of additions affects the last ones."""
    return [re.sub(r"(?<= )[0-9.e+-]+(?=$| #)", lambda n: f"{float(n[0]):.12g}", line) for line in text.splitlines()]


def samples(text: str) -> set[str]:
    """Return lines with a value, without sums of histograms with negative values (which we do not show)."""
    found = {line for line in lines(text) if not line.startswith("#")}
    return {line for line in found if not line.startswith('gateway_variable_scalar_sum{endpoint="t",variable="x"')}


def test_sum_over_workers_is_that_of_prometheus_clients_multiprocess_mode() -> None:
    """Two that have ended and one that runs: sums over all, gauges of the running one."""
    merged = summed(seen().snapshot(), ended=[seen(2).snapshot(), seen(3).snapshot()])
    recorded = (DATA / "of-three-workers.txt").read_text()
    assert samples(recorded) == samples(expositions.render(merged).decode())


def test_process_metrics_come_after_the_gateways() -> None:
    """CPU, memory and garbage collection of a single process."""
    text, _ = exposition.respond("", Numbers(Observer().snapshot(), others=exposition.process_metrics()))
    found = text.decode()
    assert found.index("gateway_build_info") < found.index("process_cpu_seconds_total") < found.index("python_gc_")
