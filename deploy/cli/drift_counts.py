"""Reads how often each value of a variable was counted, and makes references and verdicts of it.

Called by ``commands/drift.py``. A gateway's ``/metrics`` count since its process started; Prometheus gives sums over
all gateways within a window.
"""

from __future__ import annotations

import json
import math
import random
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import numpy as np

from deploy.cli.metric_samples import Key, Sample, get
from deploy.tools.errors import DeployError
from deploy.tools.http_client import call_gateway
from gateway.metrics import catalog, compared, drift, performance, texts, variables

Bins = drift.Bins
Words = drift.Words
Mean = drift.Mean
Compared = compared.Compared
sentences = compared.sentences
Evidence = drift.Evidence
Verdict = drift.Verdict
Verdicts = Sequence[Verdict]
"""The verdicts on variables, in the order in which they are shown."""
UNUSUAL, COSINE = variables.UNUSUAL, variables.COSINE
LABEL, SCORE = variables.LABEL, variables.SCORE
OF_TEXT: Final = frozenset({variables.LANGUAGE, variables.CASE})
"""Variables that follow from the text alone."""
encode = drift.encode
in_days = drift.in_days

LEAST_TEXTS: Final = 2 * texts.LEARNED
"""Texts that a reference of words needs: half of them to learn the usual words, the others to count them."""
_TIMEOUT_S: Final = 30.0
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
    """Return the usual words of one version's texts; None if the gateway does not report them."""
    found = _learned(gateway, url, "words")
    try:
        return drift.Words(float(found["texts"]), tuple(map(str, found["usual"]))) if found["usual"] else None
    except (ValueError, KeyError, TypeError):
        return None


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
            found[variable] = drift.enum_bins(listed, missing=missing[variable])
    return found


def of_texts(found: Iterable[str | tuple[str, str]], labels: Iterable[str]) -> dict[str, Bins]:
    """Return references of the variables of texts, and of ``labels`` if there are any."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in (variables.LANGUAGE, variables.CASE)}
    for text in map(texts.beginning, found):
        counts[variables.LANGUAGE][texts.language(text, texts.words_of(text))] += 1
        counts[variables.CASE][texts.letter_case(text)] += 1
    counts[variables.LABEL] = Counter(labels)
    return {name: drift.enum_bins(count) for name, count in counts.items() if count}


def words_of_texts(found: Sequence[str | tuple[str, str]]) -> tuple[drift.Words, Bins] | None:
    """Return the usual words of a data set, and the reference of the share of unusual ones; None if it is too small.

    Texts that words were learned from would measure too well, so the others are measured. The texts are taken in a
    random but reproducible order, because a data set may be sorted by its labels.
    """
    if len(found) < LEAST_TEXTS:
        return None
    usual = texts.UsualWords(None)
    measured = [
        usual.unusual(texts.words_of(texts.beginning(text))) for text in random.Random(0).sample(found, len(found))  # noqa: S311 - no secret
    ]  # fmt: skip
    shares = [share for share in measured if share is not None]
    return (
        (usual.words, drift.scalar_bins(shares)) if usual.words is not None and usual.words.usual and shares else None
    )


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
    evidence = drift.evidence_of(days, visible, since, next(iter(alarm.values()), drift.ALARM_DAYS))
    return [
        drift.Verdict(
            *key[0], tuple(shares), tuple(shares.values()), tuple(counts[key].get(name, 0.0) for name in shares),
            sizes.get(key, math.inf), evidence.get(key[0], drift.Evidence()), news[key],
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
