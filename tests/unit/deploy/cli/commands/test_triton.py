"""The embedded Triton as a command: why it ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.cli.commands import triton
from deploy.cli.main import main

LIVE_BUT_STUCK = """#!{python}
import sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import grpc

ports = dict(a[2:].split("=", 1) for a in sys.argv[1:] if "-port=" in a)

class Live(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

def stuck(requests, context):
    threading.Event().wait()

from concurrent.futures import ThreadPoolExecutor
server = grpc.server(ThreadPoolExecutor(8))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
    "inference.GRPCInferenceService", {{"ModelStreamInfer": grpc.stream_stream_rpc_method_handler(stuck)}}),))
server.add_insecure_port("127.0.0.1:" + ports["grpc-port"])
server.start()
ThreadingHTTPServer(("127.0.0.1", int(ports["http-port"])), Live).serve_forever()
"""


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Put the handlers back that the command replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_server_that_answers_no_streams_is_ended_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is live, and whoever supervises the command starts it again."""
    monkeypatch.setattr(triton, "_STREAMS_EVERY_S", 0.3)
    program = tmp_path / "bin" / "tritonserver"
    program.parent.mkdir()
    program.write_text(LIVE_BUT_STUCK.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    arguments = ["triton", "--state-dir", str(tmp_path / "state"), "--repository", str(tmp_path / "models")]
    for port in ("grpc", "http", "metrics"):
        arguments += [f"--{port}-port", "0"]
    assert 1 == main(arguments)
    assert "tritonserver answers calls but no streams: its threads are stuck" in capsys.readouterr().err
