"""What does a request cost the gateway in each protocol, measured side by side?

One gateway in this process, in front of a model that answers at once; bytes go in and out of its HTTP protocol without
a socket, many connections at a time. Rounds are interleaved: every protocol within moments of the others, in an order
that changes. Printed are microseconds of CPU per request, and each protocol's share of ``/serve``: the median of the
rounds' ratios with its 95 % bootstrap interval. gRPC has a real socket and a client in another process.
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
import zipfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.shared import corpus
from benchmarks.shared.command import ROOT, again, parser
from benchmarks.shared.results import save
from benchmarks.shared.statistics import ratio
from benchmarks.shared.words import text_bundle

TAKES = "half a minute"
SAVES = "results/protocols.json"
CONNECTIONS: Final = 64
BASE: Final = "serve"
WIDTH: Final = 384

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
}
"""Protocol → path and body. OpenAI's has no form for labels."""
ENDPOINTS: Final = {"labels": "BertForSequenceClassification", "vectors": "BertModel"}


class Wire(asyncio.Transport):
    """A connection without a socket: what is written to it is an answer."""

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

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""


def gateway_in(state: Path) -> Any:
    """A gateway with both endpoints over a model in memory that answers at once."""
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
        Settings(state_dir=state / "state", poll_frequency="1h"), registry=registry,
        make_backend=lambda *_: backend, is_whole_process=True,
    )  # fmt: skip


def request(path: str, content: object) -> bytes:
    """One request as a client library writes it."""
    body = json.dumps(content).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: gateway:8080\r\naccept: */*\r\nuser-agent: benchmark\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
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
        """Send them all, ``CONNECTIONS`` at a time, and return the CPU time per request in µs."""
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


async def grpc_cost(gateway: Any, name: str, texts: list[str]) -> float:
    """The same over gRPC, with a client in another process."""
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
    await client.stdout.readline()  # it is connected and has asked once
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
            while set(gateway.table.current.endpoints) != set(ENDPOINTS):  # noqa: ASYNC110 - facts, not events
                await asyncio.sleep(0.05)
            load = Load(gateway)
            cells = [
                (name, form) for name in ENDPOINTS for form in FORMS if form != "openai" or name == "vectors"
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
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--requests", type=int, default=1280, help="of one protocol in one round")
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
