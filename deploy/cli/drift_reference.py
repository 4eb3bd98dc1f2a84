"""Makes references: of what gateways have counted, and of the texts of a data set. Called by ``drift capture``."""

from __future__ import annotations

import random
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

from deploy.cli.data_rows import Text
from deploy.controller.counters import BUCKETS, Numbers
from deploy.tools import http_client
from gateway.metrics import catalog, drift, texts, variables

LEAST_TEXTS: Final = 2 * texts.LEARNED
"""Texts that a reference of words needs: half of them to learn the usual words, the others to count them."""


def of_counts(numbers: Numbers, endpoint: str, version: str) -> dict[str, drift.Bins]:
    """Return a reference of each variable of one version that has values."""
    buckets: dict[str, dict[float, float]] = defaultdict(dict)
    values: dict[str, dict[str, float]] = defaultdict(dict)
    missing: dict[str, float] = defaultdict(float)
    for (name, *labels), number in numbers.items():
        if labels[:2] != [endpoint, version]:
            continue
        if name == BUCKETS:
            buckets[labels[2]][float(labels[3])] = number
        elif name == catalog.VARIABLE_ENUM.name and number > 0:
            # A listed value that never occurred has no bin. If it occurs later, it is reported as new.
            values[labels[2]][labels[3]] = number
        elif name == catalog.VARIABLE_IGNORED.name:
            missing[labels[2]] += number
    found: dict[str, drift.Bins] = {}
    for variable, cumulative in buckets.items():
        bounds = sorted(cumulative)
        counts = [cumulative[b] - (cumulative[bounds[i - 1]] if i else 0.0) for i, b in enumerate(bounds)]
        if sum(counts) > 0:
            found[variable] = drift.bucket_bins(bounds, counts, missing=missing[variable])
    for variable, counted in values.items():
        if counted.keys() - {drift.OTHER}:
            found[variable] = drift.enum_bins(counted, missing=missing[variable])
    return found


def of_texts(found: Sequence[Text]) -> dict[str, drift.Bins]:
    """Return references of what texts look like, and of their labels if they have any."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in (variables.LANGUAGE, variables.CASE)}
    for text in (texts.beginning(one.text) for one in found):
        counts[variables.LANGUAGE][texts.language(text, texts.words_of(text))] += 1
        counts[variables.CASE][texts.letter_case(text)] += 1
    counts[variables.LABEL] = Counter(one.label for one in found if one.label)
    return {name: drift.enum_bins(count) for name, count in counts.items() if count}


def of_words(found: Sequence[Text]) -> tuple[drift.Words, drift.Bins] | None:
    """Return the usual words of a data set, and the reference of the share of unusual ones; None if it is too small.

    Texts that words were learned from would measure too well, so the others are measured. The texts are taken in a
    random but reproducible order, because a data set may be sorted by its labels.
    """
    if len(found) < LEAST_TEXTS:
        return None
    usual = texts.UsualWords(None)
    measured = [
        usual.unusual(texts.words_of(texts.beginning(one.text))) for one in random.Random(0).sample(found, len(found))  # noqa: S311 - no secret
    ]  # fmt: skip
    shares = [share for share in measured if share is not None]
    return (usual.words, drift.scalar_bins(shares)) if usual.words and usual.words.usual and shares else None


def learned(gateway: str, url: str) -> tuple[drift.Words | None, drift.Mean | None]:
    """Return the usual words and the mean vector that a gateway counts one version with; None if it does not say."""
    answer = http_client.call_gateway(f"{gateway}/v1/endpoints/{urllib.parse.quote(url)}/learned", timeout=30.0)
    found: Any = answer.content if answer is not None and answer.status == 200 else {}
    words, mean = found.get("words"), found.get("mean")
    return (
        drift.Words(float(words["texts"]), tuple(words["usual"])) if words and words["usual"] else None,
        drift.Mean(float(mean["vectors"]), tuple(mean["values"])) if mean else None,
    )
