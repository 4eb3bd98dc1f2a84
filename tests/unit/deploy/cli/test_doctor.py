"""The doctor's findings on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.cli import doctor
from deploy.cli.doctor import Finding
from deploy.cli.main import main
from gateway.errors import RegistryRefused, RegistryUnavailable
from tests.fakes import FakeRegistry


def states(findings: Any) -> dict[str, str]:
    """State by subject."""
    return {each.subject: each.state for each in findings}


def test_libraries_that_the_linker_does_not_find_are_named(tmp_path: Path) -> None:
    """Without libpython the python backend hangs at its first model; a complete program has no finding."""
    assert [] == doctor.missing_libraries(Path("/bin/ls"))
    assert [] == doctor.missing_libraries(tmp_path / "nothing")
    text = "\tlibpython3.11.so.1.0 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n"
    assert ["libpython3.11.so.1.0"] == doctor._MISSING_LIBRARY.findall(text)


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (RegistryRefused("no ClearML credentials found"), {"ClearML": "note"}),
        (RegistryRefused("no serving service exists yet"), {"ClearML": "ok", "serving Task": "missing"}),
        (RegistryRefused("wrong credentials"), {"ClearML": "missing"}),
        (RegistryUnavailable("connection refused"), {"ClearML": "missing"}),
    ],
)
def test_the_registry_is_looked_at(error: Exception, seen: dict[str, str]) -> None:
    """An unconfigured registry is only a note: `up` starts its own."""

    class Broken(FakeRegistry):
        def task(self) -> Any:
            raise error

    assert seen == states(doctor.clearml("", {}, connect=lambda _id: Broken()))


def test_the_serving_task_is_read_and_its_faults_shown() -> None:
    """The faults are those of `status --plan`."""
    registry = FakeRegistry()
    registry.add_endpoint("e", "m0", engine="custom")
    registry.add_model("m0", Path("/m0.onnx"))
    assert {"ClearML": "ok", "serving Task": "ok"} == states(doctor.clearml("", {}, connect=lambda _id: registry))
    registry.add_endpoint("f", "m1", engine="nonsense")
    found = {f.subject: f for f in doctor.clearml("", {}, connect=lambda _id: registry)}["serving Task"]
    assert ("missing", True) == (found.state, "endpoint f engine" in found.detail)
    registry.sections["endpoints"] = "not json"
    assert "missing" == states(doctor.clearml("", {}, connect=lambda _id: registry))["serving Task"]


def test_a_triton_that_does_not_answer_is_missing() -> None:
    """The finding comes within seconds."""
    assert ["missing"] == [each.state for each in doctor.triton_at("127.0.0.1:1")]


def test_the_command_looks_at_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output mentions every part, and nothing is written."""
    for name in ("CLEARML_API_HOST", "CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLEARML_CONFIG_FILE", str(tmp_path / "clearml.conf"))
    main(["doctor", "--state-dir", str(tmp_path / "state")])
    text = capsys.readouterr().out
    for part in ("Triton server", "ClearML"):
        assert part in text
    assert [] == list(tmp_path.iterdir())


def test_a_finding_is_shown_with_its_remedy() -> None:
    """The remedy is below it, unless nothing is to be done."""
    assert "ok       a: fine" == str(Finding("a", "ok", "fine", "unused"))
    assert "MISSING  b: gone\n         → bring it back" == str(Finding("b", "missing", "gone", "bring it back"))
