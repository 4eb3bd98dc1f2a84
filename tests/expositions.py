"""Numbers as Prometheus reads them: a snapshot as text, and what a text says."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics.accumulator import Snapshot
from gateway.metrics.exposition import Numbers, respond


def render(snapshot: Snapshot) -> bytes:
    """Return a snapshot in Prometheus' text format."""
    return respond("", Numbers(snapshot))[0]


def parse(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield the name, labels and value of every sample in an exposition. Raises ``ValueError`` if it is invalid."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
