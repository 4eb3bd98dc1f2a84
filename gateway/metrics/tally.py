"""Numbers that grow in plain Python and are carried to prometheus_client's children when someone looks.

Used by ``observer`` and ``custom``, in the event loop only. A child takes a lock per sample and, with several workers,
a write into a mapped file; adding here costs a tenth of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Count:
    """A number that grows here and is carried to a counter."""

    __slots__ = ("_child", "value")

    def __init__(self, child: Any) -> None:
        self._child = child
        self.value: float = 0

    def flush(self) -> None:
        """Carry and start over."""
        if self.value:
            self._child.inc(self.value)
            self.value = 0


class Last:
    """The newest value, carried to a gauge."""

    __slots__ = ("_child", "value")

    def __init__(self, child: Any) -> None:
        self._child = child
        self.value: float | None = None

    def flush(self) -> None:
        """Carry, if there is something new."""
        if self.value is not None:
            self._child.set(self.value)
            self.value = None


class Distribution:
    """A histogram that grows here and is carried to prometheus_client's buckets.

    Values are only put aside, which costs a tenth of finding their bucket one by one; ``flush`` finds all at once.
    Whoever observes without end must flush now and then: a value is kept until then.
    """

    __slots__ = ("_bounds", "_child", "_counts", "_sum", "_values", "observe")

    def __init__(self, child: Any, bounds: Sequence[float]) -> None:
        self._child = child
        self._bounds = np.asarray(bounds, dtype=np.float64)
        self._counts: NDArray[np.float64] = np.zeros(len(bounds) + 1)
        self._sum = 0.0
        self._values: list[float] = []
        self.observe: Callable[[float], None] = self._values.append
        """Count one value, which must be a finite number."""

    def add_all(self, values: NDArray[np.float64], weight: float) -> None:
        """Count many values, each for ``weight``: for the price of one or two."""
        found = np.bincount(self._bounds.searchsorted(values), minlength=len(self._counts))
        self._counts += found * weight
        self._sum += float(values.sum()) * weight

    def add(self, value: float, weight: float) -> None:
        """Count a value that stands for ``weight`` of them."""
        if weight == 1:
            self.observe(value)
            return
        self._counts[self._bounds.searchsorted(value)] += weight
        self._sum += value * weight

    def observe_all(self, values: NDArray[np.float64]) -> None:
        """Count many values."""
        # The first bucket whose bound is not below the value: Prometheus' "less than or equal".
        self._counts += np.bincount(self._bounds.searchsorted(values), minlength=len(self._counts))
        self._sum += float(values.sum())

    def flush(self) -> None:
        """Carry and start over."""
        if self._values:
            self.observe_all(np.array(self._values, dtype=np.float64))
            self._values.clear()
        if self._counts.any():
            # The child has no call for many observations at once; these two are what its own observe() adds to.
            for bucket, count in zip(self._child._buckets, self._counts.tolist(), strict=True):  # noqa: SLF001
                if count:
                    bucket.inc(count)
            self._child._sum.inc(self._sum)  # noqa: SLF001
            self._counts[:] = 0
            self._sum = 0.0
