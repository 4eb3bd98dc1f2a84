"""The gateway as a process of its own, following a real control plane: workers, accidents, restarts.

Endpoints here are hooks, so that no Triton is needed: what is tested is the process around the request.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.callers import Callers
from tests.control_planes import control_plane
from tests.gateways import GatewayProcess
from tests.processes import free_port
from tests.stock import Client
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.integration

ECHO = """
import os
class Preprocess:
    def process(self, body, state, collect_custom_statistics_fn=None):
        return {{"version": {version}, "n": body.get("n"), "worker": os.getppid()}}
"""


class Service(Client):
    """One serving Task that has the endpoint `echo`."""

    def deploy(self, version: int, endpoint: str = "echo") -> None:
        """Add or replace an echo endpoint."""
        code = self.folder / f"hook_{version}.py"
        code.write_text(ECHO.format(version=version))
        self.add(endpoint, "--preprocess", str(code), engine="custom")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for this file."""
    folder = tmp_path_factory.mktemp("service")
    with control_plane(folder / "state") as server:
        made = Service(server, folder)
        made.create("process test")
        made.deploy(1)
        yield made


class Process(GatewayProcess):
    """Serves `echo`."""

    answered = 0
    """Answers that ``both_answer`` got."""

    def serves(self, version: int, endpoint: str = "echo") -> bool:
        """Whether the endpoint answers with this version."""
        status, content = self.answer({}, endpoint)
        return status == 200 and content["version"] == version

    def both_answer(self) -> bool:
        """Whether there are two workers, and each of them answers."""
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: self.answer({}, "echo"), range(40)))
        self.answered += sum(status == 200 for status, _ in found)
        return all(status == 200 for status, _ in found) and (
            len({content["worker"] for _, content in found} & {*self.workers()}) == 2
        )


def calling(process: Process) -> Callers:
    """Callers without retries, each on a new connection; a failure is a status, or how the connection failed."""

    def ask(_: int) -> str:
        status = process.post({"n": 1}, connection="close").status_code
        return "" if status == 200 else str(status)

    return Callers(ask, threads=4, pause=0.01)


def test_changes_by_the_stock_cli_are_live_without_a_failed_request(service: Service, tmp_path: Path) -> None:
    """New endpoint, changed code, removed endpoint: live soon after the CLI's return, no request lost."""
    with Process(service, tmp_path / "state") as process:
        until(lambda: process.serves(1))
        with calling(process) as callers:
            service.deploy(2, "second")
            until(lambda: process.serves(2, "second"))
            service.deploy(3)
            until(lambda: process.serves(3))
            service.stock("model", "remove", "--endpoint", "second")
            until(lambda: process.post({}, "second").status_code == 404)
            service.deploy(1)
            until(lambda: process.serves(1) and callers.asked > 100)
    assert [] == callers.failures


def test_killed_worker_costs_its_own_requests_and_comes_back(service: Service, tmp_path: Path) -> None:
    """With two workers, SIGKILL of one under load loses at most what it held; it is replaced."""
    with Process(service, tmp_path / "state", workers=2) as process:
        until(process.both_answer)
        with calling(process) as callers:
            until(lambda: callers.asked > 100)
            victim = process.workers()[0]
            os.kill(victim, signal.SIGKILL)
            until(lambda: len(process.workers()) == 2 and victim not in process.workers())
            before = callers.asked
            until(lambda: callers.asked > before + 100)
    # A new worker can answer nothing until it has read the serving Task: it must not take requests before.
    assert len(callers.failures) <= 4, callers.failures
    assert not any(failure.isdigit() for failure in callers.failures), callers.failures


def test_workers_share_the_grpc_port(service: Service, tmp_path: Path) -> None:
    """Connections are spread over both workers by the kernel; statistics are those of both."""
    import grpc
    from tritonclient.grpc import service_pb2 as pb

    port = free_port()
    with Process(service, tmp_path / "state", workers=2, grpc_port=port) as process:
        until(process.both_answer)
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

        until(lambda: process.answered == counted())
        for _ in range(12):
            answer = ask()
            found = dict(zip([o.name for o in answer.outputs], answer.raw_output_contents, strict=True))
            assert [7] == np.frombuffer(found["n"], np.int64).tolist()
        until(lambda: process.answered + 12 == counted())


def test_restart_without_control_plane_serves_the_last_good_state(service: Service, tmp_path: Path) -> None:
    """A gateway that starts while the registry is away serves from disk; one without state says what is missing."""
    state = tmp_path / "state"
    with Process(service, state) as process:
        until(lambda: process.serves(1))
        assert 0 == process.end(), "it has saved its state"
    os.kill(service.server.process.pid, signal.SIGSTOP)
    try:
        with Process(service, state) as process:
            until(lambda: process.serves(1))
            assert 200 == httpx.get(f"{process.url}/v2/health/live").status_code
    finally:
        os.kill(service.server.process.pid, signal.SIGCONT)
