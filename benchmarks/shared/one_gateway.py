"""One gateway in its own process, in front of a simulated server that needs no core.

``Under(checkout, folder)`` starts it, with the code of any checkout. The server stands in for a Triton with a GPU: a
price per call and per row, one call after the other (1,185 rows/s in calls of 64).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvicorn
import uvloop

from benchmarks.shared import processes
from benchmarks.shared.words import text_bundle
from gateway.app import Gateway
from gateway.edge.http.fast import http_protocol
from gateway.settings import Settings
from gateway.spec import decode, decode_model, triton_model_name
from gateway.testing import FakeBackend, FakeRegistry

_CALL_S, _ROW_S = 22e-3, 0.5e-3
CAPACITY: Final = 64 / (_CALL_S + 64 * _ROW_S)
"""Rows per second in full calls."""
ENDPOINTS: Final = ("flooded", "second", "third")
BODY: Final = b'{"text": "good bad good"}'
_CORES: Final = range(os.cpu_count() or 1)


class Slow(FakeBackend):
    """A server that takes its time for every call, one after the other."""

    def __init__(self, call_s: float, row_s: float) -> None:
        super().__init__()
        self._price = call_s, row_s
        self._busy_until = 0.0

    async def infer(
        self, model: str, inputs: Any, outputs: Sequence[str], *, timeout: float, request_id: str = ""
    ) -> Any:
        """See ``Backend.infer``."""
        loop = asyncio.get_running_loop()
        call, row = self._price
        rows = len(inputs["input_ids"])
        takes = call + row * rows
        self._busy_until = max(loop.time(), self._busy_until) + takes
        try:
            await asyncio.sleep(self._busy_until - loop.time())
        except asyncio.CancelledError:
            self._busy_until -= takes  # cancelled calls are not computed
            raise
        return await super().infer(model, inputs, outputs, timeout=timeout, request_id=request_id)


def _classify(inputs: Any) -> dict[str, Any]:
    return {"logits": np.zeros((len(inputs["input_ids"]), 2), np.float32)}


def registered(folder: Path) -> tuple[FakeRegistry, list[str]]:
    """Return a registry with ``ENDPOINTS``, all of one small text model, and the names of their models in Triton.

    The names depend on the folder. Processes that share it name the models alike.
    """
    registry, names = FakeRegistry(), []
    archive = folder / "m1.zip"
    if not archive.exists():
        bundle = text_bundle(folder / "bundle", max_position_embeddings=32)
        with zipfile.ZipFile(archive, "w") as packed:
            for file in bundle.iterdir():
                packed.write(file, file.name)
    registry.add_model("m1", archive, is_package=True)
    for url in ENDPOINTS:
        registry.add_endpoint(url, "m1")
        spec = decode(registry.task()).endpoints[url]
        names.append(triton_model_name(spec, decode_model(registry.model("m1"))))
    return registry, names


def load(backend: FakeBackend, names: Sequence[str]) -> None:
    """Load the models of ``registered`` into a backend."""
    for name in names:
        tensors = {"input_ids": "int64", "attention_mask": "int64"}
        backend.add(name, tensors, {"logits": "float32"}, _classify)


async def serve(gateway: Gateway, settings: Settings, port: int) -> None:
    """Run a gateway and its HTTP server on loopback until it is ended."""
    config = uvicorn.Config(
        gateway, host=processes.LOOPBACK, port=port, http=http_protocol(fast_path=settings.fast_path), lifespan="off",
        log_config=None, ws="none", loop="none", proxy_headers=False, access_log=False, server_header=False,
        date_header=False, backlog=2048,
    )  # fmt: skip
    async with gateway.running():
        server = uvicorn.Server(config)
        with contextlib.suppress(asyncio.CancelledError):
            await server.serve()


async def _serve(port: int, folder: Path, price: tuple[float, float]) -> None:
    registry, names = registered(folder)
    backend = Slow(*price)
    load(backend, names)
    settings = Settings(state_dir=folder / "state", triton_grpc="stand-in:8001", port=port)
    gateway = Gateway(
        settings, registry=registry, make_backend=lambda _address, _compression: backend, is_whole_process=True
    )
    await serve(gateway, settings, port)


class Under:
    """One gateway in its own process, with the code of ``checkout``, and the load on it."""

    def __init__(self, checkout: Path, folder: Path, *, is_instant: bool = False) -> None:
        self.port = processes.free_port()
        folder.mkdir(parents=True)
        argv = [
            sys.executable,
            "-P",
            str(Path(__file__).resolve()),
            "--gateway",
            str(self.port),
            "--folder",
            str(folder),
        ]
        self._server = processes.Server(
            "gateway", [*argv, "--folder", str(folder), *(["--instant"] if is_instant else [])],
            env={**os.environ, "PYTHONPATH": str(checkout)}, cores=_CORES, log=folder / "gateway.log", cwd=checkout,
        )  # fmt: skip
        self._server.wait_for(f"http://{processes.LOOPBACK}:{self.port}/serve/{ENDPOINTS[0]}", BODY)

    def close(self) -> None:
        """End it."""
        self._server.stop()

    @property
    def pid(self) -> int:
        """The gateway's process id."""
        return self._server.pid


def main() -> None:
    """Serve until it is ended."""
    arguments = argparse.ArgumentParser(description=main.__doc__)
    arguments.add_argument("--gateway", type=int, required=True)
    arguments.add_argument("--folder", type=Path, required=True)
    arguments.add_argument("--instant", action="store_true")
    given = arguments.parse_args()
    uvloop.run(_serve(given.gateway, given.folder, (0.0, 0.0) if given.instant else (_CALL_S, _ROW_S)))


if __name__ == "__main__":
    main()
