"""A gateway in this process without sockets: measures what a request costs the gateway, and nothing else."""

from __future__ import annotations

import asyncio
import json
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.shared import corpus
from benchmarks.shared.words import text_bundle

CONNECTIONS: Final = 64
WIDTH: Final = 384
ENDPOINTS: Final[Mapping[str, str]] = {"labels": "BertForSequenceClassification", "vectors": "BertModel"}
"""Endpoint → architecture."""


class Wire(asyncio.Transport):
    """A connection without a socket: whatever is written to it is an answer."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.answered: Callable[[bytes], None] = lambda _: None

    def write(self, data: Any) -> None:
        """Take an answer."""
        self.answered(data)

    def is_closing(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """Nothing is held."""

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""


def gateway_in(state: Path, **settings: object) -> Any:
    """Start a gateway with both endpoints, in front of a model in memory that answers at once."""
    from gateway.app import Gateway
    from gateway.settings import Settings
    from gateway.spec import decode, decode_model, triton_model_name
    from gateway.testing import FakeBackend, FakeRegistry

    registry, backend = FakeRegistry(), FakeBackend()
    words = corpus.vocabulary()[:8000]
    vectors = np.random.default_rng(0).normal(size=(1024, WIDTH)).astype(np.float32)
    answers: dict[str, tuple[str, Any]] = {
        "labels": ("logits", lambda inputs: {"logits": vectors[: len(inputs["input_ids"]), :2]}),
        "vectors": (
            "sentence_embedding", lambda inputs: {"sentence_embedding": vectors[: len(inputs["input_ids"])]}
        ),
    }  # fmt: skip
    for name, architecture in ENDPOINTS.items():
        archive = state / f"{name}.zip"
        with zipfile.ZipFile(archive, "w") as packed:
            for file in text_bundle(state / name, architecture, words=words, hidden_size=WIDTH).iterdir():
                packed.write(file, file.name)
        registry.add_model(f"m-{name}", archive, is_package=True)
        registry.add_endpoint(name, f"m-{name}")
        triton = triton_model_name(
            decode(registry.task()).endpoints[name], decode_model(registry.model(f"m-{name}"))
        )  # fmt: skip
        output, run = answers[name]
        backend.add(triton, {"input_ids": "int64", "attention_mask": "int64"}, {output: "float32"}, run)
    return Gateway(
        Settings(state_dir=state / "state", poll_frequency="1h", **settings), registry=registry,  # type: ignore[arg-type]
        make_backend=lambda *_: backend, is_whole_process=True,
    )  # fmt: skip


def request(path: str, content: object, more: str = "") -> bytes:
    """One request as a client library writes it, with ``more`` lines in its head."""
    body = json.dumps(content).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: gateway:8080\r\naccept: */*\r\nuser-agent: benchmark\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    )
    return head.encode() + body


class Load:
    """Connections to one gateway."""

    def __init__(self, gateway: Any) -> None:
        import uvicorn
        from uvicorn.server import ServerState

        kind = gateway.http_protocol
        config = uvicorn.Config(gateway, http=kind, log_config=None, ws="none", proxy_headers=False,
                                access_log=False, server_header=False, date_header=False)  # fmt: skip
        config.load()
        state = ServerState()
        self._open: list[tuple[Any, Wire]] = []
        for _ in range(CONNECTIONS):
            protocol, wire = kind(config=config, server_state=state, app_state={}), Wire()
            protocol.connection_made(wire)
            self._open.append((protocol, wire))

    async def cost(self, requests: list[bytes]) -> float:
        """Send all requests, ``CONNECTIONS`` at a time; return the CPU time per request in µs."""
        began = time.process_time_ns()
        for start in range(0, len(requests), CONNECTIONS):
            part = requests[start : start + CONNECTIONS]
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            left = [len(part)]

            def answered(data: bytes, left: list[int] = left, done: asyncio.Future[None] = done) -> None:
                if not data.startswith(b"HTTP/1.1 200"):
                    if not done.done():
                        done.set_exception(RuntimeError(data[:300]))
                    return
                left[0] -= 1
                if not left[0]:
                    done.set_result(None)

            for raw, (protocol, wire) in zip(part, self._open, strict=False):
                wire.answered = answered
                protocol.data_received(raw)
            await done
        return (time.process_time_ns() - began) / 1000 / len(requests)


async def until_served(gateway: Any) -> None:
    """Wait until the gateway has both endpoints."""
    while set(gateway.table.current.endpoints) != set(ENDPOINTS):  # noqa: ASYNC110 - facts, not events
        await asyncio.sleep(0.05)
