"""Counts of variables: histograms, categories, last values and sums.

``watch`` counts declared variables with these classes, ``texts`` the built-in ones. For use by one event loop.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from gateway.metrics import catalog, drift
from gateway.metrics.accumulator import Accumulator, Count, Distribution, Gauge
from gateway.metrics.declared import category_of, spelled_as_a_value
from gateway.metrics.drift import OTHER, Bins, Reference
from gateway.spec import MetricVariable

Reason = Literal["missing", "wrong_type", "not_finite", "negative"]
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


class VariableSeries:
    """Creates the series of one version's variables."""

    def __init__(self, numbers: Accumulator, served: Served) -> None:
        self._numbers = numbers
        self._pair = (served.endpoint, served.version)

    def histogram(self, name: str, bounds: tuple[float, ...]) -> Distribution:
        """Return the histogram of a scalar variable."""
        return self._numbers.distribution(catalog.VARIABLE_SCALAR, *self._pair, name, bounds=bounds)

    def count(self, metric: catalog.Metric, *labels: str) -> Count:
        """Return a counter of this version."""
        return self._numbers.count(metric, *self._pair, *labels)

    def last(self, name: str) -> Gauge:
        """Return the gauge of a variable's newest value."""
        return self._numbers.gauge(catalog.VARIABLE_VALUE, *self._pair, name)


class Variable:
    """One variable of one version."""

    __slots__ = ("_ignored", "_numbers", "name")

    def __init__(self, name: str, numbers: VariableSeries) -> None:
        self.name = name
        self._numbers = numbers
        self._ignored: dict[str, Count] = {}

    def ignore(self, reason: Reason) -> None:
        """Count an unusable value."""
        count = self._ignored.get(reason)
        if count is None:
            count = self._ignored[reason] = self._numbers.count(catalog.VARIABLE_IGNORED, self.name, reason)
        count.value += 1

    def see(self, value: object) -> None:
        """Count a value of any type."""
        raise NotImplementedError

    def unusable(self, reference: Bins) -> str:
        """Return why this variable's counts cannot be compared with ``reference``, or nothing."""
        del reference
        return "has a variable that has no bins"


class Number(Variable):
    """A variable whose values are numbers."""

    __slots__ = ()

    def see(self, value: object) -> None:
        """See ``Variable.see``."""
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, int | float):  # bool is an int: False and True are 0 and 1
            self.ignore("wrong_type")
            return
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if -LARGEST <= number <= LARGEST:
            self.take((number,))
        else:
            self.ignore("not_finite")

    def take(self, numbers: Sequence[float]) -> None:
        """Count numbers within ``LARGEST``."""
        raise NotImplementedError


class Scalar(Number):
    """A histogram of numbers."""

    __slots__ = ("_bounds", "_seen")

    def __init__(
        self, name: str, numbers: VariableSeries, bounds: tuple[float, ...], *, is_late: bool = False
    ) -> None:  # fmt: skip
        """``is_late``: its series is created with the first value."""
        super().__init__(name, numbers)
        self._bounds = bounds
        self._seen = None if is_late else numbers.histogram(name, bounds)

    def take(self, numbers: Sequence[float]) -> None:
        """See ``Number.take``."""
        if self._seen is None:
            self._seen = self._numbers.histogram(self.name, self._bounds)
        self._seen.observe(numbers)

    def begin(self) -> None:
        """Reset to zero."""
        if self._seen is not None:
            self._seen.begin()

    def unusable(self, reference: Bins) -> str:
        """See ``Variable.unusable``."""
        return drift.unusable(reference, self._bounds)


class Value(Number):
    """The newest value of a number."""

    __slots__ = ("_last",)

    def __init__(self, name: str, numbers: VariableSeries) -> None:
        super().__init__(name, numbers)
        self._last = numbers.last(name)

    def take(self, numbers: Sequence[float]) -> None:
        """See ``Number.take``."""
        self._last.set(numbers[-1])


class Sum(Number):
    """The sum of a number over requests."""

    __slots__ = ("_sum",)

    def __init__(self, name: str, numbers: VariableSeries) -> None:
        super().__init__(name, numbers)
        self._sum = numbers.count(catalog.VARIABLE_COUNTER, name)

    def take(self, numbers: Sequence[float]) -> None:
        """See ``Number.take``."""
        for number in numbers:
            if number < 0:
                self.ignore("negative")
            else:
                self._sum.value += number


class Enum(Variable):
    """A count per category."""

    __slots__ = ("_expected", "_known", "_spelled")

    def __init__(
        self, name: str, numbers: VariableSeries, values: Sequence[str], expected: Collection[str] = ()
    ) -> None:  # fmt: skip
        """``expected``: if given, each of these values gets a series with its first count, all others are ``other``."""
        super().__init__(name, numbers)
        self._expected = expected
        begins_with = () if expected else (*values, OTHER)
        self._known = {value: numbers.count(catalog.VARIABLE_ENUM, name, value) for value in begins_with}
        self._spelled = {other: value for value in values if (other := spelled_as_a_value(value)) not in values}
        """Declared values (``True``, ``1.0``) by the category of the value that they mean."""

    def see(self, value: object) -> None:
        """See ``Variable.see``."""
        if isinstance(value, np.generic):
            value = value.item()
        category = category_of(value)
        if category is not None and not isinstance(value, str):
            category = self._spelled.get(category, category)
        if category is None:
            self.ignore("wrong_type")
        else:
            self.take((category,))

    def take(self, categories: Sequence[str]) -> None:
        """Count categories."""
        for category in categories:
            self._count(category).value += 1

    def unusable(self, reference: Bins) -> str:
        """See ``Variable.unusable``."""
        return drift.unusable(reference, None)

    def _count(self, category: str) -> Count:
        found = self._known.get(category)
        if found is None and category not in self._expected:
            category, found = OTHER, self._known.get(OTHER)
        if found is None:
            found = self._known[category] = self._numbers.count(catalog.VARIABLE_ENUM, self.name, category)
        return found


def declared_variable(variable: MetricVariable, numbers: VariableSeries) -> Variable:
    """Return the counts of a declared variable."""
    if variable.type == "scalar":
        return Scalar(variable.name, numbers, tuple(float(bound) for bound in variable.buckets))
    if variable.type == "enum":
        return Enum(variable.name, numbers, [str(value) for value in variable.buckets])
    if variable.type == "value":
        return Value(variable.name, numbers)
    return Sum(variable.name, numbers)
