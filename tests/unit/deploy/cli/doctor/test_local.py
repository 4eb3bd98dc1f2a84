"""The doctor's findings on this machine."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.doctor import local
from deploy.cli.doctor.finding import Finding, lines, summary
from deploy.cli.main import main
from deploy.tools.extras import requirements
from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.testing import FakeRegistry


def states(findings: Any) -> dict[str, str]:
    """State by subject."""
    return {each.subject: each.state for each in findings}


@pytest.mark.parametrize(("version", "state"), [((3, 10, 4), "missing"), ((3, 11, 2), "ok"), ((3, 13, 0), "ok")])
def test_python_has_to_be_new_enough(version: tuple[int, ...], state: str) -> None:
    """Exception groups and asyncio's timeouts need 3.11."""
    assert state == local.python(version).state


def test_packages_of_an_extra_are_a_note_and_ours_are_needed() -> None:
    """A gateway alone needs no Triton wheel."""
    required = {"": ["click"], "triton": ["no-such-package"], "cli": ["click"]}
    seen = states(local.packages(required))
    assert ("ok", "note", "ok") == (seen["packages"], seen["extra triton"], seen["extra cli"])
    assert "missing" == states(local.packages({"": ["no-such-package"]}))["packages"]


def test_the_packages_that_are_looked_for_are_the_declared_ones() -> None:
    """Read from the installed metadata, or pyproject.toml in a checkout."""
    required = requirements()
    assert {"fastapi", "clearml", "tritonclient"} <= {*required[""]}
    assert "nvidia-pytriton" in required["triton"]
    assert {*local.EXTRAS} <= {*required}


def test_libraries_that_the_linker_does_not_find_are_named(tmp_path: Path) -> None:
    """Without libpython the python backend hangs at its first model; a complete program has no finding."""
    assert [] == local.missing_libraries(Path("/bin/ls"))
    assert [] == local.missing_libraries(tmp_path / "nothing")
    text = "\tlibpython3.11.so.1.0 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n"
    assert ["libpython3.11.so.1.0"] == local._MISSING_LIBRARY.findall(text)


def test_little_shared_memory_is_missing(tmp_path: Path) -> None:
    """Docker's 64 MB are too little for the python backend; a missing folder counts as 0 MB."""
    seen = states(local.triton_server("", shm=tmp_path / "none"))
    assert "missing" == seen["shared memory"]


def test_an_existing_triton_needs_nothing_here() -> None:
    """Only its address is reported."""
    assert [Finding("Triton server", "ok", "the one at t:8001")] == list(local.triton_server("t:8001"))


def test_disk_that_cannot_be_written_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding comes before a long download."""
    assert {"state directory": "ok"} == states(local.disk(tmp_path / "not" / "yet"))
    monkeypatch.setattr("os.access", lambda *_: False)
    assert {"state directory": "missing"} == states(local.disk(tmp_path))


def test_a_taken_port_is_a_note_with_its_holder() -> None:
    """It may be our own server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "note" == local.port_free("gateway", port).state
    assert "ok" == local.port_free("gateway", port).state


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

    assert seen == states(local.clearml("", {}, connect=lambda _id: Broken()))


def test_the_serving_task_is_read_and_its_faults_shown(tmp_path: Path) -> None:
    """The faults are those of `status --plan`."""
    registry = FakeRegistry()
    registry.add_endpoint("e", "m0", engine="custom")
    assert {"ClearML": "ok", "serving Task": "ok"} == states(local.clearml("", {}, connect=lambda _id: registry))
    file = tmp_path / "bundle.zip"
    file.write_bytes(b"x")
    registry.add_model("m1", file, name="film")
    registry.add_model("m2", file, name="news")
    registry.add_endpoint("f", "m1")
    found = {f.subject: f for f in local.clearml("", {}, connect=lambda _id: registry)}["serving Task"]
    assert ("missing", True) == (found.state, "film (m1), news (m2) are all at" in found.detail)
    registry.sections["endpoints"] = "not json"
    assert "missing" == states(local.clearml("", {}, connect=lambda _id: registry))["serving Task"]


def test_a_triton_that_does_not_answer_is_missing() -> None:
    """The finding comes within seconds."""
    assert ["missing"] == [each.state for each in local.triton_at("127.0.0.1:1")]


def test_findings_are_shown_with_their_remedies() -> None:
    """Each remedy is below its finding; the last line has the count."""
    findings = [Finding("a", "ok", "fine", "unused"), Finding("b", "missing", "gone", "bring it back")]
    assert ["ok       a: fine", "MISSING  b: gone", "         → bring it back"] == lines(findings)
    assert ("1 missing", "nothing is missing") == (summary(findings), summary(findings[:1]))


def test_the_command_looks_at_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output mentions every part, and nothing is written."""
    for name in ("CLEARML_API_HOST", "CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLEARML_CONFIG_FILE", str(tmp_path / "clearml.conf"))
    main(["doctor", "--state-dir", str(tmp_path / "state")])
    text = capsys.readouterr().out
    for part in ("Python", "packages", "extra triton", "Prometheus", "state directory", "port 8080", "ClearML"):
        assert part in text
    assert sys.executable in text
    assert [] == list(tmp_path.iterdir())


def test_pools_that_endpoints_name_are_looked_for():
    """A pool without an address, and one without a running Triton; without pools there is no finding."""
    named = {"a": ["a10"], "b": ["a10", "h100"], "c": ["nowhere"], "d": ["default"]}
    text = "a10=t-a10:8001 h100=t-h100:8001"
    found = {f.subject: f for f in local.pools_of(named, text, is_live=lambda address: "a10" in address)}
    assert {"pool a10": "ok", "pool h100": "missing", "pool nowhere": "missing"} == states(found.values())
    assert "has no address, and is used by 1 endpoint (c)" in found["pool nowhere"].detail
    assert "TRITON_GATEWAY_POOLS" in found["pool nowhere"].remedy
    assert "no Triton answers at t-h100:8001" in found["pool h100"].detail
    assert [] == list(local.pools_of({"d": ["default"]}, ""))
    assert {"pools": "missing"} == states(local.pools_of(named, "nonsense"))
