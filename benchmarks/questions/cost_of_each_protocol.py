"""What does a request cost the gateway in each protocol, measured side by side?

One gateway in this process, in front of a model that answers at once. Bytes go through its HTTP protocol without a
socket, many connections at a time. Rounds are interleaved: all protocols within moments of each other, in changing
order. It prints microseconds of CPU per request, and each protocol's ratio to ``/serve``: the median of the rounds'
ratios with its 95 % bootstrap interval. gRPC has a real socket and a client in another process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.shared import corpus
from benchmarks.shared.command import ROOT, again, parser
from benchmarks.shared.results import save
from benchmarks.shared.statistics import ratio
from benchmarks.shared.wire import CONNECTIONS, ENDPOINTS, Load, gateway_in, request, until_served

TAKES = "40 seconds"
SAVES = "results/protocols.json"
BASE: Final = "serve"

Body = Callable[[str], object]
FORMS: Final[Mapping[str, tuple[str, Body]]] = {
    BASE: ("/serve/{name}", lambda text: {"text": text}),
    "huggingface": ("/serve/{name}", lambda text: {"inputs": text}),
    "openai": ("/v1/embeddings", lambda text: {"model": "vectors", "input": text}),
    "kserve_v1": ("/v1/models/{name}:predict", lambda text: {"instances": [text]}),
    "oip": (
        "/v2/models/{name}/infer",
        lambda text: {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [text]}]},
    ),
    "tei_embed": ("/tei/{name}/embed", lambda text: {"inputs": text}),
    "tei_predict": ("/tei/{name}/predict", lambda text: {"inputs": text}),
}
"""Protocol → path and body."""
ONLY: Final = {"openai": "vectors", "tei_embed": "vectors", "tei_predict": "labels"}
"""Protocol → the only endpoint that it has a form for."""


async def grpc_cost(gateway: Any, name: str, texts: list[str]) -> float:
    """The same for gRPC, with a client in another process."""
    from gateway.edge.grpc.server import RpcServer

    async def nothing() -> list[dict[str, Any]]:
        return []

    server = RpcServer(
        gateway.plane, gateway.table, gateway.health, nothing, version="0", timeout=10, max_message_bytes=1 << 20
    )  # fmt: skip
    port = await server.start("127.0.0.1", 0)
    client = await asyncio.create_subprocess_exec(
        *again(__name__, "--grpc-client", str(port), name),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(json.dumps(texts).encode() + b"\n")
    await client.stdout.readline()  # it is connected and has sent one request
    began = time.process_time_ns()
    client.stdin.write(b"go\n")
    await client.stdout.readline()
    spent = time.process_time_ns() - began
    await client.wait()
    await server.stop(0)
    return spent / 1000 / len(texts)


async def grpc_client(port: int, name: str) -> None:
    """Ask for every text of the first line of stdin, ``CONNECTIONS`` at a time."""
    import grpc
    from tritonclient.grpc import service_pb2 as pb

    texts = json.loads(sys.stdin.readline())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        infer: Callable[[Any], Awaitable[Any]] = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )

        def message(text: str) -> Any:
            asked = pb.ModelInferRequest(model_name=name)
            tensor = asked.inputs.add(name="text", datatype="BYTES", shape=[1, 1])
            tensor.contents.bytes_contents.append(text.encode())
            return asked

        await infer(message("warm"))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for start in range(0, len(texts), CONNECTIONS):
            await asyncio.gather(*(infer(message(text)) for text in texts[start : start + CONNECTIONS]))
        print("done", flush=True)


async def measure(rounds: int, each: int) -> dict[str, dict[str, list[float]]]:
    """Endpoint → protocol → µs per request, one number per round."""
    texts = corpus.Corpus(seed=1).texts("short", 20_000)
    rng = random.Random(0)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in ENDPOINTS}
    with tempfile.TemporaryDirectory() as folder:
        gateway = gateway_in(Path(folder))
        async with gateway.running():
            await until_served(gateway)
            load = Load(gateway)
            cells = [
                (name, form) for name in ENDPOINTS for form in FORMS if ONLY.get(form, name) == name
            ]  # fmt: skip
            for round_ in range(-2, rounds):
                rng.shuffle(cells)
                chosen = [texts[rng.randrange(len(texts))] for _ in range(each)]
                for name, form in cells:
                    path, body = FORMS[form]
                    cost = await load.cost([request(path.format(name=name), body(text)) for text in chosen])
                    if round_ >= 0:  # the first rounds warm up
                        found[name].setdefault(form, []).append(cost)
            for name in ENDPOINTS:
                found[name]["grpc"] = [await grpc_cost(gateway, name, texts[:2048]) for _ in range(3)]
    return found


def report(found: Mapping[str, Mapping[str, list[float]]]) -> list[str]:
    """One line per endpoint and protocol."""
    lines = []
    for name, forms in found.items():
        base = forms[BASE]
        for form, costs in forms.items():
            line = f"{name:8} {form:12} {np.median(costs):7.1f} µs"
            if form in (BASE, "grpc"):
                lines.append(line + (f"  {np.median(costs) / np.median(base):.2f} ×" if form != BASE else ""))
                continue
            one = ratio(list(zip(costs, base, strict=True)))
            lines.append(f"{line}  {one.median:.2f} × ({one.low:.2f} to {one.high:.2f})")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    import uvloop

    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--rounds", type=int, default=60)
    arguments.add_argument("--requests", type=int, default=1280, help="requests per protocol and round")
    arguments.add_argument("--grpc-client", nargs=2, metavar=("PORT", "ENDPOINT"), help=argparse.SUPPRESS)
    options = arguments.parse_args(argv)
    if options.grpc_client:
        port, name = options.grpc_client
        asyncio.run(grpc_client(int(port), name))
        return 0
    found = uvloop.run(measure(options.rounds, options.requests))
    print("\n".join(report(found)))
    if options.save:
        save("protocols", found)
    return 0
