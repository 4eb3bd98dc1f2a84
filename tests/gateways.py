"""`python -m gateway` as a process of its own, for tests of what only a process can show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx

from tests.processes import Server, free_port
from tests.stock import Client

_ANSWER_S = 60.0
"""Longest wait for an answer: a busy machine takes many seconds, and what will not be answered counts as refused."""


class GatewayProcess(Server):
    """One that follows the serving Task of a client, on a free port or on ``port``.

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
        log = state.parent / f"{state.name}-{self.port}.log"
        super().__init__("gateway", [sys.executable, "-m", "gateway"], env=environ, log=log, cwd=client.folder)
        self.url = f"http://127.0.0.1:{self.port}"

    def answer(self, body: Any, endpoint: str, **headers: str) -> tuple[int, Any]:
        """Status and content of one request's answer, on a connection of its own; 0 while nothing listens."""
        try:
            reply = httpx.post(f"{self.url}/serve/{endpoint}", json=body, headers=headers, timeout=_ANSWER_S)
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
