"""The client's side of ``benchmarks.transports``: one way, one shape of call, one process."""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
from collections.abc import Awaitable, Callable
from multiprocessing import shared_memory
from time import perf_counter
from typing import Any

import numpy as np
import uvloop

_INPUTS = ("input_ids", "attention_mask")
_OUTPUT = "logits"
_WIDTH = 2
_IN_FLIGHT = 2

Call = Callable[[], Awaitable[Any]]
Tensors = dict[str, np.ndarray[Any, np.dtype[Any]]]


async def _grpc(grpc_address: str, _http: str, model: str, tensors: Tensors) -> Call:
    from gateway.triton.backend import TritonBackend

    backend = TritonBackend(grpc_address)

    async def call() -> Any:
        return (await backend.infer(model, tensors, [_OUTPUT], timeout=10))[_OUTPUT]

    return call


async def _grpc_shared_memory(grpc_address: str, _http: str, model: str, tensors: Tensors) -> Call:
    """Inputs and output lie in memory both sides see; the messages carry where."""
    import grpc
    from tritonclient.grpc import service_pb2 as pb

    service = "/inference.GRPCInferenceService/"
    channel = grpc.aio.insecure_channel(grpc_address)
    register = channel.unary_unary(
        service + "SystemSharedMemoryRegister",
        request_serializer=pb.SystemSharedMemoryRegisterRequest.SerializeToString,
        response_deserializer=pb.SystemSharedMemoryRegisterResponse.FromString,
    )
    infer = channel.unary_unary(
        service + "ModelInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )
    rows = len(tensors[_INPUTS[0]])
    size = sum(t.nbytes for t in tensors.values()) + rows * _WIDTH * 4
    free: list[Any] = []
    for _ in range(_IN_FLIGHT):
        memory = shared_memory.SharedMemory(create=True, size=size)
        await register(pb.SystemSharedMemoryRegisterRequest(name=memory.name, key=f"/{memory.name}", byte_size=size))
        free.append(memory)

    async def call() -> Any:
        memory = free.pop()
        request = pb.ModelInferRequest(model_name=model)
        at = 0
        for name, array in tensors.items():
            memory.buf[at : at + array.nbytes] = array.tobytes()
            tensor = request.inputs.add()
            tensor.name, tensor.datatype = name, "INT64"
            tensor.shape.extend(array.shape)
            tensor.parameters["shared_memory_region"].string_param = memory.name
            tensor.parameters["shared_memory_offset"].int64_param = at
            tensor.parameters["shared_memory_byte_size"].int64_param = array.nbytes
            at += array.nbytes
        wanted = request.outputs.add()
        wanted.name = _OUTPUT
        wanted.parameters["shared_memory_region"].string_param = memory.name
        wanted.parameters["shared_memory_offset"].int64_param = at
        wanted.parameters["shared_memory_byte_size"].int64_param = size - at
        await infer(request, timeout=10)
        answer = np.frombuffer(bytes(memory.buf[at:size]), np.float32).reshape(rows, _WIDTH)
        free.append(memory)
        return answer

    call.close = lambda: [(m.close(), m.unlink()) for m in free]  # type: ignore[attr-defined]
    return call


async def _http_binary(grpc_address: str, http: str, model: str, tensors: Tensors) -> Call:
    """The gateway's adapter with Triton's HTTP."""
    from gateway.triton.backend import TritonBackend

    backend = TritonBackend(grpc_address, http=http)
    await backend.describe(model)

    async def call() -> Any:
        return (await backend.infer(model, tensors, [_OUTPUT], timeout=10))[_OUTPUT]

    return call


async def _grpclib(grpc_address: str, _http: str, model: str, tensors: Tensors) -> Call:
    from grpclib.client import Channel, UnaryUnaryMethod
    from tritonclient.grpc import service_pb2 as pb

    host, _, port = grpc_address.rpartition(":")
    infer = UnaryUnaryMethod(
        Channel(host, int(port)), "/inference.GRPCInferenceService/ModelInfer", pb.ModelInferRequest,
        pb.ModelInferResponse,
    )  # fmt: skip

    async def call() -> Any:
        request = pb.ModelInferRequest(model_name=model)
        for name, array in tensors.items():
            tensor = request.inputs.add()
            tensor.name, tensor.datatype = name, "INT64"
            tensor.shape.extend(array.shape)
            request.raw_input_contents.append(array.tobytes())
        request.outputs.add().name = _OUTPUT
        response = await infer(request, timeout=10)
        return np.frombuffer(response.raw_output_contents[0], np.float32).reshape(-1, _WIDTH)

    return call


WAYS = {"grpc": _grpc, "grpc_shared_memory": _grpc_shared_memory, "http_binary": _http_binary, "grpclib": _grpclib}


async def main(way: str, grpc_address: str, http: str, model: str, rows: int, tokens: int, seconds: float) -> None:
    """Print calls, client CPU µs per call, the median of a lone call in ms, as JSON."""
    tensors = {name: np.ones((rows, tokens), np.int64) for name in _INPUTS}
    call = await WAYS[way](grpc_address, http, model, tensors)
    answer = await call()
    assert answer.shape == (rows, _WIDTH), answer.shape
    for _ in range(300):
        await call()
    lone = []
    for _ in range(300):
        began = perf_counter()
        await call()
        lone.append(perf_counter() - began)
    calls = 600

    async def repeat(until: float) -> None:
        nonlocal calls
        while perf_counter() < until:
            await call()
            calls += 1

    before, counted = _cpu(), calls
    until = perf_counter() + seconds
    await asyncio.gather(*(repeat(until) for _ in range(_IN_FLIGHT)))
    client_us = (_cpu() - before) / (calls - counted) * 1e6
    if close := getattr(call, "close", None):
        close()
    print(json.dumps({"calls": calls, "client_us": client_us, "lone_ms": statistics.median(lone) * 1000}))


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    name, to_grpc, to_http, of, n_rows, n_tokens, s = sys.argv[1:]
    uvloop.install()
    asyncio.run(main(name, to_grpc, to_http, of, int(n_rows), int(n_tokens), float(s)))
