"""The /metrics text: of this process, or summed over all workers that share ``PROMETHEUS_MULTIPROC_DIR``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.parser import text_string_to_metric_families

CONTENT_TYPE = CONTENT_TYPE_LATEST


def new_registry() -> CollectorRegistry:
    """Return an empty registry for one process's families."""
    # A `_created` series beside every counter is nearly half of the page, and Prometheus makes no use of it.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # partly annotated
    return CollectorRegistry(auto_describe=False)


def render(registry: CollectorRegistry, multiprocess_dir: Path | None) -> bytes:
    """Return the exposition: ``registry`` plus process metrics, or the sum over the workers of ``multiprocess_dir``."""
    if multiprocess_dir is None:
        return bytes(generate_latest(registry))
    _forget_dead_workers(multiprocess_dir)
    merged = CollectorRegistry()
    MultiProcessCollector(merged, path=str(multiprocess_dir))  # type: ignore[no-untyped-call]  # partly annotated
    return bytes(generate_latest(merged))


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
