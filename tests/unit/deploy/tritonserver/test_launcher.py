"""Which server is chosen, on which ports; starting the real one is the integration tests' part."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.cli.commands import up
from deploy.laptop.demo.minilm import REQUIREMENT
from deploy.tools.errors import DeployError, PortTaken
from deploy.tritonserver import launcher
from deploy.tritonserver.launcher import (
    PathServer,
    Ports,
    TritonLauncher,
    TritonMissing,
    Wheel,
    WheelServer,
    choose_ports,
    choose_server,
    trace_arguments,
)
from tests.waiting import until

WHEEL = Wheel(Path("s"), Path("p"), Path("l"), Path("site"), Path("stub"), ("3.10", "3.11"))
ON_PATH = Path("/opt/tritonserver/bin/tritonserver")


@pytest.mark.parametrize(
    ("on_path", "wheel", "expected"), [(ON_PATH, WHEEL, PathServer(ON_PATH)), (None, WHEEL, WheelServer(WHEEL))]
)
def test_a_server_on_path_goes_before_the_wheel(on_path, wheel, expected):
    """The order of choice; a full Triton gets native backends, the wheel's our python program."""
    chosen = choose_server(on_path=on_path, wheel=wheel, python="3.11")
    assert (expected, "python" if isinstance(expected, WheelServer) else "native") == (chosen, chosen.engine)


def test_no_server_at_all_says_what_to_install():
    """One line, with the command."""
    with pytest.raises(TritonMissing, match=r'pip install ".\[triton\]"'):
        choose_server(on_path=None, wheel=None, python="3.11")


def test_where_pip_would_ask_for_a_numpy_that_python_does_not_have_the_wheel_is_installed_alone():
    """Python 3.13 has no numpy below 2."""
    with pytest.raises(TritonMissing, match="pip install --no-deps nvidia-pytriton==") as missing:
        choose_server(on_path=None, wheel=None, python="3.13")
    assert ".[triton]" not in missing.value.line()


@pytest.mark.parametrize("system", ["Darwin arm64", "Windows AMD64", "Linux riscv64"])
def test_where_no_triton_is_made_for_what_runs_there_is_said(system):
    """The gateway alone does, and containers."""
    with pytest.raises(TritonMissing) as missing:
        choose_server(on_path=None, wheel=None, python="3.12", system=system)
    line = missing.value.line()
    assert f"there is no Triton for {system}, only for Linux x86_64 and Linux aarch64" in line
    assert "`TRITON_GATEWAY_TRITON_GRPC=HOST:8001 triton-gateway serve`" in line
    assert "pip install" not in line


def test_up_says_on_windows_what_runs_there(monkeypatch):
    """Before it imports what Windows does not have."""
    monkeypatch.setattr(launcher, "this_system", lambda: "Windows AMD64")
    with pytest.raises(DeployError, match="does not run on Windows") as refused:
        up.command.main(["--demo"], standalone_mode=False)
    assert "docker compose up" in refused.value.line()


def test_a_python_without_stub_names_those_that_have_one():
    """The wheel brings a python backend for some versions only."""
    with pytest.raises(TritonMissing, match=r"no python backend for Python 3.14 \(it has 3.10, 3.11\)"):
        choose_server(on_path=None, wheel=replace(WHEEL, stub=None), python="3.14")


def test_port_0_chooses_different_free_ports():
    """Three listeners, three ports."""
    ports = choose_ports(Ports(), "127.0.0.1")
    assert 3 == len({ports.grpc, ports.http, ports.metrics} - {0})


def test_a_taken_port_is_named_with_its_option():
    """Said before the server is started, not found out of its log."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(PortTaken) as refused:
            choose_ports(Ports(grpc=other.getsockname()[1]), "127.0.0.1")
        assert re.search(
            rf"port {other.getsockname()[1]} for the embedded Triton \(gRPC\) is taken.*--triton-grpc-port",
            refused.value.line(),
        )


def test_triton_joins_traces_that_leave_over_http() -> None:
    """At the address the gateway's spans go to; not without one, not over gRPC, which it cannot speak."""
    found = trace_arguments({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"})
    assert "--trace-config=opentelemetry,url=collector:4318/v1/traces" in found
    whole = trace_arguments({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector/in"})
    assert "--trace-config=opentelemetry,url=collector/in" in whole
    for environ in (
        {}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
    ):  # fmt: skip
        assert () == trace_arguments(environ)


COMPLAINS_AND_SERVES = """#!{python} -IS
import os, signal, socket, sys
print("E1128 14:28:29.895333 24495 metrics.cc:1] Error: Failed to initialize NVML", flush=True)
def fail(*_):
    print("ASSERTION FAILED: false", flush=True)
    os.abort()
signal.signal(signal.SIGUSR1, fail)
signal.signal(signal.SIGUSR2, lambda *_: os._exit(3))
port = next(int(a.partition("=")[2]) for a in sys.argv if a.startswith("--http-port="))
server = socket.create_server(("127.0.0.1", port))
while True:
    connection, _ = server.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\nconnection: close\\r\\n\\r\\n")
    connection.close()
"""
"""A server that complains at its start, as Triton does without a GPU."""


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (signal.SIGKILL, "tritonserver ended (killed by SIGKILL)"),
        (signal.SIGUSR1, "tritonserver ended (killed by SIGABRT): ASSERTION FAILED: false"),
        (signal.SIGUSR2, "tritonserver ended (exit code 3)"),
    ],
)
def test_the_end_of_a_live_server_is_named_by_its_signal(tmp_path: Path, number: signal.Signals, why: str) -> None:
    """And by what it wrote last. A complaint from its start, long before, is no reason."""
    program = tmp_path / "tritonserver"
    program.write_text(COMPLAINS_AND_SERVES.format(python=sys.executable))
    program.chmod(0o755)
    state = tmp_path / "state"
    launcher = TritonLauncher(PathServer(program), state_dir=state, repository=state / "models")
    launcher.start()
    try:
        assert ("", True) == (launcher.ended, launcher.pid is not None)
        assert launcher.pid is not None
        os.kill(launcher.pid, number)
        assert why == until(lambda: launcher.ended)
        assert launcher.pid is None
    finally:
        launcher.stop()


def test_one_version_of_each_in_the_makefile_the_extra_and_the_code() -> None:
    """`make`, `pip` and the errors about a missing package say the same."""
    root = Path(__file__).parents[4]
    extra = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]["triton"]
    assert extra[0].startswith(f"{launcher.WHEEL};")
    assert f"ALONE := {REQUIREMENT} {launcher.WHEEL}\n" in (root / "Makefile").read_text()
    assert {REQUIREMENT, launcher.WHEEL} <= {*(root / "constraints.txt").read_text().splitlines()}
