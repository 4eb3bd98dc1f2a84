"""Counts of variables: histograms, categories, newest values and sums.

``watch`` counts declared variables with these classes, ``texts`` the built-in ones. For use by one event loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from gateway.metrics import catalog, drift
from gateway.metrics.accumulator import Accumulator, Count, Distribution
from gateway.metrics.declared import category_of, spelled_as_a_value
from gateway.metrics.drift import OTHER, Bins, Reference

Reason = Literal["missing", "wrong_type", "not_finite"]
LARGEST: Final = 1e290
"""Larger numbers, and below its negative, count as ``not_finite``. So sums over any number of requests stay finite, and
no caller spoils a variable's sum for all that come after.
"""


@dataclass(frozen=True, slots=True)
class Served:
    """A served version: its labels for metrics, its task's labels, its reference."""

    endpoint: str
    version: str
    is_text: bool = False
    labels: tuple[str, ...] = ()
    reference: Reference = field(default_factory=Reference)


class Variable:
    """One variable of one version: a ``scalar`` (a histogram of numbers), an ``enum`` (a count per category), or a
    ``value`` (the newest number). Series begin with their first value.
    """

    __slots__ = ("_anew", "_categories", "_counts", "_numbers", "_of", "_seen", "_spelled", "bounds", "name", "take")

    def __init__(
        self, numbers: Accumulator, served: Served, name: str, kind: str, buckets: Collection[object] = (), *,
        anew: bool = False,
    ) -> None:  # fmt: skip
        """``buckets`` are the bounds of a scalar or the categories of an enum; all others are ``other``.

        ``anew``: a scalar begins at zero, whatever was counted under its name before.
        """
        self.name = name
        self._numbers = numbers
        self._of = served.endpoint, served.version, name
        self._anew = anew
        self._categories = frozenset(buckets if kind == "enum" else ())
        self._counts: dict[str, Count] = {}
        """Of an enum, by category."""
        self._seen: Distribution | None = None
        self.bounds: tuple[float, ...] | None = None
        """The bounds of a scalar."""
        self._spelled: dict[str, str] | None = None
        """Of an enum: declared values (``True``, ``1.0``) by the category of the value that they mean."""
        self.take: Callable[[Sequence[Any]], None]
        """Counts numbers within ``LARGEST``, or categories."""
        if kind == "scalar":
            self.take, self.bounds = self._observe, tuple(float(str(bound)) for bound in buckets)
        elif kind == "enum":
            self.take = self._count
            spelled = {spelled_as_a_value(one): one for one in map(str, buckets)}
            self._spelled = {other: one for other, one in spelled.items() if other not in self._categories}
        else:
            self.take = lambda values: numbers.set(catalog.VARIABLE_VALUE, values[-1], *self._of)

    def see(self, value: object) -> None:
        """Count a value of any type."""
        if isinstance(value, np.generic):
            value = value.item()
        if self._spelled is not None:
            category = category_of(value)
            if category is None:
                self.ignore("wrong_type")
            else:
                self.take((category if isinstance(value, str) else self._spelled.get(category, category),))
        elif not isinstance(value, int | float):  # bool is an int: False and True are 0 and 1
            self.ignore("wrong_type")
        else:
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if -LARGEST <= number <= LARGEST:
                self.take((number,))
            else:
                self.ignore("not_finite")

    def ignore(self, reason: Reason) -> None:
        """Count an unusable value."""
        self._numbers.count(catalog.VARIABLE_IGNORED, *self._of, reason).value += 1

    def unusable(self, reference: Bins) -> str:
        """Return why this variable's counts cannot be compared with ``reference``, or nothing."""
        if self.bounds is None and self._spelled is None:
            return "has a variable that has no bins"
        return drift.unusable(reference, self.bounds)

    def _observe(self, numbers: Sequence[float]) -> None:
        if self._seen is None:
            self._seen = self._numbers.distribution(
                catalog.VARIABLE_SCALAR, *self._of, bounds=self.bounds or (), anew=self._anew
            )
        self._seen.observe(numbers)

    def _count(self, categories: Sequence[str]) -> None:
        for category in categories:
            found = self._counts.get(category)
            if found is None:
                category = category if category in self._categories else OTHER
                found = self._counts[category] = self._numbers.count(catalog.VARIABLE_ENUM, *self._of, category)
            found.value += 1
