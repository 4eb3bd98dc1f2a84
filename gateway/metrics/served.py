"""What the metrics know of a served version; made by ``control.publish``. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.metrics.drift import Bins, Mean, Words


@dataclass(frozen=True, slots=True)
class Served:
    """A served version: its labels for metrics, its task's labels, its reference."""

    endpoint: str
    version: str
    is_text: bool = False
    labels: tuple[str, ...] = ()
    reference: Mapping[str, Bins] = field(default_factory=dict)
    words: Words | None = None
    """The usual words of the reference's texts."""
    mean: Mean | None = None
    """The mean of the reference's embeddings."""
