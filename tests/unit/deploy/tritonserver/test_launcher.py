"""Which server is chosen, on which ports; starting the real one is the integration tests' part."""

from __future__ import annotations

import re
import socket
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.cli.main import main
from deploy.laptop.demo.minilm import REQUIREMENT
from deploy.tools.errors import DeployError
from deploy.tritonserver import launcher
from deploy.tritonserver.launcher import Server, Wheel, choose_server

WHEEL = Wheel(Path("s"), Path("p"), Path("l"), Path("site"), Path("stub"))
ON_PATH = Path("/opt/tritonserver/bin/tritonserver")


@pytest.mark.parametrize(
    ("on_path", "expected", "engine"),
    [(ON_PATH, Server(ON_PATH), "native"), (None, Server(WHEEL.server, WHEEL), "python")],
)
def test_a_server_on_path_goes_before_the_wheel(on_path, expected, engine):
    """The order of choice; a full Triton gets native backends, the wheel's our python program."""
    chosen = choose_server(on_path=on_path, wheel=WHEEL, python="3.11")
    assert (expected, engine) == (chosen, chosen.engine)


@pytest.mark.parametrize(
    ("python", "command"),
    [("3.11", r'with pip install ".\[triton\]"'), ("3.13", "with pip install --no-deps nvidia-pytriton==")],
)
def test_no_server_at_all_says_what_to_install(python, command):
    """One line, with the command. Python 3.13 has no numpy below 2, for which pip would ask."""
    with pytest.raises(DeployError, match=command):
        choose_server(on_path=None, wheel=None, python=python)


@pytest.mark.parametrize("system", ["Darwin arm64", "Linux riscv64"])
def test_where_no_triton_is_made_for_what_runs_there_is_said(system):
    """The gateway alone does, and containers."""
    with pytest.raises(DeployError) as missing:
        choose_server(on_path=None, wheel=None, python="3.12", system=system)
    line = missing.value.line()
    assert f"there is no Triton for {system}, only for Linux x86_64 and Linux aarch64" in line
    assert "`TRITON_GATEWAY_TRITON_GRPC=HOST:8001 triton-gateway serve`" in line
    assert "pip install" not in line


def test_a_python_without_stub_names_those_that_have_one():
    """The wheel brings a python backend for some versions only."""
    with pytest.raises(DeployError, match=r"no python backend for Python 3.14: use 3.11, 3.12 or 3.13"):
        choose_server(on_path=None, wheel=replace(WHEEL, stub=None), python="3.14")


def test_a_taken_port_is_named_with_its_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said before the server is started, not found out of its log."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        folders = ["--state-dir", str(tmp_path), "--repository", str(tmp_path / "models")]
        assert 1 == main(["triton", *folders, "--grpc-port", str(port)])
    assert re.search(rf"port {port} for the embedded Triton \(grpc\) is taken.*--grpc-port", capsys.readouterr().err)


def test_one_version_of_each_in_the_makefile_the_extra_and_the_code() -> None:
    """`make`, `pip` and the errors about a missing package say the same."""
    root = Path(__file__).parents[4]
    extra = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]["triton"]
    assert extra[0].startswith(f"{launcher.WHEEL};")
    assert f"ALONE := {REQUIREMENT} {launcher.WHEEL}\n" in (root / "Makefile").read_text()
    assert {REQUIREMENT, launcher.WHEEL} <= {*(root / "constraints.txt").read_text().splitlines()}
