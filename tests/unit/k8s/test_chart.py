"""The chart as a whole: its values files, its generated files, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Objects = list[dict[str, Any]]


def test_the_defaults_are_the_values_of_production_with_gpus(helm: Callable[..., Objects]) -> None:
    """A chart that is installed without a values file is what the file for production says."""
    assert helm() == helm("gpu")


def test_values_that_the_chart_does_not_know_are_refused(helm: Callable[..., Objects]) -> None:
    """By name."""
    with pytest.raises(AssertionError, match=r"gatway"):
        helm(gatway="{}")
