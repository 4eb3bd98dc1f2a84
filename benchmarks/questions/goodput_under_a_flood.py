"""How many answers per second while callers send far more than fits, and retry a refusal at once?

One gateway process, as it is by default, before a server that takes 22 ms per call and 0.5 ms per row (1,185 rows/s in
calls of 64; it stands in for a Triton with a GPU, and needs no core). A process of its own keeps so many connections
busy: each sends its next request as soon as it has any answer, refusals included; with ``--new`` it opens a new
connection after each refusal. Another process is a stranger: twenty times a second it opens a connection and asks once.

Every level is measured next to one that the gateway can bear, so that ``share`` compares two neighbours in time. What
does not depend on the machine's other work stands beside it: CPU of the gateway per second, refusals per answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvicorn
import uvloop

from benchmarks.peers.run import commit
from benchmarks.shared import machine, processes
from benchmarks.shared.command import ROOT, Say, narrator, parser
from benchmarks.shared.results import save, saved, table
from benchmarks.shared.words import text_bundle
from gateway.app import Gateway
from gateway.edge.http.fast import http_protocol
from gateway.settings import Settings
from gateway.spec import decode, decode_model, triton_model_name
from gateway.testing import FakeBackend, FakeRegistry

TAKES = "5 minutes"
SAVES = "results/overload.json"
LEVELS: Final = (2048, 4096, 8192)
_BEARABLE: Final = 512
_CALL_S, _ROW_S = 22e-3, 0.5e-3
_SETTLE_S: Final = 3.0
_ENDPOINTS: Final = ("flooded", "second", "third")
_BODY: Final = b'{"text": "good bad good"}'
_CORES: Final = range(os.cpu_count() or 1)
_HEADS: Final = (
    "gateway", "connections", "answers/s", f"of {_BEARABLE} connections'", "share", "refusals/s", "CPU of the gateway",
    "stranger refused, p99 ms", "max ms", "answered", "unanswered",
)  # fmt: skip


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
        self._busy_until = max(loop.time(), self._busy_until) + call + row * rows
        await asyncio.sleep(self._busy_until - loop.time())
        return await super().infer(model, inputs, outputs, timeout=timeout, request_id=request_id)


def _classify(inputs: Any) -> dict[str, Any]:
    return {"logits": np.zeros((len(inputs["input_ids"]), 2), np.float32)}


async def _serve(port: int, folder: Path, price: tuple[float, float]) -> None:
    registry, backend = FakeRegistry(), Slow(*price)
    archive = folder / "m1.zip"
    bundle = text_bundle(folder / "bundle", max_position_embeddings=32)
    with zipfile.ZipFile(archive, "w") as packed:
        for file in bundle.iterdir():
            packed.write(file, file.name)
    registry.add_model("m1", archive, is_package=True)
    for url in _ENDPOINTS:
        registry.add_endpoint(url, "m1")
        spec = decode(registry.task()).endpoints[url]
        name = triton_model_name(spec, decode_model(registry.model("m1")))
        tensors = {"input_ids": "int64", "attention_mask": "int64"}
        backend.add(name, tensors, {"logits": "float32"}, _classify)
    settings = Settings(state_dir=folder / "state", triton_grpc="stand-in:8001", port=port)
    gateway = Gateway(
        settings, registry=registry, make_backend=lambda _address, _compression: backend, is_whole_process=True
    )
    config = uvicorn.Config(
        gateway, host=processes.LOOPBACK, port=port, http=http_protocol(fast_path=settings.fast_path), lifespan="off",
        log_config=None, ws="none", loop="none", proxy_headers=False, access_log=False, server_header=False,
        date_header=False, backlog=2048,
    )  # fmt: skip
    async with gateway.running():
        server = uvicorn.Server(config)
        with contextlib.suppress(asyncio.CancelledError):
            await server.serve()


class Under:
    """One gateway in a process of its own, of the code in ``checkout``, and what is sent to it."""

    def __init__(self, checkout: Path, folder: Path, *, is_instant: bool) -> None:
        self.port = processes.free_port()
        self._folder = folder
        folder.mkdir(parents=True)
        argv = [sys.executable, str(Path(__file__).resolve()), "--gateway", str(self.port), "--folder", str(folder)]
        self._server = processes.Server(
            "gateway", [*argv, *(["--instant"] if is_instant else [])],
            env={**os.environ, "PYTHONPATH": str(checkout)}, cores=_CORES, log=folder / "gateway.log", cwd=checkout,
        )  # fmt: skip
        self._server.wait_for(f"http://{processes.LOOPBACK}:{self.port}/serve/{_ENDPOINTS[0]}", _BODY)

    def close(self) -> None:
        """End it."""
        self._server.stop()

    def bear(self, connections: int, seconds: float, *, opens_new: bool) -> dict[str, Any]:
        """Return what so many connections and the stranger see, and what the gateway spends on it."""
        with contextlib.ExitStack() as stack:
            flood, stranger = (
                stack.enter_context(_callers(self.port, count, opens_new=opens_new)) for count in (connections, 0)
            )
            flood.hear()
            stranger.hear()
            time.sleep(_SETTLE_S)
            pid = [self._server.pid]
            spent, began = machine.cpu_seconds(pid), time.monotonic()
            for callers in (flood, stranger):
                callers.say(seconds)
            found, seen = flood.hear(), stranger.hear()
            spent, took = machine.cpu_seconds(pid) - spent, time.monotonic() - began
        return {
            **found, "rps": found["answers"] / seconds, "refused_per_s": found["refusals"] / seconds,
            "cpu": round(spent / took, 3), "rss_mb": round(machine.rss_mb(pid)), "stranger": seen,
        }  # fmt: skip


@contextlib.contextmanager
def _callers(port: int, connections: int, *, opens_new: bool) -> Iterator[processes.Child]:
    argv = [sys.executable, "-m", "benchmarks.shared.flood", str(port), f"/serve/{_ENDPOINTS[0]}", _BODY.decode()]
    child = processes.Child([*argv, str(connections), *(["--new"] if opens_new else [])])
    try:
        yield child
    finally:
        child.stop()


def run(
    under: Mapping[str, Under], levels: Sequence[int], rounds: int, seconds: float, *, opens_new: bool, say: Say
) -> list[dict[str, Any]]:
    """Measure every level next to a bearable one, of every gateway in turn."""
    rows = []
    for connections in levels:
        for round_ in range(rounds):
            for name in sorted(under, reverse=bool(round_ % 2)):
                easy = under[name].bear(_BEARABLE, seconds, opens_new=opens_new)
                hard = under[name].bear(connections, seconds, opens_new=opens_new)
                rows.append({"gateway": name, "connections": connections, "new": opens_new, "easy": easy, "hard": hard,
                             "load_average": os.getloadavg()[0]})  # fmt: skip
                say(" | ".join(row_of(rows[-1])))
    return rows


def row_of(row: Mapping[str, Any]) -> list[str]:
    """Return one measurement as it is shown."""
    easy, hard, stranger = row["easy"], row["hard"], row["hard"]["stranger"]
    return [
        row["gateway"], f"{row['connections']:,}{' (new ones)' if row['new'] else ''}", f"{hard['rps']:,.0f}",
        f"{easy['rps']:,.0f}", f"{hard['rps'] / max(easy['rps'], 1):.2f}", f"{hard['refused_per_s']:,.0f}",
        f"{hard['cpu']:.2f}", f"{stranger['refused_p99_ms']:.0f}", f"{stranger['refused_p100_ms']:.0f}",
        str(stranger["answered"]), str(stranger["unanswered"]),
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--connections", action="append", type=int, default=[], help="only so many; may be repeated")
    arguments.add_argument("--seconds", type=float, default=6.0, help="seconds of every level [6]")
    arguments.add_argument("--rounds", type=int, default=1, help="rounds of every level [1]")
    arguments.add_argument("--new", action="store_true", help="open a new connection after each refusal")
    arguments.add_argument("--instant", action="store_true", help="the server takes no time: the gateway is the limit")
    arguments.add_argument("--before", type=Path, help="folder with another checkout, measured in the same rounds")
    arguments.add_argument("--gateway", type=int, default=0, help=argparse.SUPPRESS)
    arguments.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = arguments.parse_args(argv)
    if options.gateway:
        price = (0.0, 0.0) if options.instant else (_CALL_S, _ROW_S)
        uvloop.run(_serve(options.gateway, options.folder, price))
        return 0
    say = narrator()
    checkouts = {"now": ROOT, **({"before": options.before.resolve()} if options.before else {})}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        under = {
            name: stack.enter_context(contextlib.closing(Under(checkout, folder / name, is_instant=options.instant)))
            for name, checkout in checkouts.items()
        }
        rows = run(
            under, options.connections or LEVELS, options.rounds, options.seconds, opens_new=options.new, say=say
        )
    print(table([_HEADS, *map(row_of, rows)]))
    if options.save:
        facts = {"commit": commit(), "cpu": machine.cpu_model(), "cores": os.cpu_count(),
                 "began": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}  # fmt: skip
        kept = saved("overload") or {}
        name = f"flood{'-new' if options.new else ''}{'-instant' if options.instant else ''}"
        save("overload", {**kept, name: {"facts": facts, "rows": rows}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
