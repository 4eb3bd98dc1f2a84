"""`python -m gateway` as a process of its own, for tests of what only a process can show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from gateway.parent_death import ending_with_parent
from tests.processes import free_port
from tests.stock import Client
from tests.waiting import LIMIT_S

_ANSWER_S = 60.0
"""Longest wait for an answer: a busy machine takes many seconds, and what will not be answered counts as refused."""


class GatewayProcess:
    """One that follows the serving Task of a client, on a free port or on ``port``; killed with the block, or with
    the tests.

    ``settings`` are its variables, without the prefix. It looks at the Task every second.
    """

    def __init__(self, client: Client, state: Path, *, port: int = 0, **settings: Any) -> None:
        self.port = port or free_port()
        environ = {
            **client.environment,
            "CLEARML_SERVING_TASK_ID": client.task,
            "TRITON_GATEWAY_PORT": str(self.port),
            "TRITON_GATEWAY_STATE_DIR": str(state),
            "CLEARML_SERVING_POLL_FREQ": "1s",
            **{f"TRITON_GATEWAY_{name.upper()}": str(value) for name, value in settings.items()},
        }
        self.log = state.parent / f"{state.name}-{self.port}.log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                ending_with_parent([sys.executable, "-m", "gateway"]), env=environ, cwd=client.folder, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> GatewayProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        """Ask it to end; its exit code."""
        self.process.terminate()
        return self.process.wait(LIMIT_S)

    def post(self, body: Any, endpoint: str = "echo", **headers: str) -> httpx.Response:
        """One request on a connection of its own."""
        return httpx.post(f"{self.url}/serve/{endpoint}", json=body, headers=headers, timeout=_ANSWER_S)

    def answer(self, body: Any, endpoint: str, **headers: str) -> tuple[int, Any]:
        """Status and content of one request's answer; 0 while nothing listens."""
        try:
            reply = self.post(body, endpoint, **headers)
        except httpx.TransportError:
            return 0, None
        return reply.status_code, reply.json()

    def status(self) -> dict[str, Any]:
        """`/v1/status`; empty while nothing listens."""
        try:
            found: dict[str, Any] = httpx.get(f"{self.url}/v1/status", timeout=_ANSWER_S).json()
        except httpx.TransportError:
            return {}
        return found

    def workers(self) -> list[int]:
        """The worker processes' ids: forks of their parent, with its command line."""
        mine = Path(f"/proc/{self.process.pid}/cmdline").read_text()
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True)
        found = []
        for pid in map(int, listed.stdout.split()):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_text()
            except OSError:
                continue
            if line == mine:
                found.append(pid)
        return found
