"""The references in use, as gateways tell them with their counters, and the counts of variables beside them. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from itertools import pairwise

from deploy.controller.counters import BUCKETS, REFERENCE, Numbers, Reading
from gateway import metrics

catalog = metrics.catalog
drift = metrics.drift

Key = tuple[str, str, str]
"""Endpoint, version and variable."""


def references(reading: Reading) -> dict[Key, drift.Bins]:
    """Return the references in use. While gateways take over a new one, that of the last by address."""
    found: dict[Key, drift.Bins] = {}
    for _, numbers in sorted(reading.numbers.items()):
        of: dict[Key, dict[str, float]] = defaultdict(dict)
        for (name, *labels), count in numbers.items():
            if name == REFERENCE:
                endpoint, version, variable, bin_name = labels
                of[endpoint, version, variable][bin_name] = count
        found |= {key: drift.in_order(bins) for key, bins in of.items()}
    return dict(sorted(found.items()))


def name_of(bins: drift.Bins) -> str:
    """Return a hash of a reference: what was found of another one says nothing about it."""
    return hashlib.sha256(json.dumps(sorted(bins.items())).encode()).hexdigest()[:8]


def variables(numbers: Numbers) -> dict[Key, dict[str, float]]:
    """Return the counts of every variable by bin."""
    found: dict[Key, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    buckets: dict[Key, dict[float, float]] = defaultdict(dict)
    for (name, *labels), count in numbers.items():
        if name in (catalog.VARIABLE_ENUM.name, catalog.VARIABLE_IGNORED.name, BUCKETS):
            endpoint, version, variable, value = labels
            if name == BUCKETS:
                buckets[endpoint, version, variable][float(value)] = count
            else:
                named = value if name == catalog.VARIABLE_ENUM.name else drift.MISSING
                found[endpoint, version, variable][named] += count
    for key, cumulative in buckets.items():
        for (_, below), (bound, up_to) in pairwise([(-math.inf, 0.0), *sorted(cumulative.items())]):
            found[key][drift.bin_of(bound)] += max(0.0, up_to - below)  # Prometheus extrapolates
    return found
