"""Makes references: of what gateways have counted, and of the texts of a data set. Called by ``drift capture``."""

from __future__ import annotations

import random
import time
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from deploy.cli.data_rows import Text
from deploy.cli.terminal import Terminal
from deploy.controller.drift.counts import BUCKETS, Numbers
from deploy.tools import http_client
from deploy.tools.errors import DeployError
from gateway.metrics import catalog, drift, texts, variables

LEAST_TEXTS: Final = 2 * texts.LEARNED
"""Texts that a reference of words needs: half of them to learn the usual words, the others to count them."""
_TRIES: Final = 10
"""Attempts per batch while the endpoint is overloaded (429, 503)."""
_BATCH: Final = 16
"""Texts in one request."""


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
    """Return references of what texts look like, and of their labels if they have any. Nothing is sent."""
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


def send(gateway: str, url: str, found: Sequence[Text], terminal: Terminal, *, rate: float) -> tuple[int, int, int]:
    """Send all texts to the endpoint version ``url``, at most ``rate`` a second.

    Returns the number of requests, of texts whose answered label is that of their row, and of texts with both labels.
    Raises ``DeployError`` that names the refused rows and the reason.
    """
    requests = agreed = labelled = 0
    began = time.monotonic()
    for start in range(0, len(found), _BATCH):
        some = found[start : start + _BATCH]
        if (left := began + start / rate - time.monotonic()) > 0:
            time.sleep(left)
        answer = _answered(gateway, url, some)
        requests += 1
        results = answer.get("results", answer.get("predictions")) if isinstance(answer, Mapping) else answer
        for row, result in zip(some, results if isinstance(results, list) else [answer], strict=False):
            if row.label and isinstance(result, Mapping) and "label" in result:
                labelled += 1
                agreed += str(result["label"]) == row.label
        to_go = (len(found) - start) / rate
        terminal.live(f"{start + len(some):,} of {len(found):,} texts answered, at least {to_go:.0f} s to go")
    terminal.clear()
    return requests, agreed, labelled


def _answered(gateway: str, url: str, some: Sequence[Text]) -> Any:
    answer: http_client.Answer | None = None
    for _ in range(_TRIES):
        body = {"text": [one.text for one in some]}
        answer = http_client.call_gateway(f"{gateway}/serve/{url}", body=body, timeout=120.0)
        if answer is None:
            hint = "check that the gateway runs, and that --url is its address"
            raise DeployError(f"nothing answers at {gateway}", hint=hint)
        if answer.status == 200:
            return answer.content
        if answer.status not in (429, 503):
            break
        time.sleep(min(float(answer.headers.get("retry-after", "1") or 1), 10.0))
    assert answer is not None  # noqa: S101 - as above
    said = answer.content if isinstance(answer.content, Mapping) else {}
    raise DeployError(
        f"{url} answered {answer.status} to {some[0].where} to {some[-1].where}: {said.get('error', 'no reason')}",
        hint=str(said.get("hint") or "--from needs an endpoint that takes texts; a lower --rate sends more slowly"),
    )
