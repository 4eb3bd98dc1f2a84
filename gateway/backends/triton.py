"""The Triton adapter of the backend port: the only file of the gateway that imports grpc and tritonclient.

Speaks the Open Inference Protocol over one ``grpc.aio`` channel per address. Tensors travel as raw bytes
(``raw_input_contents``) and come back as views of the received message: no per-element conversion in either direction.
Where Triton's HTTP answers too, inference takes that way (``backends.http``), which costs a fraction; gRPC then carries
everything else, and every call that HTTP did not answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import grpc
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb

from gateway.backends.base import ModelInfo, TensorInfo, Tensors
from gateway.backends.complaints import Complaint, translate
from gateway.backends.http import HttpCalls, NotAnswered, http_hosts
from gateway.backends.tensors import FROM_TRITON, pack, unpack
from gateway.errors import BackendGarbage, GatewayError, ModelNotReady
from gateway.trace import TRACEPARENT

_SERVICE: Final = "/inference.GRPCInferenceService/"
_PROBE_S: Final = 2.0
_MOST_REPLICAS: Final = 16

_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # gRPC waits up to two minutes before it tries a lost server again; a restarted Triton must be found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.lb_policy_name", "round_robin"),
)


class TritonBackend:
    """One Triton, or all replicas behind one ``dns:///`` name (round robin). ``http`` as ``http_hosts`` takes it."""

    def __init__(
        self,
        address: str,
        *,
        compression: bool = False,
        options: Sequence[tuple[str, Any]] = (),
        http: str = "off",
    ) -> None:
        self.address = address
        self._is_several = address.startswith("dns:") or "," in address
        # Compression is asked for where the network is dear: what HTTP would send is not compressed.
        hosts = [] if compression else http_hosts(address, http)
        self._http = HttpCalls(address, hosts) if hosts else None
        merged = dict(_OPTIONS) | dict(options)
        self._channel = grpc.aio.insecure_channel(
            address.removeprefix("grpc://"),
            options=list(merged.items()),
            compression=grpc.Compression.Gzip if compression else None,
        )
        self._infer = self._method("ModelInfer", pb.ModelInferRequest, pb.ModelInferResponse)
        self._ready = self._method("ModelReady", pb.ModelReadyRequest, pb.ModelReadyResponse)
        self._live = self._method("ServerLive", pb.ServerLiveRequest, pb.ServerLiveResponse)
        self._metadata = self._method("ModelMetadata", pb.ModelMetadataRequest, pb.ModelMetadataResponse)
        self._config = self._method("ModelConfig", pb.ModelConfigRequest, pb.ModelConfigResponse)
        self._index = self._method("RepositoryIndex", pb.RepositoryIndexRequest, pb.RepositoryIndexResponse)

    def _method(self, name: str, request: Any, response: Any) -> Any:
        return self._channel.unary_unary(
            _SERVICE + name, request_serializer=request.SerializeToString, response_deserializer=response.FromString
        )

    async def infer(
        self, model: str, inputs: Tensors, outputs: Sequence[str], *, timeout: float, request_id: str = ""
    ) -> dict[str, NDArray[Any]]:
        """Run one inference; see ``Backend.infer``."""
        parent = TRACEPARENT.get()
        http = self._http
        if http is not None and http.is_up:
            loop = asyncio.get_running_loop()
            began = loop.time()
            try:
                return await http.infer(model, inputs, outputs, timeout=timeout, request_id=request_id, parent=parent)
            except (NotAnswered, ModelNotReady):  # a server that leaves or has just come; gRPC may know another
                timeout -= loop.time() - began
        request = pb.ModelInferRequest(model_name=model, id=request_id)
        raw = request.raw_input_contents
        for name, array in inputs.items():
            tensor = request.inputs.add()
            tensor.name = name
            tensor.shape.extend(array.shape)
            tensor.datatype, packed = pack(name, array)
            raw.append(packed)
        for name in outputs:
            request.outputs.add().name = name
        try:
            metadata = (("traceparent", parent),) if parent else None
            response = await self._infer(request, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            known = _translate(error, model, self.address)
            if not (self._is_several and isinstance(known, ModelNotReady)):
                raise known from error
            response = await self._ask_others(request, known, timeout, metadata)
        return _unpack(response)

    async def _ask_others(
        self, request: Any, error: GatewayError, timeout: float, metadata: tuple[tuple[str, str], ...] | None
    ) -> Any:
        """Repeat a call that one of several Tritons could not take because it does not have the model (any more).

        Nothing was run there. Calls go round, so a few in a row find one that has it. Raises ``error``, or another.
        """
        until = time.monotonic() + timeout
        for _ in range(_MOST_REPLICAS):
            left = until - time.monotonic()
            if left <= 0:
                break
            try:
                return await self._infer(request, timeout=left, metadata=metadata)
            except grpc.RpcError as again:
                error = _translate(again, request.model_name, self.address)
                if not isinstance(error, ModelNotReady):
                    break
        raise error

    async def is_live(self) -> bool:
        """See ``Backend.is_live``."""
        try:
            return bool((await self._live(pb.ServerLiveRequest(), timeout=_PROBE_S)).live)
        except grpc.RpcError:
            return False

    async def is_ready(self, model: str) -> bool:
        """See ``Backend.is_ready``."""
        try:
            return bool((await self._ready(pb.ModelReadyRequest(name=model), timeout=_PROBE_S)).ready)
        except grpc.RpcError:
            return False

    async def why_not_ready(self, model: str) -> str:
        """See ``Backend.why_not_ready``."""
        try:
            index = await self._index(pb.RepositoryIndexRequest(), timeout=_PROBE_S)
        except grpc.RpcError:
            return f"Triton at {self.address} does not answer"
        entries = [m for m in index.models if m.name == model]
        if not entries:
            return "Triton does not have the model yet"
        return str(entries[0].reason or entries[0].state or "Triton is loading it").splitlines()[0][:300]

    async def refusal(self, model: str) -> str:
        """See ``Backend.refusal``; Triton keeps the reason of the last load in its index."""
        try:
            index = await self._index(pb.RepositoryIndexRequest(), timeout=_PROBE_S)
        except grpc.RpcError:
            return ""
        reasons = [m.reason for m in index.models if m.name == model and m.state == "UNAVAILABLE"]
        return str(reasons[0]).splitlines()[0][:300] if reasons and reasons[0] not in ("", "unloaded") else ""

    async def describe(self, model: str) -> ModelInfo:
        """See ``Backend.describe``. Whoever describes a model is about to call it: HTTP is looked for."""
        if self._http is not None:
            await self._http.start()
        try:
            metadata = await self._metadata(pb.ModelMetadataRequest(name=model), timeout=_PROBE_S)
            config = await self._config(pb.ModelConfigRequest(name=model), timeout=_PROBE_S)
        except grpc.RpcError as error:
            raise _translate(error, model, self.address) from error
        return ModelInfo(
            name=model,
            inputs=tuple(_info(t) for t in metadata.inputs),
            outputs=tuple(_info(t) for t in metadata.outputs),
            max_batch_size=config.config.max_batch_size,
        )

    async def close(self) -> None:
        """See ``Backend.close``."""
        if self._http is not None:
            await self._http.close()
        await self._channel.close()


def _info(tensor: Any) -> TensorInfo:
    dtype = FROM_TRITON.get(tensor.datatype)
    return TensorInfo(tensor.name, dtype.name if dtype is not None else "object", tuple(tensor.shape))


def _unpack(response: Any) -> dict[str, NDArray[Any]]:
    raw = response.raw_output_contents
    if len(raw) != len(response.outputs):
        raise BackendGarbage(f"Triton sent {len(raw)} buffers for {len(response.outputs)} outputs")
    return {
        output.name: unpack(output.name, output.datatype, output.shape, buffer)
        for output, buffer in zip(response.outputs, raw, strict=True)
    }


_COMPLAINTS: Final[dict[grpc.StatusCode, Complaint]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "late",
    grpc.StatusCode.INVALID_ARGUMENT: "invalid",
    grpc.StatusCode.NOT_FOUND: "not_found",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "full",
    grpc.StatusCode.UNAVAILABLE: "unavailable",
    grpc.StatusCode.CANCELLED: "cancelled",
    grpc.StatusCode.INTERNAL: "failed",
    grpc.StatusCode.UNKNOWN: "failed",
}


def _translate(error: grpc.RpcError, model: str, address: str) -> GatewayError:
    code = error.code()
    detail = (error.details() or "").splitlines()[0:1]
    text = detail[0] if detail else code.name
    complaint = _COMPLAINTS.get(code, "other")
    return translate(complaint, f"{code.name}: {text}" if complaint == "other" else text, model=model, address=address)
