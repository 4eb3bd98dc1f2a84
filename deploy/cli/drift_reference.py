"""Makes references of what gateways have counted. Called by ``drift capture``."""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Sequence
from typing import Any

from deploy.controller.counters import Numbers
from deploy.controller.drift import references
from deploy.tools import http_client
from gateway.metrics import drift


def of_counts(numbers: Numbers, endpoint: str, version: str) -> dict[str, drift.Bins]:
    """Return a reference of each variable of one version that has values."""
    found: dict[str, drift.Bins] = {}
    for key, counts in references.variables(numbers).items():
        if key[:2] == (endpoint, version):
            with contextlib.suppress(drift.BadReference):  # it was only missing
                found[key[2]] = drift.reference_of(counts)
    return found


def learned(gateway: str, url: str) -> tuple[Sequence[str], Sequence[float]]:
    """Return the usual words and the mean vector that a gateway counts one version with; empty if it does not say."""
    answer = http_client.call_gateway(f"{gateway}/v1/endpoints/{urllib.parse.quote(url)}/learned", timeout=30.0)
    found: Any = answer.content if answer is not None and answer.status == 200 else {}
    return found.get("words", ()), found.get("mean", ())
