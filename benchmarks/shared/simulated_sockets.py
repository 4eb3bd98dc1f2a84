"""Answers requests in one process without sockets, with the gateway of any checkout, and ends after some answers.

Run under valgrind, with ``PYTHONPATH`` set to the checkout. Connections are protocol objects whose transports send the
next request when they get an answer. The model is in memory and answers at once. Time passes with answers, so that a
slow processor does not change what is counted how often. Imports nothing of ``benchmarks``, which is another one in
another checkout.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvicorn
import uvloop

_ANSWER_S: Final = 35e-6
"""Simulated seconds from one answer to the next: about what one takes without valgrind."""
_VALGRIND_TIMES: Final = 40
"""How much slower a program is under valgrind. Timers run in real time, so they last so much longer."""


class Clock:
    """Seconds that pass with answers."""

    def __init__(self) -> None:
        self.answers = 0
        self._began = time.monotonic()

    def __call__(self) -> float:
        """Return the simulated time, in seconds."""
        return self._began + self.answers * _ANSWER_S


class Transport:
    """A connection's transport: it sends the next request as soon as it has the answer to the last one."""

    def __init__(self, clock: Clock, requests: Sequence[bytes], begin: int) -> None:
        self._clock, self._requests, self._at = clock, requests, begin
        self._loop = asyncio.get_running_loop()
        self.protocol: Any = None

    def ask(self) -> None:
        """Send the next request."""
        self._at = (self._at + 1) % len(self._requests)
        self.protocol.data_received(self._requests[self._at])

    def write(self, data: bytes) -> None:
        """Take an answer. Ends the process if it is an error."""
        self._clock.answers += 1
        if not data.startswith(b"HTTP/1.1 200"):
            print(data.decode("latin-1"))
            os._exit(1)
        self._loop.call_soon(self.ask)

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return the addresses of a connection on loopback."""
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def is_closing(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """Do nothing, as for all that follows."""

    pause_reading = resume_reading = close

    def set_write_buffer_limits(self, **_limits: int) -> None:
        """Do nothing."""


def _protocol_class(gateway: Any) -> Any:
    """Return the protocol of the gateway's server; before decision 0027 it had another name."""
    if hasattr(gateway, "http_protocol"):
        return gateway.http_protocol
    from gateway.http.protocol import GatewayProtocol  # type: ignore[import-not-found]

    return GatewayProtocol


async def _answer(folder: Path, connections: int, answers: int, clock: Clock) -> int:
    """Answer so many requests; returns the calls of the model."""
    from gateway.app import Gateway
    from gateway.metrics import observer
    from gateway.settings import Settings
    from gateway.spec import decode, decode_model, triton_model_name
    from gateway.testing import FakeBackend, FakeRegistry

    if hasattr(observer, "_GATHER_S"):
        observer._GATHER_S *= _VALGRIND_TIMES  # type: ignore[misc]  # noqa: SLF001
    calls = 0

    def run(inputs: Any) -> Any:
        nonlocal calls
        calls += 1
        return {"logits": (inputs["input_ids"].sum(1)[:, None] % np.array([3, 5])).astype(np.float32)}

    async def infer(_model: str, inputs: Any, _outputs: Sequence[str] = (), **_options: object) -> Any:
        return run(inputs)  # what the fake does around it differs from checkout to checkout

    registry, backend = FakeRegistry(), FakeBackend()
    registry.add_model("m", folder / "m.zip", is_package=True)
    registry.add_endpoint("e", "m")
    name = triton_model_name(decode(registry.task()).endpoints["e"], decode_model(registry.model("m")))
    backend.add(name, {"input_ids": "int64", "attention_mask": "int64"}, {"logits": "float32"}, run)
    backend.infer = infer  # type: ignore[method-assign]
    state = folder / f"state-{os.getpid()}"
    gateway = Gateway(
        Settings(state_dir=state, poll_frequency="1h"), registry=registry, make_backend=lambda *_: backend,
        is_whole_process=True,
    )  # fmt: skip
    config = uvicorn.Config(
        gateway, port=0, http=_protocol_class(gateway), loop="uvloop", log_config=None, ws="none", proxy_headers=False,
        access_log=False, server_header=False, date_header=False,
    )  # fmt: skip
    server = uvicorn.Server(config)
    task = asyncio.get_running_loop().create_task(server.serve())
    while not server.started or "e" not in gateway.table.current.endpoints:
        await asyncio.sleep(0.05)
        if task.done():
            await task
    requests = (folder / "requests").read_bytes().split(b"\0")
    for number in range(connections):
        made: Any = config.http_protocol_class
        transport = Transport(clock, requests, number * len(requests) // connections)
        transport.protocol = made(config=config, server_state=server.server_state, app_state=server.lifespan.state)
        transport.protocol.connection_made(transport)
        transport.ask()
    while clock.answers < answers:  # noqa: ASYNC110 - nothing tells it
        await asyncio.sleep(2e-3)
    return calls


def main() -> None:
    """Answer, print how many answers and calls there were, and end at once."""
    arguments = argparse.ArgumentParser(description=main.__doc__)
    arguments.add_argument("--folder", type=Path, required=True, help="with m.zip and requests, apart by zero bytes")
    arguments.add_argument("--connections", type=int, required=True)
    arguments.add_argument("--answers", type=int, required=True)
    given = arguments.parse_args()
    clock = Clock()
    time.monotonic = clock  # before the gateway is imported, which keeps it

    async def run() -> None:
        calls = await _answer(given.folder, given.connections, given.answers, clock)
        print(clock.answers, calls, flush=True)
        os._exit(0)

    uvloop.run(run())


if __name__ == "__main__":
    main()
