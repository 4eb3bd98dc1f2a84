"""Real gateway processes and stand-ins for Tritons, with real sockets (HTTP, gRPC) between them.

The stand-ins share one process and need hardly any CPU: a call takes a price per call and per row, one call after the
other. They may merge waiting calls as Triton's dynamic batcher does, become slower, or pause.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import uvloop

from benchmarks.shared import processes
from benchmarks.shared.command import ROOT, tell
from benchmarks.shared.one_gateway import BODY, ENDPOINTS, load, registered, serve
from benchmarks.shared.simulated import MAX_ROWS, after_pauses
from benchmarks.shared.stand_in import StandIn
from gateway.app import Gateway
from gateway.settings import Settings
from gateway.testing import FakeBackend
from gateway.triton.backend import TritonBackend

_NO_PAUSES: Final = (0.0, 0.0)
Price = tuple[float, float]
"""Seconds per call and per row."""


def capacity(price: Price) -> float:
    """Return the rows per second of one Triton in full calls."""
    return MAX_ROWS / (price[0] + MAX_ROWS * price[1])


class Priced(FakeBackend):
    """Takes its time, one call after the other; ``merges``: waiting calls are taken together, up to ``MAX_ROWS``."""

    def __init__(self, price: Price, *, merges: bool) -> None:
        super().__init__()
        self._price, self._merges = price, merges
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._is_busy = False
        self.times = 1.0
        """How many times as long as the price its calls take."""
        self.pauses = _NO_PAUSES
        """(interval, pause) in seconds: it stands still for the length of the pause once in every interval."""

    async def infer(
        self, model: str, inputs: Any, outputs: Sequence[str], *, timeout: float, request_id: str = ""
    ) -> Any:
        """See ``Backend.infer``."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._queue.append((len(inputs["input_ids"]), done))
        if not self._is_busy:
            self._go_on(loop, loop.time())
        await done
        return await super().infer(model, inputs, outputs, timeout=timeout, request_id=request_id)

    def _go_on(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        self._is_busy = bool(self._queue)
        if not self._queue:
            return
        rows, done = self._queue.popleft()
        together = [done]
        while self._merges and self._queue and rows + self._queue[0][0] <= MAX_ROWS:
            more, done = self._queue.popleft()
            rows += more
            together.append(done)
        end = after_pauses(now, self.times * (self._price[0] + self._price[1] * rows), self.pauses)
        loop.call_at(end, self._end, loop, end, together)

    def _end(self, loop: asyncio.AbstractEventLoop, end: float, together: Sequence[asyncio.Future[None]]) -> None:
        for done in together:
            if not done.done():
                done.set_result(None)
        self._go_on(loop, end)  # not from now on: a GPU does not wait for a late timer of this process


async def _be_tritons(count: int, price: Price, folder: Path, *, merges: bool) -> None:
    _, names = registered(folder)
    backends, servers = [], []
    for _ in range(count):
        backend = Priced(price, merges=merges)
        load(backend, names)
        for name, (info, run) in backend.models.items():
            backend.models[name] = (replace(info, merges_calls=merges), run)
        backends.append(backend)
        servers.append(StandIn(backend))
        await servers[-1].start()
    tell({"addresses": [server.address for server in servers]})
    while line := await asyncio.to_thread(sys.stdin.readline):
        told = json.loads(line)
        for backend in backends:
            backend.times, backend.pauses = 1.0, _NO_PAUSES
        backends[0].times = told.get("times", 1.0)
        backends[0].pauses = tuple(told.get("pauses", _NO_PAUSES))
        tell({"calls": [len(backend.calls) for backend in backends],
              "rows": [sum(rows for _, rows in backend.calls) for backend in backends]})  # fmt: skip


async def _be_gateway(port: int, tritons: str, models: Path, folder: Path) -> None:
    registry, _ = registered(models)
    settings = Settings(state_dir=folder / "state", triton_grpc=tritons, port=port)
    gateway = Gateway(
        settings, registry=registry, make_backend=lambda to, _: TritonBackend(to), is_whole_process=True
    )  # fmt: skip
    await serve(gateway, settings, port)


def _argv(what: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", str(Path(__file__).resolve()), what, *arguments]


class Tritons:
    """``count`` stand-ins in one process."""

    def __init__(self, count: int, price: Price, folder: Path, *, merges: bool) -> None:
        folder.mkdir(parents=True)
        self.price, self.folder = price, folder
        shown = [str(count), str(price[0]), str(price[1]), str(folder), *(["--merges"] if merges else [])]
        self._child = processes.Child(_argv("tritons", *shown), env={**os.environ, "PYTHONPATH": str(ROOT)})
        try:
            self.addresses = [str(one) for one in self._child.hear()["addresses"]]
        except BaseException:
            self.close()
            raise

    @property
    def capacity(self) -> float:
        """Rows per second of all of them."""
        return len(self.addresses) * capacity(self.price)

    def change(self, **first: Any) -> dict[str, list[int]]:
        """Let the first one be slower (``times``) or pause (``pauses``), or none; return calls and rows of each."""
        found: dict[str, list[int]] = self._child.ask(first)
        return found

    def close(self) -> None:
        """End them."""
        self._child.stop()


@contextlib.contextmanager
def gateways(
    count: int,
    tritons: Tritons,
    folder: Path,
    *,
    settings: Mapping[str, str] = MappingProxyType({}),
    key: str = "",
) -> Iterator[tuple[list[str], list[int]]]:
    """Run ``count`` gateways that know how many they are; yield their addresses for requests and their process ids.

    ``key`` is the API key of a caller, if they ask for one.
    """
    ports = processes.free_ports(count)
    env = {
        **os.environ, "PYTHONPATH": str(ROOT), "TRITON_GATEWAY_REPLICAS": str(count),
        "TRITON_GATEWAY_ALLOW_ANONYMOUS": "true", **settings,
    }  # fmt: skip
    urls = [f"http://{processes.LOOPBACK}:{port}/serve/{ENDPOINTS[0]}" for port in ports]
    with contextlib.ExitStack() as stack:
        running = []
        for number, port in enumerate(ports):
            inside = folder / f"gateway-{number}"
            inside.mkdir(parents=True)
            running.append(processes.Server(
                f"gateway {number}",
                _argv("gateway", str(port), f"ipv4:{','.join(tritons.addresses)}", str(tritons.folder), str(inside)),
                env=env, cores=range(os.cpu_count() or 1), log=inside / "log", cwd=ROOT,
            ))  # fmt: skip
            stack.callback(running[-1].stop)
        for server, url in zip(running, urls, strict=True):
            server.wait_for(url, BODY, key=key)
        yield urls, [server.pid for server in running]


def main() -> None:
    """Serve until it is ended."""
    what, *rest = sys.argv[1:]
    arguments = argparse.ArgumentParser(description=main.__doc__)
    if what == "tritons":
        for name, kind in (("count", int), ("call", float), ("row", float), ("folder", Path)):
            arguments.add_argument(name, type=kind)
        arguments.add_argument("--merges", action="store_true")
        given = arguments.parse_args(rest)
        uvloop.run(_be_tritons(given.count, (given.call, given.row), given.folder, merges=given.merges))
    else:
        arguments.add_argument("port", type=int)
        arguments.add_argument("tritons")
        arguments.add_argument("models", type=Path)
        arguments.add_argument("folder", type=Path)
        given = arguments.parse_args(rest)
        uvloop.run(_be_gateway(given.port, given.tritons, given.models, given.folder))


if __name__ == "__main__":
    main()
