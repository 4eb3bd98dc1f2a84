"""The references in use: the shares of each variable's bins, as gateways tell them with their counters. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from deploy.controller.counters import Numbers
from deploy.controller.drift.evidence import Floats
from deploy.controller.registry import metrics

catalog = metrics.catalog
MISSING, OTHER = metrics.drift.MISSING, metrics.drift.OTHER

Key = tuple[str, str, str, str]
"""Endpoint, version, variable, and the name of its reference."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A variable's reference: the share of each bin, and the number of its values (infinite if unknown)."""

    shares: Mapping[str, float]
    size: float

    @property
    def is_ordered(self) -> bool:
        """Whether the bins are those of a number."""
        return OTHER not in self.shares


def references(numbers: Numbers) -> dict[Key, Reference]:
    """Return the references in use."""
    shares: dict[Key, dict[str, float]] = defaultdict(dict)
    sizes: dict[Key, float] = {}
    for (name, *labels), value in numbers.items():
        if name == catalog.DRIFT_REFERENCE.name and value > 0:  # NaN: no longer in use
            endpoint, version, variable, reference, bin_name = labels
            shares[endpoint, version, variable, reference][bin_name] = value
        elif name == catalog.DRIFT_REFERENCE_SIZE.name:
            endpoint, version, variable, reference = labels
            sizes[endpoint, version, variable, reference] = value
    return {
        key: Reference(dict(sorted(of.items(), key=_order)), sizes.get(key, math.inf))
        for key, of in sorted(shares.items())
    }


def _order(bin_: tuple[str, float]) -> tuple[int, float, str]:
    """Numbers by size, then named values by share, then ``other`` and ``missing``."""
    name, share = bin_
    if name in (OTHER, MISSING):
        return (2, 0.0, "ab"[name == MISSING])
    try:
        return (0, float(name), "")
    except ValueError:
        return (1, -share, name)


def bins(numbers: Numbers, key: Key, reference: Reference) -> Floats:
    """Return how many values fell into each bin of a reference."""
    return np.array([numbers.get((catalog.DRIFT_OBSERVATIONS.name, *key, name), 0.0) for name in reference.shares])
