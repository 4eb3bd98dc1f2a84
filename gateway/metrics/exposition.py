"""The /metrics text: of this process, or summed over all workers that share ``PROMETHEUS_MULTIPROC_DIR``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from gateway.errors import InternalError
from gateway.metrics.exemplars import Exemplars, Marked, gathered

_ASKED: Final = "asked"


def new_registry() -> CollectorRegistry:
    """Return an empty registry for one process's families."""
    # A `_created` series beside every counter is nearly half of the page, and Prometheus makes no use of it.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # partly annotated
    return CollectorRegistry(auto_describe=False)


def render(registry: CollectorRegistry, multiprocess_dir: Path | None) -> bytes:
    """Return the exposition: ``registry`` plus process metrics, or the sum over the workers of ``multiprocess_dir``.

    Raises ``InternalError`` where that folder is gone.
    """
    return bytes(generate_latest(_collector(registry, multiprocess_dir)))


def respond(
    accept: str, registry: CollectorRegistry, multiprocess_dir: Path | None, exemplars: Exemplars
) -> tuple[bytes, str]:
    """Return the exposition in the form ``accept`` asks for, and its content type.

    Prometheus asks for OpenMetrics, which has room for trace ids on the latency buckets; everybody else gets the older
    text form.
    """
    if "application/openmetrics-text" not in accept:
        return render(registry, multiprocess_dir), CONTENT_TYPE_LATEST
    seen = exemplars.seen if multiprocess_dir is None else gathered(multiprocess_dir)
    marked: Any = Marked(_collector(registry, multiprocess_dir), seen)
    text = openmetrics.generate_latest(marked)  # type: ignore[no-untyped-call]  # not annotated
    return bytes(text), openmetrics.CONTENT_TYPE_LATEST


def _collector(registry: CollectorRegistry, multiprocess_dir: Path | None) -> CollectorRegistry:
    if multiprocess_dir is None:
        return registry
    if not multiprocess_dir.is_dir():
        # Without this every number would be missing, and nobody would be told.
        raise InternalError(
            f"the folder that the workers count in is gone: {multiprocess_dir}", hint="restart the gateway"
        )
    _forget_dead_workers(multiprocess_dir)
    merged = CollectorRegistry()
    MultiProcessCollector(merged, path=str(multiprocess_dir))  # type: ignore[no-untyped-call]  # partly annotated
    return merged


def ask(multiprocess_dir: Path) -> None:
    """Ask the other workers to write their numbers down. Raises ``OSError``."""
    path, now = multiprocess_dir / _ASKED, time.time_ns()
    path.touch()
    os.utime(path, ns=(now, now))  # to the nanosecond, where touching counts in ticks of the kernel


def asked(multiprocess_dir: Path) -> int:
    """Return when a worker has last asked, in nanoseconds since 1970; 0 for never."""
    try:
        return (multiprocess_dir / _ASKED).stat().st_mtime_ns
    except OSError:
        return 0


def parse(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Read an exposition: every sample's name, labels and value. Raises ``ValueError`` for anything else."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def add_process_metrics(registry: CollectorRegistry) -> None:
    """Add CPU, memory, file descriptors and garbage collection of this process (single-process mode only)."""
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)


def _forget_dead_workers(multiprocess_dir: Path) -> None:
    # A killed worker leaves its gauges (requests in flight) behind for ever. Its counters stay: sums never go back.
    for file in multiprocess_dir.glob("gauge_live*_*.db"):
        pid = file.stem.rpartition("_")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            mark_process_dead(int(pid), path=str(multiprocess_dir))  # type: ignore[no-untyped-call]  # as above
