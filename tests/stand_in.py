"""A Triton's gRPC API in front of the fake backend, so that many fit into one process. Counts its calls.

``tests/integration/test_backend_contract.py`` holds it to the contract of the real one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import grpc
import numpy as np
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb

from gateway.errors import BackendRefused, GatewayError, ModelNotReady
from gateway.testing import FakeBackend
from gateway.triton.tensors import TO_TRITON, pack, unpack

_CODES: Final = {ModelNotReady: grpc.StatusCode.NOT_FOUND, BackendRefused: grpc.StatusCode.INVALID_ARGUMENT}


_SERVICE: Final = "inference.GRPCInferenceService"


class StandIn:
    """Serves ``fake`` at ``address`` once it is started; ``asked`` counts calls by the name of the method."""

    def __init__(self, fake: FakeBackend) -> None:
        self.fake = fake
        self.asked: Counter[str] = Counter()
        self.address = ""
        self._server: Any = None

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        methods = {
            "ModelInfer": (self._infer, pb.ModelInferRequest), "ServerLive": (self._live, pb.ServerLiveRequest),
            "ModelReady": (self._ready, pb.ModelReadyRequest),
            "ModelMetadata": (self._metadata, pb.ModelMetadataRequest),
            "ModelConfig": (self._config, pb.ModelConfigRequest),
            "RepositoryIndex": (self._index, pb.RepositoryIndexRequest),
            "ModelStatistics": (self._statistics, pb.ModelStatisticsRequest),
        }  # fmt: skip
        handlers = {name: self._handler(name, call, kind) for name, (call, kind) in methods.items()}
        service = grpc.method_handlers_generic_handler(_SERVICE, handlers)
        self._server.add_generic_rpc_handlers((service,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stop(self) -> None:
        """Stop at once."""
        await self._server.stop(None)

    def _handler(self, name: str, call: Any, kind: Any) -> Any:
        async def counted(request: Any, context: Any) -> Any:
            self.asked[name] += 1
            try:
                return await call(request)
            except GatewayError as error:
                code = next((code for of, code in _CODES.items() if isinstance(error, of)), grpc.StatusCode.UNAVAILABLE)
                await context.abort(code, error.message)

        return grpc.unary_unary_rpc_method_handler(
            counted, request_deserializer=kind.FromString, response_serializer=lambda reply: reply.SerializeToString()
        )

    async def _live(self, _request: Any) -> Any:
        return pb.ServerLiveResponse(live=await self.fake.is_live())

    async def _ready(self, request: Any) -> Any:
        return pb.ModelReadyResponse(ready=await self.fake.is_ready(request.name))

    async def _index(self, _request: Any) -> Any:
        told = pb.RepositoryIndexResponse()
        for name in self.fake.models:
            told.models.add(name=name, version="1", state="READY")
        return told

    async def _statistics(self, _request: Any) -> Any:
        return pb.ModelStatisticsResponse(model_stats=[pb.ModelStatistics(name=name) for name in self.fake.models])

    async def _metadata(self, request: Any) -> Any:
        info = await self.fake.describe(request.name)
        told = pb.ModelMetadataResponse(name=info.name)
        for side, tensors in ((told.inputs, info.inputs), (told.outputs, info.outputs)):
            for tensor in tensors:
                side.add(name=tensor.name, datatype=TO_TRITON[np.dtype(tensor.dtype)], shape=tensor.shape)
        return told

    async def _config(self, request: Any) -> Any:
        info = await self.fake.describe(request.name)
        config = model_config_pb2.ModelConfig(max_batch_size=info.max_batch_size)
        if info.merges_calls:
            config.dynamic_batching.SetInParent()
        return pb.ModelConfigResponse(config=config)

    async def _infer(self, request: Any) -> Any:
        inputs = {
            tensor.name: unpack(tensor.name, tensor.datatype, tensor.shape, raw)
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        names = [tensor.name for tensor in request.outputs]
        found = await asyncio.shield(self.fake.infer(request.model_name, inputs, names, timeout=60))
        reply = pb.ModelInferResponse(model_name=request.model_name)
        for name, array in found.items():
            datatype, packed = pack(name, np.ascontiguousarray(array))
            reply.outputs.add(name=name, datatype=datatype, shape=array.shape)
            reply.raw_output_contents.append(packed)
        return reply
