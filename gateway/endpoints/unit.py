"""What each decision unit of a batcher reads: the queue, the calls in flight, the capacity and a clock. Pure.

Base of ``batch_class``, ``deadline_check`` and ``pacing``. A unit decides; only the batcher acts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.endpoints.calls import CallsInFlight
from gateway.endpoints.capacity import Capacity
from gateway.endpoints.entry_queue import EntryQueue


@dataclass(slots=True, eq=False, repr=False)
class Unit:
    """Made by the batcher that owns all four. The clock returns seconds."""

    _queue: EntryQueue[Any]
    _calls: CallsInFlight
    _capacity: Capacity
    _clock: Callable[[], float]
