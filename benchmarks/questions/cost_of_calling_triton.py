"""What does one call to Triton cost over each transport?

It reports the gateway's and Triton's CPU µs per call, and the time of a lone call. The model answers at once, and two
calls run at a time, as the batcher sends them; the client has one core and Triton the other. Transports: the gateway's
own adapter with gRPC (``grpc.aio``) and with Triton's HTTP (binary tensors), ``grpc.aio`` with tensors in system shared
memory, and ``grpclib`` (another gRPC implementation, pure Python) if it is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing import shared_memory
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.peers.systems import OTHER_CORE, SERVER_CORE
from benchmarks.shared import machine, processes
from benchmarks.shared.backends import BACKENDS, Triton
from benchmarks.shared.command import ROOT, again, narrator, parser, tell
from benchmarks.shared.results import table

TAKES = "2 minutes"
SAVES = ""
SHAPES = ((1, 24), (16, 24), (32, 200))
"""Rows and tokens of a call."""
_MODEL = "transport"
_INPUTS = ("input_ids", "attention_mask")
_OUTPUT = "logits"
_WIDTH = 2
_IN_FLIGHT = 2

Call = Callable[[], Awaitable[Any]]
Tensors = dict[str, np.ndarray[Any, np.dtype[Any]]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    arguments = parser(__name__, __doc__)
    arguments.add_argument("--seconds", type=float, default=2.0, help="seconds per cell")
    arguments.add_argument("--rounds", type=int, default=3, help="interleaved rounds; the table shows medians")
    arguments.add_argument("--client", nargs=7, help=argparse.SUPPRESS)
    options = arguments.parse_args(argv)
    if options.client:
        import uvloop

        way, grpc, http, model, rows, tokens, seconds = options.client
        uvloop.run(_client(way, grpc, http, model, int(rows), int(tokens), float(seconds)))
        return 0
    say = narrator()
    cells: dict[tuple[str, int, int], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        triton = Triton(Path(scratch))
        triton.start()
        try:
            triton.serve(_MODEL, BACKENDS["instant"], Path(scratch))
            triton.pin([OTHER_CORE])
            for _ in range(options.rounds):
                for rows, tokens in SHAPES:
                    for way in _WAYS:
                        done = _cell(triton, way, rows, tokens, options.seconds)
                        if done.returncode:
                            say(f"{way} is not measured: {done.stderr.strip().splitlines()[-1:]}")
                            continue
                        cells.setdefault((way, rows, tokens), []).append(json.loads(done.stdout.splitlines()[-1]))
        finally:
            triton.stop()
    shown = [["call", "way", "client CPU µs", "Triton CPU µs", "lone call ms (p50)"]]
    for (way, rows, tokens), found in sorted(cells.items(), key=lambda item: item[0][1:]):
        middle = {key: statistics.median(cell[key] for cell in found) for key in found[0]}
        shown.append([f"{rows} × {tokens}", way, f"{middle['client_us']:.0f}", f"{middle['triton_us']:.0f}",
                      f"{middle['lone_ms']:.3f}"])  # fmt: skip
    print(table(shown))
    return 0


def _cell(triton: Triton, way: str, rows: int, tokens: int, seconds: float) -> subprocess.CompletedProcess[str]:
    argv = again(__name__, "--client", way, triton.grpc, triton.http, _MODEL, str(rows), str(tokens), str(seconds))
    before = machine.cpu_seconds([triton.pid])
    done = subprocess.run(
        processes.on_cores(argv, [SERVER_CORE]), capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    if not done.returncode:
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        calls = found.pop("calls")
        spent = machine.cpu_seconds([triton.pid]) - before
        done.stdout = json.dumps({**found, "triton_us": spent / calls * 1e6})
    return done


async def _grpc(grpc_address: str, _http: str, model: str, tensors: Tensors) -> Call:
    from gateway.triton.backend import TritonBackend

    backend = TritonBackend(grpc_address)

    async def call() -> Any:
        return (await backend.infer(model, tensors, [_OUTPUT], timeout=10))[_OUTPUT]

    return call


async def _grpc_shared_memory(grpc_address: str, _http: str, model: str, tensors: Tensors) -> Call:
    """Input and output are in memory that both sides map; the messages carry their addresses."""
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


_WAYS = {"grpc": _grpc, "grpc_shared_memory": _grpc_shared_memory, "http_binary": _http_binary, "grpclib": _grpclib}


async def _client(way: str, grpc_address: str, http: str, model: str, rows: int, tokens: int, seconds: float) -> None:
    """Print calls, client CPU µs per call, the median of a lone call in ms, as JSON."""
    tensors = {name: np.ones((rows, tokens), np.int64) for name in _INPUTS}
    call = await _WAYS[way](grpc_address, http, model, tensors)
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
    tell({"calls": calls, "client_us": client_us, "lone_ms": statistics.median(lone) * 1000})


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
