"""What the doctor finds of the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.cli.commands import doctor
from tests.fakes import FakeRegistry


def states(findings: Any) -> dict[str, str]:
    """State by subject."""
    return {each.subject: each.state for each in findings}


REAL = {"CLEARML_API_HOST": "http://clearml"}


def test_an_unconfigured_registry_is_only_a_note() -> None:
    """`up` starts its own."""
    assert {"ClearML": "note"} == states(doctor.clearml("", {"CLEARML_CONFIG_FILE": "/none"}, connect=pytest.fail))


def test_the_serving_task_is_read_and_its_faults_shown() -> None:
    """The faults are those of `status --plan`. One that cannot be read is missing, too."""
    registry = FakeRegistry()
    registry.add_endpoint("e", "m0", engine="custom")
    registry.add_model("m0", Path("/m0.onnx"))
    assert {"serving Task": "ok"} == states(doctor.clearml("", REAL, connect=lambda _id: registry))
    registry.add_endpoint("f", "m1", engine="nonsense")
    (found,) = doctor.clearml("", REAL, connect=lambda _id: registry)
    assert ("missing", True) == (found.state, "endpoint f engine" in found.detail)
    registry.is_up = False
    assert {"serving Task": "missing"} == states(doctor.clearml("", REAL, connect=lambda _id: registry))
