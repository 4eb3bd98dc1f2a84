"""Counts of variables: histograms, categories, last values and sums, with drift bins if there is a reference.

``watch`` counts declared variables with these classes, ``texts`` the built-in ones. For use by one event loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

import numpy as np

from gateway.metrics import catalog
from gateway.metrics.accumulator import Accumulator, Count, Distribution, Gauge
from gateway.metrics.declared import category_of, spelled_as_a_value
from gateway.metrics.drift import OTHER, Bins, Mean, Words
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
    reference: Mapping[str, Bins] = field(default_factory=dict)
    words: Words | None = None
    """The usual words of the reference's texts."""
    mean: Mean | None = None
    """The mean of the reference's embeddings."""


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

    def reference(self, name: str, bins: Bins) -> None:
        """Publish a reference's shares and its size."""
        labels = (*self._pair, name, bins.id)
        for bin_name, ratio in zip(bins.names, bins.ratios(), strict=True):
            self._numbers.gauge(catalog.DRIFT_REFERENCE, *labels, bin_name).set(ratio)
        self._numbers.gauge(catalog.DRIFT_REFERENCE_SIZE, *labels).set(bins.total)


class DriftCounts:
    """Counts one variable's values into its reference's bins, unweighted: noise depends on the number of values."""

    __slots__ = ("_bins", "_counts", "_new", "missing", "named")

    def __init__(self, name: str, bins: Bins, numbers: VariableSeries) -> None:
        self._bins = bins
        numbers.reference(name, bins)
        labels = (name, bins.id)
        self._counts = [numbers.count(catalog.DRIFT_OBSERVATIONS, *labels, bin_name) for bin_name in bins.names]
        self.missing = self._counts[-1]
        self._new: Callable[[str], Count] = partial(numbers.count, catalog.DRIFT_NEW, *labels)
        self.named: Collection[str] = ()
        """Categories outside the reference that get a series of their own. The set is small and fixed."""

    def take(self, values: Iterable[float] | Iterable[str]) -> None:
        """Count values."""
        for value in values:
            self._counts[self._bins.index(value)].value += 1
            if value in self.named and value not in self._bins.values:
                self._new(str(value)).value += 1


class Variable:
    """One variable of one version."""

    __slots__ = ("_drift", "_ignored", "_numbers", "name")

    def __init__(self, name: str, numbers: VariableSeries, bins: Bins | None, kind: str = "scalar") -> None:
        """``kind``: that of references of such values."""
        self.name = name
        self._numbers = numbers
        self._drift = None if bins is None or bins.kind != kind else DriftCounts(name, bins, numbers)
        self._ignored: dict[str, Count] = {}

    def ignore(self, reason: Reason, weight: float = 1.0) -> None:
        """Count an unusable value."""
        count = self._ignored.get(reason)
        if count is None:
            count = self._ignored[reason] = self._numbers.count(catalog.VARIABLE_IGNORED, self.name, reason)
        count.value += weight
        if self._drift is not None:
            self._drift.missing.value += 1

    def see(self, value: object, weight: float) -> None:
        """Count a value of any type."""
        raise NotImplementedError


class Number(Variable):
    """A variable whose values are numbers."""

    __slots__ = ()

    def see(self, value: object, weight: float) -> None:
        """See ``Variable.see``."""
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, int | float):  # bool is an int: False and True are 0 and 1
            self.ignore("wrong_type", weight)
            return
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if -LARGEST <= number <= LARGEST:
            self.take((number,), weight)
        else:
            self.ignore("not_finite", weight)

    def take(self, numbers: Sequence[float], weight: float = 1.0) -> None:
        """Count numbers within ``LARGEST``, each with a weight."""
        raise NotImplementedError


class Scalar(Number):
    """A histogram of numbers, with drift bins."""

    __slots__ = ("_bounds", "_seen")

    def __init__(
        self, name: str, numbers: VariableSeries, bins: Bins | None, bounds: tuple[float, ...], *, is_late: bool = False
    ) -> None:  # fmt: skip
        """``is_late``: without a reference, its series is created with the first value."""
        super().__init__(name, numbers, bins)
        self._bounds = bounds
        self._seen = None if is_late and self._drift is None else numbers.histogram(name, bounds)

    def take(self, numbers: Sequence[float], weight: float = 1.0) -> None:
        """See ``Number.take``."""
        if self._seen is None:
            self._seen = self._numbers.histogram(self.name, self._bounds)
        self._seen.observe(numbers, weight)
        if self._drift is not None:
            self._drift.take(numbers)

    def begin(self) -> None:
        """Reset to zero."""
        if self._seen is not None:
            self._seen.begin()


class Value(Number):
    """The newest value of a number."""

    __slots__ = ("_last",)

    def __init__(self, name: str, numbers: VariableSeries, bins: Bins | None) -> None:
        super().__init__(name, numbers, bins)
        self._last = numbers.last(name)

    def take(self, numbers: Sequence[float], weight: float = 1.0) -> None:
        """See ``Number.take``."""
        del weight  # sampling does not change which value is the newest
        self._last.set(numbers[-1])
        if self._drift is not None:
            self._drift.take(numbers)


class Sum(Number):
    """The sum of a number over requests."""

    __slots__ = ("_sum",)

    def __init__(self, name: str, numbers: VariableSeries) -> None:
        super().__init__(name, numbers, None)
        self._sum = numbers.count(catalog.VARIABLE_COUNTER, name)

    def take(self, numbers: Sequence[float], weight: float = 1.0) -> None:
        """See ``Number.take``."""
        for number in numbers:
            if number < 0:
                self.ignore("negative", weight)
            else:
                self._sum.value += number * weight


class Enum(Variable):
    """A count per category, with drift bins."""

    __slots__ = ("_expected", "_known", "_spelled")

    def __init__(
        self, name: str, numbers: VariableSeries, bins: Bins | None, values: Sequence[str],
        expected: Collection[str] = (),
    ) -> None:  # fmt: skip
        """``expected``: if given, each of these values gets a series with its first count, all others are ``other``."""
        super().__init__(name, numbers, bins, "enum")
        self._expected = expected
        if self._drift is not None:
            self._drift.named = frozenset(expected or values)
        begins_with = () if expected else (*values, OTHER)
        self._known = {value: numbers.count(catalog.VARIABLE_ENUM, name, value) for value in begins_with}
        self._spelled = {other: value for value in values if (other := spelled_as_a_value(value)) not in values}
        """Declared values (``True``, ``1.0``) by the category of the value that they mean."""

    def see(self, value: object, weight: float) -> None:
        """See ``Variable.see``."""
        if isinstance(value, np.generic):
            value = value.item()
        category = category_of(value)
        if category is not None and not isinstance(value, str):
            category = self._spelled.get(category, category)
        if category is None:
            self.ignore("wrong_type", weight)
        else:
            self.take((category,), weight)

    def take(self, categories: Sequence[str], weight: float = 1.0) -> None:
        """Count categories, each with a weight."""
        for category in categories:
            self._count(category).value += weight
        if self._drift is not None:
            self._drift.take(categories)

    def _count(self, category: str) -> Count:
        found = self._known.get(category)
        if found is None and category not in self._expected:
            category, found = OTHER, self._known.get(OTHER)
        if found is None:
            found = self._known[category] = self._numbers.count(catalog.VARIABLE_ENUM, self.name, category)
        return found


def declared_variable(variable: MetricVariable, numbers: VariableSeries, bins: Bins | None) -> Variable:
    """Return the counts of a declared variable."""
    if variable.type == "scalar":
        return Scalar(variable.name, numbers, bins, tuple(float(bound) for bound in variable.buckets))
    if variable.type == "enum":
        return Enum(variable.name, numbers, bins, [str(value) for value in variable.buckets])
    if variable.type == "value":
        return Value(variable.name, numbers, bins)
    return Sum(variable.name, numbers)
