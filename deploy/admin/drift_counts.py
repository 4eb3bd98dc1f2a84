"""Reads how often each value of a variable was counted, and makes references and verdicts of it.

Called by ``commands/drift.py``. A gateway's ``/metrics`` count since its process started; Prometheus gives sums over
all gateways within a window.
"""

from __future__ import annotations

import base64
import json
import math
import random
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import numpy as np

from deploy.admin.metric_samples import Key, Sample, get
from deploy.tools.errors import DeployError
from deploy.tools.http_client import call_gateway
from gateway.metrics import catalog, compared, drift, performance, texts, variables

Bins = drift.Bins
Words = drift.Words
Mean = drift.Mean
Compared = compared.Compared
sentences = compared.sentences
Standing = drift.Standing
Verdict = drift.Verdict
Verdicts = Sequence[Verdict]
"""The verdicts on variables, in the order in which they are shown."""
OF_WORDS, COSINE = variables.OF_WORDS, variables.COSINE
MEANINGS = variables.BUILT_IN
LABEL, SCORE = variables.LABEL, variables.SCORE
OF_TEXT: Final = frozenset({variables.SCRIPT, variables.LANGUAGE, variables.CASE})
"""Variables that follow from the text alone."""
encode = drift.encode
in_days = drift.in_days

_RISEN: Final = 0.01
"""Share of texts with a risen word, beyond the reference's, from which a new reference has other words."""
LEAST_TEXTS: Final = 3000
"""Texts that a reference of words needs: a thousand to learn the frequent words, the others to count them."""
_TIMEOUT_S: Final = 30.0
_ALL: Final = 1 << 40
"""A number of texts per second that is never reached: none is left out."""
_COUNTERS = (
    f"{catalog.VARIABLE_SCALAR.name}_bucket",
    catalog.VARIABLE_ENUM.name,
    catalog.VARIABLE_IGNORED.name,
    catalog.DRIFT_OBSERVATIONS.name,
    catalog.DRIFT_NEW.name,
    catalog.FEEDBACK_ANSWERS.name,
)
_GAUGES = (catalog.DRIFT_REFERENCE.name, catalog.DRIFT_REFERENCE_SIZE.name)
_STANDINGS = (
    catalog.DRIFT_EVIDENCE.name, catalog.DRIFT_VISIBLE.name, catalog.DRIFT_SINCE.name, catalog.DRIFT_ALARM.name
)  # fmt: skip


def from_prometheus(url: str, window: str) -> list[Sample]:
    """Return the counts within ``window`` (like `1h`), summed over gateways. Raises ``DeployError``."""
    found: list[Sample] = []
    for name in _COUNTERS:
        found += _query(url, name, f"sum without (instance, pod, job) (increase({name}[{window}]))")
    for name in _GAUGES:
        found += _query(url, name, f"max without (instance, pod, job) ({name})")
    for name in _STANDINGS:  # each gateway has its own evidence; the alert uses the mean as well
        found += _query(url, name, f"avg without (instance, pod, job) ({name} >= 0)")
    return found


def mean(gateway: str, url: str) -> drift.Mean | None:
    """Return the mean of one version's embeddings; None if the gateway does not report it."""
    found = _learned(gateway, url, "mean")
    try:
        return drift.Mean(float(found["vectors"]), tuple(map(float, found["values"])))
    except (ValueError, KeyError, TypeError):
        return None


def _learned(gateway: str, url: str, what: str) -> Any:
    found = _get(gateway, f"/v1/endpoints/{urllib.parse.quote(url)}/learned")
    return found.get(what) if isinstance(found, Mapping) else None


def words(gateway: str, url: str) -> drift.Words | None:
    """Return the frequent words of one version's texts; None if the gateway does not report them."""
    found = _learned(gateway, url, "words")
    try:
        # Earlier releases do not report ``seen``.
        seen, known = base64.b64decode(found.get("seen", "")), float(found.get("known", 0))
        return drift.Words(float(found["texts"]), found["counts"], seen, known) if found["counts"] else None
    except (AttributeError, ValueError, KeyError, TypeError):
        return None


def renewed(
    gateway: str, samples: Iterable[Sample], endpoint: str, version: str, found: Mapping[str, Bins], words: Words
) -> tuple[Words | None, dict[str, Bins]] | None:
    """Return the words of recent texts, and ``found`` adapted to them, if words rose since ``words`` were learned.

    ``words``: those of the reference in use. With a new reference, the words that rose are known. Risen words then get
    the shares of the old reference, and unusual words must be counted again. The words are None if there were too few
    texts. Returns None if no words rose.
    """
    stand = [
        v for v in verdicts(samples) if (v.endpoint, v.version, v.variable) == (endpoint, version, variables.RISEN)
    ]
    if not stand or variables.RISEN not in found:
        return None
    usually = dict(zip(stand[0].bins, stand[0].reference, strict=True))
    now = dict(zip(found[variables.RISEN].names, found[variables.RISEN].ratios(), strict=True))
    if usually.get(texts.NONE, 0.0) - now.get(texts.NONE, 0.0) < _RISEN:
        return None
    others = {name: bins for name, bins in found.items() if name not in OF_WORDS}
    url = f"{endpoint}/{version}" if version else endpoint
    answer = _learned(gateway, url, "words")
    recent = answer.get("recent") if isinstance(answer, Mapping) else None
    if not recent or not recent["counts"]:
        return None, others
    total = found[variables.RISEN].total
    risen = {name: share * total for name, share in usually.items() if name not in (drift.OTHER, drift.MISSING)}
    fresh = Words(float(recent["texts"]), recent["counts"], words.seen)
    return fresh, {**others, variables.RISEN: drift.risen_bins(risen)}


def known_later(bins: Mapping[str, Bins], words: drift.Words) -> dict[str, Bins]:
    """Return the references; that of risen words as it counts once all of ``words`` are known."""
    return {name: drift.known_later(one, words) if name == variables.RISEN else one for name, one in bins.items()}


def moved_words(gateway: str) -> dict[tuple[str, str], dict[str, list[dict[str, Any]]]]:
    """Return the words that rose and fell, by endpoint and version; empty if the gateway does not report them."""
    status = _get(gateway, "/v1/status")
    try:
        return {(one["endpoint"], one["version"]): one["words"] for one in status["drift"] if "words" in one}
    except (KeyError, TypeError):
        return {}


def served(gateway: str) -> list[tuple[str, str]] | None:
    """Return the endpoint and version of everything that the gateway serves; None if it does not report them."""
    status = _get(gateway, "/v1/status")
    try:
        return sorted((str(one["endpoint"]), str(one["version"])) for one in status["endpoints"])
    except (KeyError, TypeError):
        return None


def side_by_side(gateway: str) -> list[Compared]:
    """Return the gateway's comparisons of canaries with stable versions. Raises ``DeployError``."""
    status = _get(gateway, "/v1/status")
    try:
        return compared.read([status])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DeployError(
            f"{gateway} reports no comparison of versions",
            hint="check that --url is the address of a triton-gateway, and that you may read its /v1/status",
        ) from error


def _get(gateway: str, path: str) -> Any:
    answer = call_gateway(f"{gateway.rstrip('/')}{path}", timeout=_TIMEOUT_S)
    return answer.content if answer is not None and answer.status == HTTPStatus.OK else None


def word_shares(moved: Mapping[str, Any]) -> str:
    """Return the shares of texts with a word that rose or fell, now and in the reference, as text."""
    was = "was not frequent" if moved["was"] is None else f"was {moved['was']:.1%}"
    return f"{moved['now']:.1%} ({was})"


def _query(url: str, name: str, expr: str) -> list[Sample]:
    answer = json.loads(get(f"{url.rstrip('/')}/api/v1/query?{urllib.parse.urlencode({'query': expr})}"))
    if answer.get("status") != "success":
        raise DeployError(f"Prometheus refused the query {expr}: {answer.get('error')}")
    return [Sample(name, item["metric"], float(item["value"][1])) for item in answer["data"]["result"]]


def difference(after: Iterable[Sample], before: Iterable[Sample]) -> list[Sample]:
    """Return the counts between two readings of one gateway; gauges keep the later value.

    A counter that went back was reset: its whole value counts.
    """
    old = {(s.name, frozenset(s.labels.items())): s.value for s in before}
    found = []
    for sample in after:
        value = sample.value
        if sample.name in _COUNTERS:
            earlier = old.get((sample.name, frozenset(sample.labels.items())), 0.0)
            value = value - earlier if value >= earlier else value
        found.append(Sample(sample.name, sample.labels, value))
    return found


def references(samples: Iterable[Sample], endpoint: str, version: str) -> dict[str, drift.Bins]:
    """Return a reference of each variable of one version that has values."""
    buckets: dict[str, dict[float, float]] = defaultdict(dict)
    values: dict[str, dict[str, float]] = defaultdict(dict)
    missing: dict[str, float] = defaultdict(float)
    for sample in samples:
        if sample.key[:2] != (endpoint, version):
            continue
        variable = sample.key[2]
        if sample.name == _COUNTERS[0]:
            buckets[variable][float(sample.labels["le"])] = sample.value
        elif sample.name == catalog.VARIABLE_ENUM.name:
            values[variable][sample.labels["value"]] = sample.value
        elif sample.name == catalog.VARIABLE_IGNORED.name:
            missing[variable] += sample.value
    found: dict[str, drift.Bins] = {}
    for variable, cumulative in buckets.items():
        bounds = sorted(cumulative)
        counts = [cumulative[b] - (cumulative[bounds[i - 1]] if i else 0.0) for i, b in enumerate(bounds)]
        if sum(counts) > 0:
            found[variable] = drift.bucket_bins(bounds, counts, missing=missing[variable])
    for variable, counted in values.items():
        if sum(count for value, count in counted.items() if value != drift.OTHER) > 0:
            # A listed value that never occurred has no bin. If it occurs later, it is reported as new.
            listed = {value: count for value, count in counted.items() if count > 0}
            make = drift.risen_bins if variable == variables.RISEN else drift.enum_bins
            found[variable] = make(listed, missing=missing[variable])
    return found


class TextCounts:
    """Counts the variables of texts; ``counts`` has a counter per variable, complete after ``flush``."""

    def __init__(self, names: Iterable[str] = variables.BUILT_IN) -> None:
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in names}
        takes = {name: count.update for name, count in self.counts.items()}
        self._looks = texts.TextCounter(takes, texts.Sample(_ALL, random.random))

    def see(self, text: str | tuple[str, str]) -> None:
        """Count a text."""
        self._looks.see([text])
        self._looks.follow([text])

    def flush(self) -> None:
        """Count what is pending."""
        self._looks.flush()


def of_texts(found: Iterable[str | tuple[str, str]], labels: Iterable[str]) -> dict[str, Bins]:
    """Return references of the variables of texts, and of ``labels`` if there are any."""
    counted = TextCounts()
    for text in found:
        counted.see(text)
    counted.flush()
    counted.counts[variables.LABEL].update(labels)
    return {name: drift.enum_bins(count) for name, count in counted.counts.items() if count}


def words_of_texts(found: Sequence[str | tuple[str, str]]) -> tuple[drift.Words, dict[str, Bins]] | None:
    """Return the frequent words of a data set and the references of word variables; None if it is too small.

    The texts are taken in a random but reproducible order, because a data set may be sorted by its labels.
    """
    if len(found) < LEAST_TEXTS:
        return None
    shuffled = random.Random(0).sample(found, len(found))  # noqa: S311 - no secret
    usual, shares, risen = texts.learned(shuffled)
    if usual is None or not shares:
        return None
    of_words = {variables.UNUSUAL: drift.scalar_bins(shares), variables.RISEN: drift.risen_bins(risen)}
    return usual, {name: bins for name, bins in of_words.items() if bins.total}


def answered(samples: Iterable[Sample], endpoint: str, version: str) -> float:
    """Return the number of answered requests of a version."""
    return sum(
        one.value for one in samples
        if one.name == catalog.REQUESTS.name and one.key[:2] == (endpoint, version) and one.labels["outcome"] == "ok"
    )  # fmt: skip


def verdicts(samples: Iterable[Sample]) -> Verdicts:
    """Return the verdict on each variable that has a reference."""
    counts: dict[tuple[Key, str], dict[str, float]] = defaultdict(dict)
    ratios: dict[tuple[Key, str], dict[str, float]] = defaultdict(dict)
    news: dict[tuple[Key, str], dict[str, float]] = defaultdict(dict)
    sizes: dict[tuple[Key, str], float] = {}
    stand: dict[str, dict[Key, float]] = {name: {} for name in _STANDINGS}
    for sample in samples:
        if sample.name in stand:
            stand[sample.name][sample.key] = sample.value
        # Counts are kept per reference: those of a replaced one do not count for the current one.
        key = (sample.key, sample.labels.get("reference", ""))
        if sample.name == catalog.DRIFT_OBSERVATIONS.name:
            counts[key][sample.labels["bin"]] = sample.value
        elif sample.name == catalog.DRIFT_NEW.name:
            news[key][sample.labels["value"]] = sample.value
        elif sample.name == catalog.DRIFT_REFERENCE.name and not math.isnan(sample.value):
            ratios[key][sample.labels["bin"]] = sample.value
        elif sample.name == catalog.DRIFT_REFERENCE_SIZE.name:
            sizes[key] = sample.value
    days, visible, since, alarm = stand.values()
    standings = drift.standings(days, visible, since, next(iter(alarm.values()), drift.ALARM_DAYS))
    return [
        drift.Verdict(
            *key[0], tuple(shares), tuple(shares.values()), tuple(counts[key].get(name, 0.0) for name in shares),
            sizes.get(key, math.inf), standings.get(key[0], drift.Standing()), news[key],
        )
        for key in sorted(ratios)
        if (shares := dict(sorted(ratios[key].items(), key=lambda item: _order(item[0]))))
    ]  # fmt: skip


def accuracies(samples: Iterable[Sample]) -> list[dict[str, object]]:
    """Return the measured and expected accuracy of each version with labels; see ``performance.of_counts``."""
    labels: dict[tuple[str, str], dict[tuple[str, str], float]] = defaultdict(dict)
    scores: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)
    for one in samples:
        version = one.key[:2]
        if one.name == catalog.FEEDBACK_ANSWERS.name and one.value > 0:
            labels[version][one.labels["score"], one.labels["outcome"]] = one.value
        elif one.name == f"{catalog.VARIABLE_SCALAR.name}_bucket" and one.key[2] == variables.SCORE:
            scores[version][float(one.labels["le"])] = one.value
    bounds = catalog.RATIO_BUCKETS
    found: list[dict[str, object]] = []
    for version, counted in sorted(labels.items()):
        below = [scores[version].get(bound, 0.0) for bound in bounds]
        seen = np.maximum(np.diff([0.0, *below]), 0.0)
        found.append(
            {"endpoint": version[0], "version": version[1], **performance.of_counts(counted, seen, bounds)}
        )  # fmt: skip
    return found


def accuracy_in_words(one: Mapping[str, Any]) -> str:
    """Return the accuracy of a version in words; ``one`` is a row of ``accuracies`` or of ``/v1/status``."""
    return f"{one['endpoint']} {one['version'] or '-'}: {performance.described(one)}"


def _order(bin_name: str) -> tuple[int, float, str]:
    if bin_name in (drift.OTHER, drift.MISSING):
        return (2, 0.0, "ab"[bin_name == drift.MISSING])
    try:
        return (0, float(bin_name), "")
    except ValueError:
        return (1, 0.0, bin_name)
