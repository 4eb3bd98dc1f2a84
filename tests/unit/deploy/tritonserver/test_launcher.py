"""Which server is chosen, on which ports; starting the real one is the integration tests' part."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.tools.errors import PortTaken
from deploy.tritonserver.launcher import (
    ExternalServer,
    PathServer,
    Ports,
    TritonMissing,
    Wheel,
    WheelServer,
    choose_ports,
    choose_server,
    trace_arguments,
)

WHEEL = Wheel(Path("s"), Path("p"), Path("l"), Path("site"), Path("stub"), ("3.10", "3.11"))
ON_PATH = Path("/opt/tritonserver/bin/tritonserver")


@pytest.mark.parametrize(
    ("address", "on_path", "wheel", "expected"),
    [
        ("triton:8001", ON_PATH, WHEEL, ExternalServer("triton:8001")),
        ("", ON_PATH, WHEEL, PathServer(ON_PATH)),
        ("", None, WHEEL, WheelServer(WHEEL)),
    ],
)
def test_an_existing_server_goes_before_path_and_path_before_the_wheel(address, on_path, wheel, expected):
    """The order of choice; a full Triton gets native backends, the wheel's our python program."""
    chosen = choose_server(triton_grpc=address, on_path=on_path, wheel=wheel, python="3.11")
    assert (expected, "python" if isinstance(expected, WheelServer) else "native") == (chosen, chosen.engine)


def test_no_server_at_all_says_what_to_install():
    """One line, with the command."""
    with pytest.raises(TritonMissing, match=r'pip install "triton-gateway\[triton\]"'):
        choose_server(triton_grpc="", on_path=None, wheel=None, python="3.11")


def test_a_python_without_stub_names_those_that_have_one():
    """The wheel brings a python backend for some versions only."""
    with pytest.raises(TritonMissing, match=r"no python backend for Python 3.14 \(it has 3.10, 3.11\)"):
        choose_server(triton_grpc="", on_path=None, wheel=replace(WHEEL, stub=None), python="3.14")


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
