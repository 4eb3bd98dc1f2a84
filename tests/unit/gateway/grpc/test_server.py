"""The gRPC edge over a gateway of fakes: codes, deadlines, trailers. Other tests cover the content of requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.errors import ModelFailed
from gateway.grpc.server import RpcServer
from tests.waiting import LIMIT_S


async def _nothing() -> list[dict[str, Any]]:
    return []


def make_server(stack: Any, **limits: Any) -> RpcServer:
    """Return the gRPC service over a stack's data plane."""
    of = stack.gateway
    return RpcServer(of.plane, of.table, of.health, _nothing, version="1", max_message_bytes=1 << 20, **limits)


@asynccontextmanager
async def channel_to(stack: Any) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to the gRPC service over a stack's data plane."""
    server = make_server(stack)
    port = await server.start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


class Caller:
    """A client of the service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def call(self, method: str, request: Any, response: Any, **kwargs: Any) -> Any:
        """Start a call."""
        return self._channel.unary_unary(
            f"/inference.GRPCInferenceService/{method}", request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )(request, timeout=kwargs.pop("timeout", LIMIT_S), **kwargs)  # fmt: skip

    def infer(self, request: Any, **kwargs: Any) -> Any:
        """Start an inference."""
        return self.call("ModelInfer", request, pb.ModelInferResponse, **kwargs)

    def stream(self, *requests: Any, **kwargs: Any) -> Any:
        """Start a stream of inferences; without requests, they are written later."""
        return self._channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )(iter(requests) if requests else None, timeout=LIMIT_S, **kwargs)  # fmt: skip


def texts(model: str, *items: str, **fields: Any) -> Any:
    """Return a request with texts."""
    request = pb.ModelInferRequest(model_name=model, **fields)
    tensor = request.inputs.add(name="text", datatype="BYTES", shape=[len(items)])
    tensor.contents.bytes_contents.extend(item.encode() for item in items)
    return request


@pytest.fixture
async def caller(served: Any) -> AsyncIterator[Caller]:
    """A service with the endpoint `e`, and a client."""
    async with channel_to(served) as channel:
        yield Caller(channel)


async def test_an_answer_names_its_version_and_stage_times(caller: Caller) -> None:
    """In trailers, with the request's id."""
    call = caller.infer(texts("e", "good", id="r7"))
    answer = await call
    trailers = dict(await call.trailing_metadata())
    assert ("r7", "e") == (answer.id, answer.model_name)
    assert ("r7", "e", "m1", "direct") == (
        trailers["x-request-id"], trailers["x-served-by"], trailers["x-model-id"], trailers["x-route"],
    )  # fmt: skip
    assert float(trailers["x-compute-time"]) > 0


async def test_large_messages_are_handled_like_small_ones(
    stack: Any, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a thread, with the same answers and refusals. Its memory is freed afterwards."""
    build, aside = RpcServer.build_call, []

    def recorded(server: RpcServer, request: Any) -> Any:
        aside.append(threading.current_thread() is not threading.main_thread())
        return build(server, request)

    monkeypatch.setattr(RpcServer, "build_call", recorded)
    text = "good " * 60_000
    for sent in ("good", text):
        assert [1, 2] == (await caller.infer(texts("e", sent))).outputs[0].shape
    request = texts("e", text)
    request.inputs[0].shape[0] = 5
    with pytest.raises(grpc.aio.AioRpcError, match="has 1 elements"):
        await caller.infer(request)
    assert [False, True, True] == aside
    assert (0, 0) == (stack.gateway.permits.in_flight, stack.gateway.permits.held_bytes)


async def test_failures_have_their_codes(stack: Any, caller: Caller) -> None:
    """A trailer has the kind of error; a draining gateway is not ready; no work goes on for a caller that has left."""

    async def is_ready() -> bool:
        return bool((await caller.call("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse)).ready)

    async def refusal(**limits: Any) -> tuple[str, str | None]:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await caller.infer(texts("e", "good"), **limits)
        return refused.value.code().name, dict(refused.value.trailing_metadata() or ()).get("x-error-code")

    stack.backend.fail_with = ModelFailed("it broke")
    assert ("INTERNAL", "model_failed") == await refusal()
    stack.backend.fail_with, stack.backend.hold = None, asyncio.Event()
    assert "DEADLINE_EXCEEDED" == (await refusal(timeout=0.2))[0]
    await stack.until(lambda: stack.gateway.permits.in_flight == 0)
    assert await is_ready()
    stack.gateway.health.is_draining = True
    assert not await is_ready()
    assert ("UNAVAILABLE", "draining") == await refusal()
    stack.gateway.health.is_draining = False


async def test_a_port_in_use_is_an_error() -> None:
    """Without it, the server would silently answer half of the calls."""
    from gateway.__main__ import _reserve

    holder = _reserve("127.0.0.1", 0)
    holder.listen(1)
    with pytest.raises(OSError, match="in use"):
        _reserve("127.0.0.1", holder.getsockname()[1])
    holder.close()
