"""Fake servers that speak a small part of Triton's two protocols. Tests define their answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from tests.core_client import accepted_connections


def reply(status: int, body: bytes, *headers: str) -> bytes:
    """Return an answer as bytes."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def tensors_reply(array: Any) -> bytes:
    """Return Triton's answer with one output."""
    head = json.dumps({"model_name": "m", "outputs": [{
        "name": "out", "datatype": "INT64", "shape": list(array.shape),
        "parameters": {"binary_data_size": array.nbytes},
    }]}).encode()  # fmt: skip
    return reply(200, head + array.tobytes(), f"Inference-Header-Content-Length: {len(head)}")


class HttpServer:
    """A minimal HTTP server in place of a Triton. ``answer(head, body)`` returns the reply, or None to hang up."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, bytes]] = []
        self.is_alive = True
        self.is_stopped = False
        """Takes connections and requests, as the kernel does for a stopped process, and answers nothing."""
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def answer(self, head: bytes, body: bytes) -> bytes | None:
        """Double the ids."""
        size = int(next(line for line in head.split(b"\r\n") if line.startswith(b"Inference-Header")).split()[1])
        described = json.loads(body[:size])
        shape = described["inputs"][0]["shape"]
        return tensors_reply(np.frombuffer(body[size:], np.int64).reshape(shape) * 2)

    def says(self, answer: bytes | None) -> None:
        """Answer every call so; None to hang up."""

        async def always(_head: bytes, _body: bytes) -> bytes | None:
            return answer

        self.answer = always

    async def start(self, port: int = 0) -> tuple[str, int]:
        """Listen; returns the address."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.address = ("127.0.0.1", int(self._server.sockets[0].getsockname()[1]))
        return self.address

    async def stop(self) -> None:
        """Close the server and its connections."""
        self._server.close()
        await accepted_connections()
        for writer in self._writers:
            writer.transport.abort()
        await accepted_connections()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if self.is_stopped:
                    await asyncio.Event().wait()
                if head.startswith(b"GET"):
                    writer.write(reply(200 if self.is_alive else 400, b""))
                    continue
                length = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
                body = await reader.readexactly(int(length.split()[1]))
                self.calls.append((head, body))
                found = await self.answer(head, body)
                if found is None:
                    break
                writer.write(found)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@dataclass
class GrpcServer:
    """A gRPC server with the methods of Triton that the adapter needs here."""

    name: str
    models: set[str] = field(default_factory=lambda: {"m"})
    refusal: tuple[grpc.StatusCode, str] | None = None
    calls: int = 0
    traces: list[str | None] = field(default_factory=list)
    """The ``traceparent`` of each call."""
    surveys: int = 0
    """How often it was asked what it holds."""
    hold: asyncio.Event | None = None
    steps: asyncio.Semaphore | None = None
    """Holds back the messages of streams: each takes one."""
    streams: list[str] = field(default_factory=list)
    """How each stream has ended: ``whole`` or ``cancelled``."""
    server: Any = None
    port: int = 0

    async def infer(self, request: Any, context: Any) -> Any:
        """Answer, refuse, or wait."""
        self.calls += 1
        self.traces.append(dict(context.invocation_metadata()).get("traceparent"))
        if self.refusal:
            await context.abort(*self.refusal)
        if request.model_name not in self.models:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown model")
        if self.hold:
            await self.hold.wait()
        return pb.ModelInferResponse(model_name=self.name)

    async def stream(self, requests: AsyncIterator[Any], _context: Any) -> AsyncIterator[Any]:
        """Send four tokens for each request, as a decoupled model does."""
        try:
            async for request in requests:
                if request.model_name not in self.models:
                    yield pb.ModelStreamInferResponse(error_message="Request for unknown model: it is not found")
                    continue
                for number in range(4):
                    if self.steps:
                        await self.steps.acquire()
                    message = pb.ModelStreamInferResponse()
                    message.infer_response.outputs.add(name="token", datatype="INT64", shape=[1])
                    message.infer_response.raw_output_contents.append(number.to_bytes(8, "little"))
                    message.infer_response.parameters["triton_final_response"].bool_param = number == 3
                    yield message
        except asyncio.CancelledError:
            self.streams.append("cancelled")
            raise
        self.streams.append("whole")

    async def live(self, _request: Any, context: Any) -> Any:
        """Return that the server is live, unless it refuses."""
        if self.refusal:
            await context.abort(*self.refusal)
        return pb.ServerLiveResponse(live=True)

    async def statistics(self, _request: Any, context: Any) -> Any:
        """Return ready models."""
        self.surveys += 1
        if self.refusal:
            await context.abort(*self.refusal)
        return pb.ModelStatisticsResponse(model_stats=[pb.ModelStatistics(name=name) for name in self.models])

    async def start(self, credentials: Any = None, address: str = "127.0.0.1:0") -> None:
        """Listen."""
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        methods = {
            "ModelInfer": (self.infer, pb.ModelInferRequest), "ServerLive": (self.live, pb.ServerLiveRequest),
            "ModelStatistics": (self.statistics, pb.ModelStatisticsRequest),
        }  # fmt: skip
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                call, request_deserializer=kind.FromString, response_serializer=lambda m: m.SerializeToString()
            )
            for name, (call, kind) in methods.items()
        }
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self.stream, request_deserializer=pb.ModelInferRequest.FromString,
            response_serializer=lambda m: m.SerializeToString(),
        )  # fmt: skip
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),)
        )
        if credentials is None:
            self.port = self.server.add_insecure_port(address)
        else:
            self.port = self.server.add_secure_port(address, credentials)
        await self.server.start()


@asynccontextmanager
async def tritons(*names: str) -> AsyncIterator[list[GrpcServer]]:
    """Servers that listen while the context is open."""
    made = [GrpcServer(name) for name in names]
    for one in made:
        await one.start()
    try:
        yield made
    finally:
        for one in made:
            await one.server.stop(None)


def together(*servers: GrpcServer) -> str:
    """Return one address for all servers."""
    return "ipv4:" + ",".join(f"127.0.0.1:{one.port}" for one in servers)
