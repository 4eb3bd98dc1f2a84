"""Triton's gRPC, the complete transport. The gateway's only file for calls to Triton that imports grpc.

One channel per server. Tensors are sent as raw bytes (``raw_input_contents``) and returned as views of the received
message, without a conversion per element. A call carries its deadline; Triton removes a late or cancelled call from its
queue. Only gRPC offers streams, metadata and statistics.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import grpc
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from gateway.errors import BackendGarbage, GatewayError
from gateway.triton.errors import BackendError, TransportError, lost, translate
from gateway.triton.port import ModelInfo, TensorInfo, Tensors
from gateway.triton.tensors import FROM_TRITON, pack, unpack
from gateway.triton.tls import TritonTls
from gateway.triton.waiting import within_running_time

_ALIVE_S: Final = 2.0
"""Time-out of a question about a server, in seconds. A caller's short time-out would say nothing about Triton."""
_READ_ON_S: Final = 60.0
"""Seconds after its caller's deadline until which a stream is read on; then it is cancelled after all."""
_CLOSE_S: Final = 10.0
"""Seconds that streams are read on when the channel is closed."""

_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # a cluster's proxy for outside addresses does not lead to Triton
    # By default gRPC waits up to two minutes before it connects again. A restarted Triton must be found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),  # and how long an attempt may take: a busy machine needs some of it
    ("grpc.max_reconnect_backoff_ms", 1000),
    # If a server's node is lost, its connection is not closed. Pings end the calls before their deadline. gRPC sends
    # them only during calls, and at most two without data, which Triton's default tolerates.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)
_ERRORS: Final[dict[grpc.StatusCode, BackendError]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "late",
    grpc.StatusCode.INVALID_ARGUMENT: "invalid",
    grpc.StatusCode.UNIMPLEMENTED: "invalid",
    grpc.StatusCode.NOT_FOUND: "not_found",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "full",
    grpc.StatusCode.UNAVAILABLE: "unavailable",
    grpc.StatusCode.CANCELLED: "unavailable",
    grpc.StatusCode.INTERNAL: "failed",
    grpc.StatusCode.UNKNOWN: "failed",
}


class GrpcTransport:
    """Calls the server at the gRPC target ``address``. Raises ``OSError`` for TLS files that cannot be read.

    ``host`` is the name that the server's certificate must have, unless ``tls`` names another.
    """

    def __init__(self, address: str, *, options: Mapping[str, Any], tls: TritonTls | None, host: str) -> None:
        self._address = address
        self._unread: set[asyncio.Task[None]] = set()
        """The readers of streams whose caller has left."""
        settings = dict(_OPTIONS) | dict(options)
        if tls is None:
            channel = grpc.aio.insecure_channel(address, options=list(settings.items()))
        else:
            if name := tls.name or host:
                settings |= {"grpc.ssl_target_name_override": name, "grpc.default_authority": name}
            credentials = grpc.ssl_channel_credentials(*tls.read())
            channel = grpc.aio.secure_channel(address, credentials, options=list(settings.items()))
        self._channel = channel
        self._triton = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    async def infer(
        self, model: str, inputs: Tensors, outputs: Sequence[str], *, timeout: float, parent: str
    ) -> dict[str, NDArray[Any]]:
        """Run one inference, as ``Backend.infer``; ``parent`` is the ``traceparent``. Raises ``TransportError`` too."""
        request = _request(model, inputs, outputs)
        call = self._triton.ModelInfer(request, timeout=timeout, metadata=_trace(parent))
        with self._under_way(call, model):
            return _unpack(await call)

    async def stream(
        self, model: str, inputs: Tensors, outputs: Sequence[str], *, timeout: float, parent: str,
        begun: Callable[[asyncio.Task[None]], object],
    ) -> AsyncGenerator[dict[str, NDArray[Any]], None]:  # fmt: skip
        """Run a decoupled model, as ``Backend.stream``. Also raises ``TransportError``.

        Each request has its own gRPC stream. A task reads it to its end even if the caller leaves or is late: a Triton
        can crash or hang if a stream is cancelled while its model answers. ``begun(task)`` is called when it is sent.
        """
        request = _request(model, inputs, outputs)
        # If the model ends without a last token, the final flag then comes in an empty response.
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        received: asyncio.Queue[Any] = asyncio.Queue()
        until = asyncio.get_running_loop().time() + timeout
        call = self._triton.ModelStreamInfer(timeout=max(timeout, 0.0) + _READ_ON_S, metadata=_trace(parent))
        reader = asyncio.create_task(self._read(call, request, model, received))
        begun(reader)
        try:
            while True:
                async with asyncio.timeout_at(until):
                    message = await received.get()
                if isinstance(message, GatewayError):
                    raise message
                if message.error_message:
                    raise _stream_error(message.error_message, model, self._address)
                response = message.infer_response
                if response.outputs:
                    yield _unpack(response)
                if response.parameters["triton_final_response"].bool_param:
                    return
        except TimeoutError:
            raise translate("late", "", model=model, address=self._address) from None
        finally:
            if not reader.done():
                self._unread.add(reader)
                reader.add_done_callback(self._unread.discard)

    async def _read(self, call: Any, request: Any, model: str, received: asyncio.Queue[Any]) -> None:
        """Pass all messages of a stream to ``received``, and an error after them."""
        error: GatewayError = lost(self._address, "it ended the stream")
        try:
            with self._under_way(call, model):
                await call.write(request)
                await call.done_writing()
                while (message := await call.read()) is not grpc.aio.EOF:
                    received.put_nowait(message)
        except GatewayError as failure:
            error = failure
        finally:
            received.put_nowait(error)

    @contextmanager
    def _under_way(self, call: Any, model: str) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise self._error(error, model) from error
        except asyncio.CancelledError:
            if _is_cancelled():  # the caller left
                raise
            raise lost(self._address, "the channel was closed") from None
        finally:
            call.cancel()  # no effect on a call that has ended

    def _error(self, error: grpc.RpcError, model: str) -> GatewayError:
        code = error.code()
        detail = (error.details() or "").splitlines()[0:1]
        text = detail[0] if detail else code.name
        kind = _ERRORS.get(code, "other")
        return translate(kind, f"{code.name}: {text}" if kind == "other" else text, model=model, address=self._address)

    async def is_live(self) -> bool:
        """Return whether the server answers. Never raises."""
        try:
            return bool((await _ask(self._triton.ServerLive, pb.ServerLiveRequest())).live)
        except (grpc.RpcError, TimeoutError):
            return False

    async def holds(self) -> frozenset[str] | None:
        """Return the models that are ready, by one call; None if the server does not answer. Never raises.

        The statistics name them. The repository index would need the key with which models are loaded.
        """
        try:
            told = await _ask(self._triton.ModelStatistics, pb.ModelStatisticsRequest())
        except (grpc.RpcError, TimeoutError):
            return None
        return frozenset(model.name for model in told.model_stats)

    async def describe(self, model: str) -> ModelInfo:
        """See ``Backend.describe``."""
        try:
            metadata = await _ask(self._triton.ModelMetadata, pb.ModelMetadataRequest(name=model))
            config = await _ask(self._triton.ModelConfig, pb.ModelConfigRequest(name=model))
        except TimeoutError as error:
            raise lost(self._address) from error
        except grpc.RpcError as error:
            raise self._error(error, model) from error
        return ModelInfo(
            name=model,
            inputs=tuple(_info(t) for t in metadata.inputs),
            outputs=tuple(_info(t) for t in metadata.outputs),
            max_batch_size=config.config.max_batch_size,
        )

    async def close(self) -> None:
        """Close the channel. Calls in flight end with ``TransportError``; streams that callers left are read first."""
        if self._unread:
            await asyncio.wait(self._unread, timeout=_CLOSE_S)
        await self._channel.close()


async def _ask(method: Any, request: Any) -> Any:
    try:
        return await within_running_time(method(request), _ALIVE_S)
    except (asyncio.CancelledError, grpc.aio.UsageError):
        if _is_cancelled():
            raise
        raise TimeoutError from None  # the channel was closed, but this task was not cancelled


def _trace(parent: str) -> tuple[tuple[str, str], ...] | None:
    return (("traceparent", parent),) if parent else None


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _request(model: str, inputs: Tensors, outputs: Sequence[str]) -> Any:
    request = pb.ModelInferRequest(model_name=model)
    raw = request.raw_input_contents
    for name, array in inputs.items():
        tensor = request.inputs.add()
        tensor.name = name
        tensor.shape.extend(array.shape)
        tensor.datatype, packed = pack(name, array)
        raw.append(packed)
    for name in outputs:
        request.outputs.add().name = name
    return request


def _stream_error(message: str, model: str, address: str) -> GatewayError:
    """Return the error for a message of a stream, which has no status code. The model's own text is kept."""
    text = message.splitlines()[0][:300]
    error = translate("unavailable", text, model=model, address=address)
    return translate("failed", text, model=model, address=address) if isinstance(error, TransportError) else error


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
