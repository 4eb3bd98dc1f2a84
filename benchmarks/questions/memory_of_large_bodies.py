"""How much memory do many bodies of the largest size take that arrive at once, if there is room for one request?

One gateway process with ``TRITON_GATEWAY_MAX_IN_FLIGHT=1`` in front of a stand-in for a Triton. All connections send a
body of just under 16 MiB at once, over HTTP and then over gRPC; nearly all are refused. The process's resident memory
is read every 20 ms.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2 as pb

from benchmarks.peers.run import commit
from benchmarks.shared import machine, processes
from benchmarks.shared.command import ROOT, parser
from benchmarks.shared.one_gateway import ENDPOINTS, Under
from benchmarks.shared.results import save, saved, table

TAKES = "1 minute"
SAVES = "results/overload.json"
_TEXT: Final = b"a" * ((16 << 20) - 1024)
_PIECE: Final = 256 << 10
_WITHIN_S: Final = 60.0


async def _over_http(port: int) -> str:
    reader, writer = await asyncio.open_connection(processes.LOOPBACK, port)
    body = b'{"text": "%b"}' % _TEXT
    head = f"POST /serve/{ENDPOINTS[0]} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "
    try:
        writer.write(f"{head}{len(body)}\r\n\r\n".encode())
        for at in range(0, len(body), _PIECE):
            writer.write(body[at : at + _PIECE])
            await writer.drain()
        return (await asyncio.wait_for(reader.readline(), _WITHIN_S))[9:12].decode() or "closed"
    except ConnectionError:
        return "closed"
    finally:
        writer.close()


async def _over_grpc(port: int) -> str:
    request = pb.ModelInferRequest(model_name=ENDPOINTS[0])
    request.inputs.add(name="text", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(len(_TEXT).to_bytes(4, "little") + _TEXT)
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"{processes.LOOPBACK}:{port}", options=options) as channel:
        try:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            await infer(request.SerializeToString(), timeout=_WITHIN_S)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
    return "OK"


def measure(pid: int, ask: Callable[[int], Awaitable[str]], port: int, count: int) -> dict[str, Any]:
    """Return how much memory ``count`` simultaneous requests take, and how they ended."""
    before, seen, is_over = machine.rss_mb([pid]), [0.0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            seen.append(machine.rss_mb([pid]))

    async def everybody() -> list[str]:
        return await asyncio.gather(*(ask(port) for _ in range(count)))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        told = Counter(asyncio.run(everybody()))
    finally:
        is_over.set()
        watching.join()
    return {"bodies": count, "before_mb": before, "more_mb": max(seen) - before, "told": dict(told)}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--bodies", type=int, default=200, help="bodies that come at once [200]")
    options = arguments.parse_args(argv)
    rpc_port = processes.free_port()
    os.environ |= {"TRITON_GATEWAY_MAX_IN_FLIGHT": "1", "TRITON_GATEWAY_GRPC_PORT": str(rpc_port)}
    with tempfile.TemporaryDirectory() as folder, closing(Under(ROOT, Path(folder) / "now")) as under:
        ways = {"HTTP": (_over_http, under.port), "gRPC": (_over_grpc, rpc_port)}
        rows = [{"over": name, **measure(under.pid, *way, options.bodies)} for name, way in ways.items()]
    print(table([
        ["over", "bodies of 16 MiB at once", "MB before", "MB more at most", "told"],
        *([row["over"], str(row["bodies"]), f"{row['before_mb']:.0f}", f"{row['more_mb']:.0f}",
           ", ".join(f"{what} {count}" for what, count in row["told"].items())] for row in rows),
    ]))  # fmt: skip
    if options.save:
        facts = {"commit": commit(), "cpu": machine.cpu_model(), "cores": os.cpu_count(),
                 "began": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}  # fmt: skip
        save("overload", {**(saved("overload") or {}), "bodies": {"facts": facts, "rows": rows}})
    return 0
