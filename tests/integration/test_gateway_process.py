"""The gateway as a process of its own, following a real control plane: two workers, a registry that hangs.

Endpoints here are hooks, so that no Triton is needed: what is tested is the process around the request.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.control_planes import RunningControlPlane
from tests.gateways import GatewayProcess
from tests.processes import free_port
from tests.sites import site
from tests.stock import Client
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.integration

ECHO = """
import os
class Preprocess:
    def process(self, body, state, collect_custom_statistics_fn=None):
        return {"n": body.get("n"), "worker": os.getppid()}
"""


@pytest.fixture(scope="module")
def service(server: RunningControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Client:
    """A serving Task that has the endpoint `echo`."""
    made = Client(server, tmp_path_factory.mktemp("service"))
    made.create("process test")
    (made.folder / "hook.py").write_text(ECHO)
    made.add("echo", "--preprocess", "hook.py", engine="custom")
    return made


def test_workers_share_the_grpc_port(service: Client, tmp_path: Path) -> None:
    """Connections are spread over both workers by the kernel; statistics are those of both."""
    import grpc
    from tritonclient.grpc import service_pb2 as pb

    port = free_port()
    answered: list[Any] = []
    with GatewayProcess(service, tmp_path / "state", workers=2, grpc_port=port) as process:

        def both_answer() -> bool:
            with ThreadPoolExecutor(4) as pool:
                found = pool.map(lambda _: process.answer({}, "echo"), range(40))
            contents = [content for status, content in found if status == 200]
            answered.extend(contents)
            return len({content["worker"] for content in contents}) == 2

        until(both_answer)
        request = pb.ModelInferRequest(model_name="echo")
        tensor = request.inputs.add(name="n", datatype="INT64", shape=[1])
        tensor.contents.int64_contents.append(7)

        def ask() -> Any:  # a connection each: the kernel chooses the worker when it is opened
            with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
                infer = channel.unary_unary(
                    "/inference.GRPCInferenceService/ModelInfer", pb.ModelInferRequest.SerializeToString,
                    pb.ModelInferResponse.FromString,
                )  # fmt: skip
                return infer(request, timeout=LIMIT_S, wait_for_ready=True)

        def counted() -> int:
            rows = httpx.get(f"{process.url}/v2/models/echo/stats").json()["model_stats"]
            return int(rows[0]["inference_stats"]["success"]["count"])

        until(lambda: len(answered) == counted())
        for _ in range(12):
            answer = ask()
            found = dict(zip([o.name for o in answer.outputs], answer.raw_output_contents, strict=True))
            assert [7] == np.frombuffer(found["n"], np.int64).tolist()
        until(lambda: len(answered) + 12 == counted())


def test_restart_without_control_plane_serves_the_last_good_state(
    service: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that starts while the registry is away serves from disk. At its end its collector has its spans."""
    state = tmp_path / "state"
    spans: list[bytes] = []
    with (
        site(lambda asked: (200, spans.append(asked.body) or b"")) as collector,  # type: ignore[func-returns-value]
        monkeypatch.context() as patch,
    ):
        patch.setitem(service.environment, "OTEL_EXPORTER_OTLP_ENDPOINT", collector)
        with GatewayProcess(service, state) as process:
            until(lambda: 200 == process.answer({}, "echo")[0])
            assert 0 == process.end(), "it has saved its state"
    assert b"POST echo" in b"".join(spans)
    os.kill(service.server.process.pid, signal.SIGSTOP)
    try:
        with GatewayProcess(service, state) as process:
            until(lambda: 200 == process.answer({}, "echo")[0])
            assert 200 == httpx.get(f"{process.url}/v2/health/live").status_code
    finally:
        os.kill(service.server.process.pid, signal.SIGCONT)
