"""Variables of requests and answers: the built-in ones of text tasks, declared ones, and the counts of drift bins.

Users declare variables per endpoint url with ``clearml-serving metrics add``. ``Watch`` finds their values in the
request, in the answer and in what hooks report, and counts them in the metrics ``gateway_variable_*``. A variable's
name is a label, so that the set of metrics is fixed and the numbers of several workers can be added.

``Observer`` passes on requests after they were answered. Nothing here can fail a request: an unusable value is counted
as ignored.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

from gateway.metrics import catalog, embeddings, texts, variables, words
from gateway.metrics.accumulator import Accumulator, Count, Distribution, Gauge
from gateway.metrics.drift import MISSING, OTHER, Bins, Words, chi2_quantile
from gateway.spec import MetricSpec, MetricVariable
from gateway.trace import TextRow, Trace

_log = logging.getLogger("triton_gateway.metrics")

MAX_VARIABLES: Final = 50
MAX_BUCKETS: Final = 100
MAX_LABEL_CHARS: Final = 100
_MAX_PENDING: Final = 512
"""Values that are collected before numpy counts them; hundreds cost it little more than a few."""
MAX_VALUES: Final = 256
"""Values of one variable that are read per request."""

FREQUENCY_SETTING: Final = "metric_logging_freq"
"""The serving Task's setting of the sampling rate."""

KINDS: Final = ("scalar", "enum", "value", "counter")

_TEXT_BOUNDS: Final[Mapping[str, tuple[float, ...]]] = {
    variables.TOKENS: catalog.TEXT_TOKEN_BUCKETS,
    variables.UNKNOWN: catalog.RARE_RATIO_BUCKETS,
}
_ANSWER_BOUNDS: Final[Mapping[str, tuple[float, ...]]] = {
    variables.SCORE: catalog.RATIO_BUCKETS,
    variables.ENTROPY: catalog.RATIO_BUCKETS,
}
_PLAIN: Final = frozenset({str, float, int, bool})
"""Types whose values are single values and need no search for leaves."""

_OTHER_PLACE: Final = -2
"""The index of the bin ``other`` among the bins of a categorical reference."""

Reason = Literal["missing", "wrong_type", "not_finite", "negative"]


@dataclass(frozen=True, slots=True)
class Served:
    """A served version: its labels for metrics, its task's labels, its reference."""

    endpoint: str
    version: str
    is_text: bool = False
    labels: tuple[str, ...] = ()
    reference: Mapping[str, Bins] = field(default_factory=dict)
    words: Words | None = None
    """The words of the reference's texts."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The variables declared for one url, and the share of its requests that is sampled for them."""

    frequency: float
    variables: tuple[MetricVariable, ...]


def check(spec: MetricSpec) -> tuple[tuple[MetricVariable, ...], list[str]]:
    """Return the usable variables, and a fault for each of the others."""
    usable: list[MetricVariable] = []
    faults: list[str] = []
    if spec.log_frequency is not None and not 0 <= spec.log_frequency <= 1:
        faults.append(f"log frequency {spec.log_frequency:g} is not a share from 0 to 1; 1 is used")
    for variable in spec.variables:
        try:
            usable.append(_checked(variable))
        except ValueError as error:
            faults.append(f"variable {variable.name[:MAX_LABEL_CHARS]} {error}")
    if len(usable) > MAX_VARIABLES:
        faults.append(f"declares {len(usable)} variables; the first {MAX_VARIABLES} are used")
    return tuple(usable[:MAX_VARIABLES]), faults


def _checked(variable: MetricVariable) -> MetricVariable:
    buckets = variable.buckets
    if variable.type not in KINDS:
        raise ValueError(f"has the type {variable.type or '(none)'}; {', '.join(KINDS)} are known")
    if not variable.name or len(variable.name) > MAX_LABEL_CHARS:
        raise ValueError(f"needs a name of 1 to {MAX_LABEL_CHARS} characters")
    if len(buckets) > MAX_BUCKETS:
        raise ValueError(f"has {len(buckets)} buckets; {MAX_BUCKETS} is the most")
    if variable.type == "scalar":
        try:
            bounds = sorted({float(bucket) for bucket in buckets} - {math.inf})
        except ValueError as error:
            raise ValueError("has bounds that are not numbers; write NAME=0,0.5,1") from error
        if not bounds or not all(math.isfinite(bound) for bound in bounds):
            raise ValueError("has no bounds; write NAME=0,0.5,1")
        return MetricVariable(variable.name, "scalar", tuple(bounds))
    if variable.type == "enum":
        values = tuple(dict.fromkeys(_category(bucket) or "" for bucket in buckets))
        if not values or any(not value or len(value) > MAX_LABEL_CHARS for value in values):
            raise ValueError("has no values, or very long ones; write NAME=cat,dog")
        return MetricVariable(variable.name, "enum", values)
    return MetricVariable(variable.name, variable.type)


def declared_for(url: str, specs: Mapping[str, MetricSpec], default_frequency: float) -> Declared | None:
    """Return the declaration for ``url``: under its own name, or else the longest matching wildcard (``name/*``)."""
    found = specs.get(url)
    if found is None:
        covering = [key for key in specs if key.endswith("*") and _covers(key, url)]
        if not covering:
            return None
        found = specs[max(covering, key=len)]
    frequency = default_frequency if found.log_frequency is None else found.log_frequency
    variables, _ = check(found)
    return Declared(frequency if 0 <= frequency <= 1 else 1.0, variables)


def _covers(pattern: str, url: str) -> bool:
    prefix = pattern[:-1]
    return url.startswith(prefix) or url == prefix.rstrip("/")


def frequency_of(settings: Mapping[str, str], default: float) -> float:
    """Return the sampling rate set in the serving Task, or else ``default``."""
    try:
        wanted = float(settings.get(FREQUENCY_SETTING) or default)
    except ValueError:
        return default
    return wanted if 0 <= wanted <= 1 else default


class Watch:
    """Counts the variables of every served version, for one event loop. ``chance`` returns numbers in [0, 1)."""

    def __init__(
        self,
        numbers: Accumulator,
        chance: Callable[[], float],
        watches_words: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._numbers = numbers
        self._chance = chance
        self._make = partial(_Watched, chance=chance, watches_words=watches_words, clock=clock)
        self._watched: dict[str, _Watched] = {}
        self._known: dict[str, tuple[tuple[Served, Declared | None], _Watched]] = {}
        self.declared: Mapping[tuple[str, str, str], float] = {}
        """The sampling rate of every declared variable, by endpoint, version and name."""
        self._inputs: object = None
        self._references: set[tuple[str, ...]] = set()
        self._has_complained = False

    def configure(
        self, served: Mapping[str, Served], specs: Mapping[str, MetricSpec], default_frequency: float
    ) -> None:
        """Watch these urls from now on. The counts of variables that are no longer declared stay."""
        inputs = (served, specs, default_frequency)
        if inputs == self._inputs:
            return
        self._inputs = inputs
        known, watched_before, self._known, self._watched = self._known, self._watched, {}, {}
        for url in watched_before.keys() - served.keys():
            watched_before[url].flush()
        references: set[tuple[str, ...]] = set()
        for url, version in served.items():
            # With a thousand versions, usually one changes at a time: unchanged ones keep their state.
            source = (version, declared_for(url, specs, default_frequency))
            former = known.get(url)
            if former is None or former[0] != source:
                if former is not None:
                    former[1].flush()
                former = source, self._make(*source, _Numbers(self._numbers, version))
            self._known[url] = former
            watched = former[1]
            if watched.is_needed:
                self._watched[url] = watched
            pair = (version.endpoint, version.version)
            references |= {
                (*pair, name, bins.id, bin_name) for name, bins in version.reference.items() for bin_name in bins.names
            }
        # The share of a bin becomes NaN if its reference is gone; rules skip NaN.
        for labels in self._references - references:
            self._numbers.gauge(catalog.DRIFT_REFERENCE, *labels).set(math.nan)
        self._references = references
        self.declared = {
            (version.endpoint, version.version, variable.name): of.frequency
            for (version, of), _ in self._known.values() if of is not None for variable in of.variables
        }  # fmt: skip

    def answered(self, url: str, traces: Sequence[Trace]) -> None:
        """Count the variables of requests that one version has answered."""
        watched = self._watched.get(url)
        if watched is not None and not watched.look(traces, self._chance) and not self._has_complained:
            self._has_complained = True
            _log.warning("a variable of %s could not be read (said once)", url, exc_info=watched.fault)

    def recent_words(self) -> dict[words.Pair, words.Recent]:
        """Return the recent words of texts by endpoint and version, for another thread; see ``words.Recent``."""
        found = {}
        for url, watched in self._watched.items():
            recent = watched.recent_words()
            if recent is not None:
                served = self._known[url][0][0]
                found[served.endpoint, served.version] = recent
        return found

    def usual_words(self, url: str) -> Words | None:
        """Return the frequent words of one version's texts; None if unknown."""
        watched = self._watched.get(url)
        return None if watched is None else watched.usual_words()

    def flush(self) -> None:
        """Count all collected values."""
        for watched in self._watched.values():
            watched.flush()


class _Numbers:
    """Creates the series of one version's variables."""

    def __init__(self, numbers: Accumulator, served: Served) -> None:
        self._numbers = numbers
        self._pair = (served.endpoint, served.version)
        self.pending: list[Callable[[], None]] = []
        """The functions that count collected values."""

    def histogram(self, name: str, bounds: tuple[float, ...]) -> Distribution:
        return self._numbers.distribution(catalog.VARIABLE_SCALAR, *self._pair, name, bounds=bounds)

    def count(self, metric: catalog.Metric, *labels: str) -> Count:
        return self._numbers.count(metric, *self._pair, *labels)

    def last(self, name: str) -> Gauge:
        return self._numbers.gauge(catalog.VARIABLE_VALUE, *self._pair, name)

    def reference(self, name: str, bins: Bins) -> None:
        """Publish a reference's shares, its size, and the chi-square quantile of its noise bound."""
        labels = (*self._pair, name, bins.id)
        for bin_name, ratio in zip(bins.names, bins.ratios(), strict=True):
            self._numbers.gauge(catalog.DRIFT_REFERENCE, *labels, bin_name).set(ratio)
        self._numbers.gauge(catalog.DRIFT_REFERENCE_SIZE, *labels).set(bins.total)
        self._numbers.gauge(catalog.DRIFT_CHI2, *labels).set(chi2_quantile(0.99, len(bins.names) - 1))


class _Drift:
    """Counts one variable's values into its reference's bins, unweighted: noise depends on the number of values."""

    __slots__ = ("_bins", "_index", "_new", "counts", "missing", "named")

    def __init__(self, name: str, bins: Bins, numbers: _Numbers) -> None:
        self._bins = bins
        numbers.reference(name, bins)
        labels = (name, bins.id)
        self.counts = [numbers.count(catalog.DRIFT_OBSERVATIONS, *labels, bin_name) for bin_name in bins.names]
        self.missing = self.counts[-1]
        self._index = {value: i for i, value in enumerate(bins.values)}
        self._new: Callable[[str], Count] = partial(numbers.count, catalog.DRIFT_NEW, *labels)
        self.named: Collection[str] = ()
        """Categories outside the reference that get a series of their own. The set is small and fixed."""

    def scalar(self, value: float) -> None:
        self.counts[self._bins.index(value)].value += 1

    def scalars(self, values: NDArray[np.float64]) -> None:
        """Count an array of values."""
        found = np.bincount(np.searchsorted(self._bins.edges, values), minlength=len(self.counts))
        for count, seen in zip(self.counts, found.tolist(), strict=True):
            count.value += seen

    def category(self, value: str, times: int = 1) -> None:
        place = self._index.get(value, _OTHER_PLACE)
        self.counts[place].value += times
        if place == _OTHER_PLACE and value in self.named:
            self._new(value).value += times


class _Variable:
    """One variable of one version."""

    __slots__ = ("_drift", "_ignored", "_numbers", "name")

    def __init__(self, name: str, numbers: _Numbers, bins: Bins | None) -> None:
        self.name = name
        self._numbers = numbers
        self._drift = None if bins is None else _Drift(name, bins, numbers)
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

    def see_all(self, values: Sequence[object], weight: float) -> bool:
        """Count one value per request if all have the expected type; otherwise count none and return False."""
        del values, weight
        return False


class _Number(_Variable):
    __slots__ = ()

    def see(self, value: object, weight: float) -> None:
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, int | float):  # bool is an int: False and True are 0 and 1
            self.ignore("wrong_type", weight)
            return
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            self.take(number, weight)
        else:
            self.ignore("not_finite", weight)

    def take(self, number: float, weight: float = 1.0) -> None:
        raise NotImplementedError


class _Scalar(_Number):
    __slots__ = ("_pending", "_seen", "_weight")

    def __init__(self, name: str, numbers: _Numbers, bins: Bins | None, bounds: tuple[float, ...]) -> None:
        super().__init__(name, numbers, bins if bins is not None and bins.kind == "scalar" else None)
        self._seen = numbers.histogram(name, bounds)
        self._pending: list[float] = []
        self._weight = 1.0
        numbers.pending.append(self.carry)

    def see(self, value: object, weight: float) -> None:
        if type(value) is float and -math.inf < value < math.inf:
            self.take(value, weight)
        else:
            super().see(value, weight)

    def see_all(self, values: Sequence[object], weight: float) -> bool:
        if weight != 1 or set(map(type, values)) != {float}:
            return False
        numbers = cast("Sequence[float]", values)
        if not math.isfinite(sum(numbers)):  # a sum of finite values can overflow: then they are checked one by one
            return False
        self.take_all(numbers)
        return True

    def take(self, number: float, weight: float = 1.0) -> None:
        if weight != self._weight:
            self.carry()
            self._weight = weight
        self._pending.append(number)
        if len(self._pending) >= _MAX_PENDING:
            self.carry()

    def take_all(self, numbers: Sequence[float]) -> None:
        """Count many numbers, with weight 1."""
        if self._weight != 1.0:
            self.carry()
            self._weight = 1.0
        self._pending.extend(numbers)
        if len(self._pending) >= _MAX_PENDING:
            self.carry()

    def begin(self) -> None:
        """Reset to zero."""
        self._pending = []
        self._seen.begin()

    def carry(self) -> None:
        """Count the collected values."""
        pending, self._pending = self._pending, []
        if pending:
            values = np.array(pending, dtype=np.float64)
            self._seen.observe_all(values, self._weight)
            if self._drift is not None:
                self._drift.scalars(values)


class _Late:
    """A scalar whose series is created with its first value, or at once if ``begins``."""

    __slots__ = ("_found", "_make")

    def __init__(self, make: Callable[[], _Scalar | None], *, begins: bool) -> None:
        self._make = make
        self._found = make() if begins else None

    def take_all(self, numbers: Sequence[float]) -> None:
        """Count many numbers, with weight 1."""
        if self._found is None and numbers:
            self._found = self._make()
        if self._found is not None:
            self._found.take_all(numbers)

    def begin(self) -> None:
        """Reset to zero."""
        if self._found is not None:
            self._found.begin()


class _Value(_Number):
    __slots__ = ("_last",)

    def __init__(self, name: str, numbers: _Numbers, bins: Bins | None) -> None:
        super().__init__(name, numbers, bins if bins is not None and bins.kind == "scalar" else None)
        self._last = numbers.last(name)

    def take(self, number: float, weight: float = 1.0) -> None:
        del weight  # sampling does not change which value is the newest
        self._last.set(number)
        if self._drift is not None:
            self._drift.scalar(number)


class _Sum(_Number):
    __slots__ = ("_sum",)

    def __init__(self, name: str, numbers: _Numbers) -> None:
        super().__init__(name, numbers, None)
        self._sum = numbers.count(catalog.VARIABLE_COUNTER, name)

    def take(self, number: float, weight: float = 1.0) -> None:
        if number < 0:
            self.ignore("negative", weight)
        else:
            self._sum.value += number * weight


class _Enum(_Variable):
    __slots__ = ("_expected", "_known", "_pending")

    def __init__(
        self, name: str, numbers: _Numbers, bins: Bins | None, values: Sequence[str], expected: Collection[str] = ()
    ) -> None:
        """``expected``: if given, each of these values gets a series with its first count, all others are ``other``."""
        super().__init__(name, numbers, bins if bins is not None and bins.kind == "enum" else None)
        self._expected = expected
        if self._drift is not None:
            self._drift.named = frozenset(expected or values)
        begins_with = () if expected else (*values, OTHER)
        self._known = {value: numbers.count(catalog.VARIABLE_ENUM, name, value) for value in begins_with}
        self._pending: list[str] = []
        numbers.pending.append(self.carry)

    def see(self, value: object, weight: float) -> None:
        if isinstance(value, np.generic):
            value = value.item()
        category = _category(value)
        if category is None:
            self.ignore("wrong_type", weight)
        else:
            self.take(category, weight)

    def see_all(self, values: Sequence[object], weight: float) -> bool:
        if weight != 1 or set(map(type, values)) != {str}:
            return False
        self.take_all(cast("Sequence[str]", values))
        return True

    def take(self, category: str, weight: float = 1.0) -> None:
        self._count(category).value += weight
        if self._drift is not None:
            self._drift.category(category)

    def _count(self, category: str) -> Count:
        found = self._known.get(category)
        if found is None and category not in self._expected:
            category, found = OTHER, self._known.get(OTHER)
        if found is None:
            found = self._known[category] = self._numbers.count(catalog.VARIABLE_ENUM, self.name, category)
        return found

    def take_all(self, categories: Iterable[str]) -> None:
        """Count many categories, with weight 1."""
        self._pending.extend(categories)
        if len(self._pending) >= _MAX_PENDING:
            self.carry()

    def begin(self) -> None:
        """Reset to zero."""
        self._pending = []
        for count in self._known.values():
            count.value = 0

    def carry(self) -> None:
        """Count the collected values."""
        pending, self._pending = self._pending, []
        self.take_counts(Counter(pending))

    def take_counts(self, times_of: Mapping[str, int]) -> None:
        """Count each category the given number of times."""
        for category, times in times_of.items():
            self._count(category).value += times
            if self._drift is not None:
                self._drift.category(category, times)


def _category(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return texts.BOOLEANS[value]
    if isinstance(value, int | float):
        return f"{value:g}" if -1e15 < value < 1e15 else OTHER
    return None


class _Watched:
    """All variables of one served version."""

    def __init__(
        self, served: Served, declared: Declared | None, numbers: _Numbers, *, chance: Callable[[], float],
        watches_words: bool, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._numbers = numbers
        reference = served.reference
        variables = declared.variables if declared is not None else ()
        self._frequency = declared.frequency if declared is not None else 0.0
        self._declared = [(_split(v.name), _declared(v, numbers, reference.get(v.name))) for v in variables]
        own = {v.name for v in variables}
        # A declared variable replaces the built-in one of the same name.
        self._text = _Text(served, numbers, own, chance, watches_words, clock) if served.is_text else None
        self.fault: Exception | None = None
        self.is_needed = bool(self._declared) or self._text is not None

    def recent_words(self) -> words.Recent | None:
        """See ``words.Watched.recent``."""
        return None if self._text is None or self._text.words is None else self._text.words.recent()

    def usual_words(self) -> Words | None:
        """See ``words.Watched.usual``."""
        return None if self._text is None else self._text.usual_words()

    def look(self, traces: Sequence[Trace], chance: Callable[[], float]) -> bool:
        """Count answered requests; False if a value could not be read, with the reason in ``fault``."""
        if self._text is not None:
            self._text.look(traces)
        frequency = self._frequency
        if not self._declared or frequency <= 0:
            return True
        if frequency < 1:
            traces = [trace for trace in traces if chance() < frequency]
        weight = 1 / frequency
        answers: list[Any] = [trace.answer for trace in traces]
        unlike = [None for answer in answers if type(answer) is not dict]
        is_good = True
        for path, variable in self._declared:
            name = variable.name
            if not unlike and variable.see_all([answer.get(name) for answer in answers], weight):
                continue
            for trace in traces:
                try:
                    _see(variable, path, trace, weight)
                except Exception as error:  # noqa: BLE001 - values may be users' objects, which may raise anything
                    variable.ignore("wrong_type")
                    self.fault, is_good = error, False
        return is_good

    def flush(self) -> None:
        """Count all collected values."""
        for carry in self._numbers.pending:
            carry()


def _see(variable: _Variable, path: tuple[str, ...], trace: Trace, weight: float) -> None:
    answer = trace.answer
    if type(answer) is dict and type(value := answer.get(variable.name)) in _PLAIN:
        variable.see(value, weight)
        return
    values = _find((answer, trace.body, trace.custom), variable.name, path)
    if not values:
        variable.ignore("missing", weight)
    for value in values:
        variable.see(value, weight)


def _declared(variable: MetricVariable, numbers: _Numbers, bins: Bins | None) -> _Variable:
    if variable.type == "scalar":
        return _Scalar(variable.name, numbers, bins, tuple(float(bound) for bound in variable.buckets))
    if variable.type == "enum":
        return _Enum(variable.name, numbers, bins, [str(value) for value in variable.buckets])
    if variable.type == "value":
        return _Value(variable.name, numbers, bins)
    return _Sum(variable.name, numbers)


class _Text:
    """The built-in variables of a text task, for each answered request, or for a random share under high load."""

    __slots__ = ("_drawn", "_entropy", "_has_labels", "_label", "_log_labels", "_looks", "_make_looks", "_n_labels",
                 "_projected", "_reference", "_runs", "_score", "_scores", "_tokens", "_truncated", "_unknown",
                 "_unusual", "_vectors", "words")  # fmt: skip

    def __init__(
        self, served: Served, numbers: _Numbers, taken: set[str], chance: Callable[[], float], watches_words: bool,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        reference = served.reference

        def scalar(name: str, bounds: Mapping[str, tuple[float, ...]]) -> _Scalar | None:
            return None if name in taken else _Scalar(name, numbers, reference.get(name), bounds[name])

        def enum(name: str, values: Sequence[str], expected: Collection[str] = ()) -> _Enum | None:
            return None if name in taken else _Enum(name, numbers, reference.get(name), values, expected)

        self._scores: list[float] = []
        """Scores of all labels, result by result, whose entropy is not computed yet."""
        numbers.pending.append(self.carry)
        labels = [label[:MAX_LABEL_CHARS] for label in served.labels[:MAX_BUCKETS]]
        self._tokens, self._unknown = scalar(variables.TOKENS, _TEXT_BOUNDS), scalar(variables.UNKNOWN, _TEXT_BOUNDS)
        self._truncated = enum(variables.TRUNCATED, texts.BOOLEANS)
        self._has_labels = bool(labels)
        self._n_labels = len(served.labels)
        self._log_labels = math.log(self._n_labels) if self._n_labels > 1 else 0.0
        self._label = enum(variables.LABEL, labels) if labels else None
        self._score = scalar(variables.SCORE, _ANSWER_BOUNDS) if labels else None
        self._entropy = scalar(variables.ENTROPY, _ANSWER_BOUNDS) if self._log_labels else None
        looked = {
            name: enum(name, (), expected)
            for name, expected in texts.VALUES.items()
            if name != variables.RISEN or watches_words
        }

        def late(name: str, bounds: tuple[float, ...]) -> _Late:
            return _Late(lambda: scalar(name, {name: bounds}), begins=name in reference)

        self._unusual = late(variables.UNUSUAL, catalog.WORD_RATIO_BUCKETS)
        risen = looked.get(variables.RISEN)

        def begin() -> None:
            self._unusual.begin()
            if risen is not None:
                risen.begin()

        of_each = [late(name, catalog.COMPONENT_BUCKETS) for name in variables.EMBEDDING]
        self._projected = embeddings.Projected(lambda number, values: of_each[number].take_all(values))
        self._vectors = texts.Sample(texts.MOST_A_SECOND, chance, clock)
        self.words: words.Watched | None = None
        """Created with the first text: its tables would waste memory for hundreds of other versions."""
        self._reference = served.words if watches_words else None

        def looks() -> texts.Looks:
            self.words = words.Watched(served.words, begin) if watches_words else None
            return texts.Looks(
                {name: found.take_counts for name, found in looked.items() if found is not None},
                texts.Sample(texts.MOST_A_SECOND, chance, clock),
                self.words, self._unusual.take_all,
            )  # fmt: skip

        self._make_looks = looks
        self._looks: texts.Looks | None = None
        self._drawn = texts.Sample(texts.MOST_COUNTED, chance, clock)
        self._runs = texts.Runs(texts.MOST_COUNTED, clock)

    def usual_words(self) -> Words | None:
        """Return the frequent words of the texts; before the first text, those of the reference."""
        return self._reference if self.words is None else self.words.usual()

    def look(self, traces: Sequence[Trace]) -> None:
        """Count the texts and results of requests. Answers from the response cache come without texts."""
        number = sum([trace.rows for trace in traces])
        drawn = self._drawn.of(traces, number)
        if self._runs.has(number) and (came := _texts_of(traces)):
            if self._looks is None:
                self._looks = self._make_looks()
            self._looks.follow(came, is_first=self._runs.is_first)
        if not drawn:
            return
        traces = drawn
        rows = [row for trace in traces if trace.encoded for row in trace.encoded]
        if rows:
            self._see_texts(rows)
        if self._looks is not None:
            self._looks.see(_texts_of(traces))
        if not self._has_labels:
            self._see_vectors(traces)
            return
        results: list[Mapping[str, Any]] = []
        for trace in traces:
            answer = trace.answer
            if trace.prepared is not None and trace.prepared.unaltered is not None:
                results.extend(trace.prepared.unaltered)
            elif type(answer) is dict:
                several = answer.get("results")
                if several is None:
                    results.append(answer)
                else:
                    results.extend(several)
        if not self._see(self._see_results, results):
            for result in results:  # a result has an unexpected form: count the others one by one
                if type(result) is dict and "entities" in result:
                    self._see(self._see_entities, result["entities"])
                else:
                    self._see(self._see_results, [result])

    def carry(self) -> None:
        """Count collected texts, vectors and entropies."""
        if self._looks is not None:
            self._looks.carry()
        self._projected.carry()
        scores, self._scores = self._scores, []
        if not scores or self._entropy is None:
            return
        try:
            found = self._entropies(scores)
        except (TypeError, ValueError):  # a result has scores that are not numbers: compute the others one by one
            found = []
            for start in range(0, len(scores), self._n_labels):
                with contextlib.suppress(TypeError, ValueError):
                    found += self._entropies(scores[start : start + self._n_labels])
        self._entropy.take_all(found)
        for _ in range(len(scores) // self._n_labels - len(found)):
            self._entropy.ignore("missing")

    def _entropies(self, scores: list[float]) -> list[float]:
        rows = np.array(scores, dtype=np.float64).reshape(-1, self._n_labels)
        found: list[float] = (_entropies(rows) / self._log_labels).tolist()
        return found

    def _see(self, count: Callable[[Any], None], what: Any) -> bool:
        try:
            count(what)
        except Exception:  # noqa: BLE001 - one unreadable result must not keep the others from being counted
            return False
        return True

    def _see_vectors(self, traces: Sequence[Trace]) -> None:
        vectors = [
            vector
            for trace in traces
            # A truncated vector points in another direction than the whole one.
            if trace.prepared is None or not trace.prepared.request.options.get("truncate_dim")
            for vector in embeddings.vectors_of(trace.answer)
        ]
        if vectors:
            self._see(self._projected.see, self._vectors.of(vectors))

    def _see_texts(self, rows: Sequence[TextRow]) -> None:
        if self._tokens is not None:
            self._tokens.take_all([row.n_tokens for row in rows])
        if self._unknown is not None:
            self._unknown.take_all([row.n_unknown / row.n_tokens if row.n_tokens else 0.0 for row in rows])
        if self._truncated is not None:
            self._truncated.take_all([texts.BOOLEANS[row.truncated] for row in rows])

    def _see_entities(self, entities: Iterable[Mapping[str, Any]]) -> None:
        """Count entities, and likewise single tokens by the entity that they belong to."""
        for entity in entities:
            if self._label is not None:
                label = entity.get("entity_group") or str(entity["entity"])
                self._label.take(label.removeprefix("B-").removeprefix("I-"))
            if self._score is not None:
                self._score.take(entity["score"])

    def _see_results(self, results: Sequence[Mapping[str, Any]]) -> None:
        # Read everything before counting anything, so that an exception leaves no partial count.
        labels = [str(result["label"]) for result in results]
        top = [float(result["score"]) for result in results]
        scores = [result["scores"] for result in results] if self._entropy is not None else []
        whole = [value for one in scores if len(one) == self._n_labels for value in one.values()]
        if self._label is not None:
            self._label.take_all(labels)
        if self._score is not None:
            self._score.take_all(top)
        if self._entropy is not None:
            for _ in range(len(scores) - len(whole) // self._n_labels):
                self._entropy.ignore("missing")
            self._scores += whole
            if len(self._scores) >= _MAX_PENDING * self._n_labels:
                self.carry()


def _texts_of(traces: Sequence[Trace]) -> list[texts.Text]:
    # A request of token ids has empty texts.
    return [text for trace in traces if trace.prepared is not None for text in trace.prepared.request.texts if text]


def _entropies(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropies in nats of the rows (n, labels) that are distributions over all labels; the others are left out."""
    rows = rows[(rows >= 0).all(axis=1) & (np.abs(rows.sum(axis=1) - 1) < 1e-3)]
    logs = np.log(rows, where=rows > 0, out=np.zeros_like(rows))
    entropies: NDArray[np.float64] = -(rows * logs).sum(axis=1)
    return entropies


# --- finding values ---------------------------------------------------------------------------------------------------


def _split(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


def _find(places: Sequence[object], name: str, path: tuple[str, ...]) -> list[object]:
    """Return a variable's values from the first place that has it: the answer, the request, or what the hook reported.

    The order is clearml-serving's. A name is a key, or a path of keys and list positions. A key is looked up in each
    element of a list. A list of values counts as several values.
    """
    for place in places:
        if isinstance(place, Mapping) and name in place:
            found = list(islice(_leaves(place[name]), MAX_VALUES))
        else:
            found = list(islice(_walk(place, path, 0), MAX_VALUES)) if len(path) > 1 or _is_list(place) else []
        if found:
            return found
    return []


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _walk(value: object, path: tuple[str, ...], depth: int) -> Iterator[object]:
    if depth == len(path):
        yield from _leaves(value)
    elif isinstance(value, Mapping):
        if path[depth] in value:
            yield from _walk(value[path[depth]], path, depth + 1)
    elif isinstance(value, list | tuple | np.ndarray):
        items = cast("Sequence[object]", value)
        key = path[depth]
        if key.isdecimal():
            if int(key) < len(items):
                yield from _walk(items[int(key)], path, depth + 1)
        elif not isinstance(value, np.ndarray):
            for item in items[:MAX_VALUES]:
                yield from _walk(item, path, depth)


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        for item in value[:MAX_VALUES]:
            yield from _leaves(item)
    elif isinstance(value, np.ndarray):
        yield from value.reshape(-1)[:MAX_VALUES].tolist()
    elif value is not None:
        yield value


__all__ = [
    "FREQUENCY_SETTING",
    "KINDS",
    "MISSING",
    "OTHER",
    "Declared",
    "Served",
    "Watch",
    "check",
    "declared_for",
    "frequency_of",
]
