"""``inference.GRPCInferenceService`` on a ``grpc.aio`` server: what Triton's clients call, answered by the data plane.

One server per worker; workers share the port (``SO_REUSEPORT``), so the kernel spreads connections over them. Only
this file and ``triton/grpc.py`` import grpc and tritonclient's messages. ``protocols/oip.py`` decides what a request
means, as for REST.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from gateway.callers.access import Names
from gateway.callers.rights import METADATA, Caller
from gateway.errors import GatewayError, InputRefused, MalformedBody
from gateway.grpc.receiving import Receiving
from gateway.handlers.endpoint import Endpoint, Event
from gateway.health import Health
from gateway.outcome import in_task, in_thread
from gateway.path.ask import BODY_THREADS, MAX_INLINE_BYTES, Ask
from gateway.path.call import UNADDRESSED, Call, Route, labels
from gateway.path.rights import OPEN, redacted_for, rows_for, snapshot_for
from gateway.path.routing import RoutingTable
from gateway.path.serve import DataPlane, serve
from gateway.protocols import oip
from gateway.protocols.tensors import (
    NO_CLASSIFICATION,
    NO_SHARED_MEMORY,
    check_input,
    datatype_of,
    escaped,
    from_bytes,
    from_json,
    object_array,
    to_bytes,
    wrong_size,
)
from gateway.spec import normalize_url
from gateway.trace import Trace, clean_id
from gateway.triton.tensors import BYTES

_log = logging.getLogger("triton_gateway.rpc")

SERVICE: Final = "inference.GRPCInferenceService"

_CODES: Final = {
    401: grpc.StatusCode.UNAUTHENTICATED, 403: grpc.StatusCode.PERMISSION_DENIED, 404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED, 408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED, 429: grpc.StatusCode.RESOURCE_EXHAUSTED, 499: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE, 504: grpc.StatusCode.DEADLINE_EXCEEDED,
}  # fmt: skip
"""gRPC's codes by HTTP status; every other status of a caller's fault is INVALID_ARGUMENT, of ours INTERNAL."""

_CONTENT_FIELDS: Final = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", BYTES: "bytes_contents",
}  # fmt: skip
_LOOKAHEAD_BYTES: Final = 256 << 10
"""Bytes of each call that gRPC receives before the gateway reads them."""
_MEMORY_PER_BYTE: Final = 5
"""The most bytes of memory for each byte of a message that is being read: in gRPC, as message and as tensor."""

Method = Callable[[Any, Caller | None], Awaitable[Any]]
"""``method(request, caller)`` answers a request; ``caller`` is None if callers need not be known."""


def credentials(certificate: str, key: str, authority: str = "") -> Any:
    """Return a server's credentials of PEM files, which are read for each connection. Raises ``OSError``.

    ``authority``: clients need its certificate.
    """

    def read() -> Any:
        mine = Path(key or certificate).read_bytes(), Path(certificate).read_bytes()
        return grpc.ssl_server_certificate_configuration([mine], Path(authority).read_bytes() if authority else None)

    def read_again() -> Any:
        # gRPC calls this at every handshake; None keeps the current certificates, as it does if the new ones are bad.
        try:
            return read()
        except OSError as error:
            _log.warning("certificates cannot be read, the old ones stay: %s", error)
            return None

    return grpc.dynamic_ssl_server_credentials(read(), read_again, require_client_authentication=bool(authority))


class RpcServer:
    """The gRPC service of one worker.

    ``max_message_bytes`` limits a request. ``connection_age`` (seconds, 0: no limit) limits the age of a connection,
    ``head_timeout`` (seconds) its handshake and ``max_connections`` (0: no limit) the number of connections.
    """

    def __init__(
        self,
        plane: DataPlane,
        table: RoutingTable,
        health: Health,
        statistics: Callable[[], Awaitable[list[dict[str, Any]]]],
        *,
        version: str,
        max_message_bytes: int,
        connection_age: float = 0.0,
        head_timeout: float = 20.0,
        max_connections: int = 0,
    ) -> None:
        self._plane = plane
        self._access = plane.access
        self._table = table
        self._health = health
        self._statistics = statistics
        self._version = version
        max_messages = max(plane.permits.max_bytes // max_message_bytes, 1)
        self.receiving = Receiving(max_messages, _MEMORY_PER_BYTE * plane.permits.max_bytes)
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", -1),
                # A caller that kept its connection forever would never use new replicas.
                *((("grpc.max_connection_age_ms", int(connection_age * 1000)),) if connection_age else ()),
                # By default a connection without a handshake would stay open for two minutes.
                ("grpc.server_handshake_timeout_ms", int(head_timeout * 1000)),
                *((("grpc.max_allowed_incoming_connections", max_connections),) if max_connections else ()),
                # gRPC buffers unread bytes: windows that adapt to the network would take megabytes for each call.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", _LOOKAHEAD_BYTES),
            ],
        )
        unary = {
            "ServerLive": (self._live, OPEN, pb.ServerLiveRequest),
            "ServerReady": (self._ready, OPEN, pb.ServerReadyRequest),
            "ServerMetadata": (self._server_metadata, METADATA, pb.ServerMetadataRequest),
            "ModelReady": (self._model_ready, METADATA, pb.ModelReadyRequest),
            "ModelMetadata": (self._model_metadata, METADATA, pb.ModelMetadataRequest),
            "ModelConfig": (self._model_config, METADATA, pb.ModelConfigRequest),
            "ModelStatistics": (self._model_statistics, METADATA, pb.ModelStatisticsRequest),
            "RepositoryIndex": (self._index, METADATA, pb.RepositoryIndexRequest),
        }  # inference is checked by `serve`
        # Requests arrive as bytes: if gRPC cannot parse a message, it answers INTERNAL and logs a traceback.
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(
                partial(self._parsed, *how), response_serializer=methodcaller("SerializeToString")
            )
            for name, how in unary.items()
        }
        # gRPC runs a unary handler only after it has read the message. Declared as a stream, the message is read by us,
        # when its request has a permit.
        handlers["ModelInfer"] = grpc.stream_unary_rpc_method_handler(
            self._infer, response_serializer=pb.ModelInferResponse.SerializeToString
        )
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream, response_serializer=pb.ModelStreamInferResponse.SerializeToString
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def start(self, host: str, port: int, tls: Any = None) -> int:
        """Listen on ``host:port`` (0: any free one) and return the port; ``tls``: see ``credentials``.

        Raises ``OSError`` if it is taken.
        """
        shown_host = f"[{host}]" if ":" in host else host
        try:
            if tls is None:
                bound = self._server.add_insecure_port(f"{shown_host}:{port}")
            else:
                bound = self._server.add_secure_port(f"{shown_host}:{port}", tls)
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {shown_host}:{port}: {error}") from error
        await self._server.start()
        return int(bound)

    async def stop(self, grace: float) -> None:
        """Accept no new calls, and wait up to ``grace`` seconds for calls in flight."""
        await self._server.stop(grace)

    # --- callers ------------------------------------------------------------------------------------------------------

    def _url_of(self, request: Any, caller: Caller | None) -> str:
        """Return the url of the model that a request names. Raises ``NotPermitted`` unless ``caller`` may see it."""
        url = self._url(request.name, request.version)
        if caller is not None and self._access is not None:
            self._access.require(caller, METADATA, url)
        return url

    async def _parsed(self, method: Method, right: str, kind: Any, raw: bytes, context: Any) -> Any:
        """Check that the caller has the right, parse the message and answer with the result of ``method``."""
        caller = None
        try:
            if self._access is not None and right != OPEN:
                ask = RpcAsk(self, context)
                ask.open()
                caller = ask.caller_of(self._access)
                self._access.require(caller, right)
            return await method(_parse_message(raw, kind), caller)
        except GatewayError as error:
            return _refuse(context, redacted_for(caller, error))

    # --- descriptions of models ---------------------------------------------------------------------------------------

    async def _live(self, _request: Any, _caller: Caller | None) -> Any:
        return pb.ServerLiveResponse(live=True)

    async def _ready(self, _request: Any, _caller: Caller | None) -> Any:
        return pb.ServerReadyResponse(ready=not self._health.reasons())

    async def _server_metadata(self, _request: Any, _caller: Caller | None) -> Any:
        return pb.ServerMetadataResponse(name="triton-gateway", version=self._version, extensions=oip.EXTENSIONS)

    async def _model_ready(self, request: Any, caller: Caller | None) -> Any:
        try:
            ready = await oip.is_ready(self._table.current, self._url_of(request, caller))
        except GatewayError as error:
            if error.status in (403, 404):  # the caller's fault: it says nothing about the model
                raise
            ready = False
        return pb.ModelReadyResponse(ready=ready)

    async def _model_metadata(self, request: Any, caller: Caller | None) -> Any:
        shape = oip.describe(self._table.current, self._url_of(request, caller))
        return json_format.ParseDict(shape.metadata(), pb.ModelMetadataResponse())

    async def _model_config(self, request: Any, caller: Caller | None) -> Any:
        shape = oip.describe(self._table.current, self._url_of(request, caller))
        return json_format.ParseDict({"config": shape.config()}, pb.ModelConfigResponse())

    async def _model_statistics(self, request: Any, caller: Caller | None) -> Any:
        rows: Sequence[Mapping[str, Any]] = await self._statistics()
        if request.name:
            rows = oip.statistics_of(self._table.current, self._url_of(request, caller), rows)
        else:
            rows = rows_for(caller, rows)
        return json_format.ParseDict({"model_stats": rows}, pb.ModelStatisticsResponse())

    async def _index(self, request: Any, caller: Caller | None) -> Any:
        models = oip.index(snapshot_for(caller, self._table.current), only_ready=request.ready)
        return json_format.ParseDict({"models": models}, pb.RepositoryIndexResponse())

    def _url(self, name: str, version: str) -> str:
        return oip.resolve_version_one(self._table.current, normalize_url(name, version))

    # --- inference ----------------------------------------------------------------------------------------------------

    async def _infer(self, _requests: object, context: Any) -> Any:
        ask = RpcAsk(self, context)
        await ask.served(serve(ask, UNADDRESSED, self._plane))
        return ask.response

    async def _stream(self, _requests: object, context: Any) -> None:
        try:
            while (message := await self.receiving.message(context)) is not grpc.aio.EOF:
                # A stream may live longer than its caller's key: each request of it is checked.
                ask = StreamAsk(self, context, message)
                del message
                await ask.served(serve(ask, UNADDRESSED, self._plane))
                if ask.ends_stream:
                    break
        except GatewayError as error:
            _refuse(context, error)

    def build_call(self, request: Any) -> RpcCall:
        """Return what a message asks. Raises ``GatewayError``."""
        if not request.model_name:
            raise InputRefused("model_name is missing")
        raw = request.raw_input_contents
        if raw and len(raw) != len(request.inputs):
            raise InputRefused(f"raw_input_contents has {len(raw)} entries for {len(request.inputs)} inputs")
        inputs: dict[str, Any] = {}
        for i, tensor in enumerate(request.inputs):
            if "shared_memory_region" in tensor.parameters:
                raise InputRefused(NO_SHARED_MEMORY)
            shape = list(tensor.shape)
            check_input(tensor.name, tensor.datatype, shape, inputs)
            if raw:
                inputs[tensor.name] = from_bytes(tensor.name, tensor.datatype, shape, raw[i])
            else:
                inputs[tensor.name] = _from_contents(tensor, shape)
        for output in request.outputs:
            if output.parameters["classification"].int64_param:
                raise InputRefused(NO_CLASSIFICATION)
        call = RpcCall(self._url(request.model_name, request.model_version))
        call.inputs = inputs
        call.outputs = tuple(dict.fromkeys(output.name for output in request.outputs))
        call.id = request.id
        call.parameters = {
            name: getattr(value, value.WhichOneof("parameter_choice") or "", None)
            for name, value in request.parameters.items()
        }
        call.apply_parameters()
        return call


class RpcAsk(Ask):
    """One request over gRPC. Its message names the endpoint."""

    __slots__ = ("_context", "_request", "_server", "response")

    def __init__(self, server: RpcServer, context: Any) -> None:
        super().__init__()
        self.headers = [
            (name.lower().encode(), value if isinstance(value, bytes) else str(value).encode("latin-1", "replace"))
            for name, value in context.invocation_metadata() or ()
        ]
        self.by_name = dict(self.headers)
        self._server = server
        self._context = context
        self._request: Any = None
        self.response: Any = None
        """The answer."""

    @property
    def names(self) -> Names:
        """See ``Ask.names``."""
        identity = self._context.auth_context() or {}
        parts = (identity.get("x509_common_name", ()), identity.get("x509_subject_alternative_name", ()))
        return tuple(dict.fromkeys(value.decode("utf-8", "replace") for part in parts for value in part))

    def check(self, timeout: float) -> float:
        """See ``Ask.check``."""
        left = self._context.time_remaining()
        return timeout if left is None else min(timeout, max(left, 0.001))

    async def read(self, route: Route) -> Call:
        """See ``Ask.read``: a large message is converted in a thread."""
        del route
        server, request = self._server, self._request
        if request is None:
            # The iterator that gRPC passes to the method is not used: it keeps a message unless it is read to its end.
            message = await in_task(server.receiving.message(self._context, self.timeout))
            if message is grpc.aio.EOF:
                raise MalformedBody("the call has no message")
            request = _parse_message(message, pb.ModelInferRequest)
            del message
        self._request = None
        size = request.ByteSize()
        self.hold(size)
        if request.id and not self.by_name.get(b"x-request-id"):
            self.request_id = clean_id(request.id.encode()) or self.request_id
        if size <= MAX_INLINE_BYTES:
            return server.build_call(request)
        return await in_thread(BODY_THREADS, server.build_call, request)

    def respond(self, reply: Any) -> None:
        """See ``Ask.respond``."""
        self.response = reply
        own = self.with_version.headers if self.with_version is not None else ()
        lines = [(name.decode(), value.decode("latin-1")) for name, value in (*labels(self), *own)]
        self._context.set_trailing_metadata(tuple(lines))

    def refuse(self, error: GatewayError, route: Route) -> None:
        """See ``Ask.refuse``."""
        del route
        _refuse(self._context, error)


class StreamAsk(RpcAsk):
    """One request of a stream. Its answers, or its error, are messages of the stream."""

    __slots__ = ("_failed", "_marks_last", "_message", "_writes", "ends_stream")

    can_stream = True

    def __init__(self, server: RpcServer, context: Any, message: Any) -> None:
        super().__init__(server, context)
        self._message = message
        self._failed: Any = None
        self._marks_last = False
        self._writes: Any = None
        self.ends_stream = False
        """Whether the request was refused before it was read: the stream ends with it."""

    @property
    def is_unread(self) -> bool:  # type: ignore[override]  # a constant in the base class
        """Whether a message is to be written."""
        return self._writes is not None

    def check(self, timeout: float) -> float:
        """See ``Ask.check``; from now on, a refusal does not end the stream."""
        message, self._message = self._message, None
        self._request = request = _parse_message(message, pb.ModelInferRequest)
        self._marks_last = request.parameters["triton_enable_empty_final_response"].bool_param
        self._failed = pb.ModelInferResponse(id=request.id, model_name=request.model_name)
        return super().check(timeout)

    async def read(self, route: Route) -> Call:
        """See ``Ask.read``."""
        call = await super().read(route)
        call.streams = True
        return call

    def respond(self, reply: Any) -> None:
        """See ``Ask.respond``."""
        if reply is not None:
            self._writes = self._marked(reply, is_last=True)

    def refuse(self, error: GatewayError, route: Route) -> None:
        """See ``Ask.refuse``."""
        if self._failed is None:
            self.ends_stream = True
            super().refuse(error, route)
            return
        self._writes = pb.ModelStreamInferResponse(error_message=error.sentence, infer_response=self._failed)

    async def send(self, event: Event) -> None:
        """See ``Ask.send``."""
        version, call = self.with_version, self.call
        assert isinstance(call, RpcCall) and version is not None  # noqa: S101, PT018 - made here
        self.has_begun = True
        piece = {"text": event.text, "finish_reason": event.finish_reason or ""}
        tensors = {name: object_array([value.encode()]).reshape(1, 1) for name, value in piece.items()}
        response = _response(call, tensors, version)
        await self._context.write(self._marked(response, is_last=event.finish_reason is not None))

    async def drained(self) -> None:
        """Write the last message."""
        await in_task(self._context.write(self._writes))

    def _marked(self, response: Any, *, is_last: bool) -> Any:
        if self._marks_last:
            response.parameters["triton_final_response"].bool_param = is_last
        return pb.ModelStreamInferResponse(infer_response=response)


class RpcCall(oip.InferCall):
    """One inference that is answered with a ``ModelInferResponse``; a stream has one text."""

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        question = super().question(endpoint)
        if self.streams and endpoint.stream is not None:
            if len(question["text"]) != 1:
                raise InputRefused("a stream has one text", hint="send each text in a request of its own")
            question["text"] = question["text"][0]
        return question

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace) -> Any:
        """See ``Call.render``; returns a ``ModelInferResponse``."""
        return _response(self, self.tensors(answer, endpoint, trace), endpoint)


def _from_contents(tensor: Any, shape: list[int]) -> Any:
    field = _CONTENT_FIELDS.get(tensor.datatype)
    if field is None:
        raise InputRefused(f"{tensor.datatype} data must be sent as raw bytes: input {escaped(tensor.name)}")
    values = list(getattr(tensor.contents, field))
    if tensor.datatype != BYTES:
        return from_json(tensor.name, tensor.datatype, shape, values)
    if len(values) != math.prod(shape):
        raise wrong_size(tensor.name, len(values), shape)
    return object_array(values).reshape(shape)


def _response(call: RpcCall, tensors: Mapping[str, Any], endpoint: Endpoint) -> Any:
    identity = endpoint.identity
    response = pb.ModelInferResponse(model_name=identity.endpoint, model_version=identity.version or "1", id=call.id)
    for name, array in tensors.items():
        response.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        response.raw_output_contents.append(to_bytes(array))
    return response


def _parse_message(raw: bytes, kind: Any) -> Any:
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise MalformedBody(f"the message is not a {kind.DESCRIPTOR.name}") from None


def _refuse(context: Any, error: GatewayError) -> None:
    """Set ``error`` as the call's status; the call ends when its method returns.

    ``context.abort`` is not used: the exception that it raises and the call would keep each other, and all local
    variables of the method, in memory for ever, because the garbage collector does not see references inside gRPC.
    """
    trailing = (("x-error-code", error.kind), *((("x-refused-because", error.because),) if error.because else ()))
    other = grpc.StatusCode.INVALID_ARGUMENT if error.status < 500 else grpc.StatusCode.INTERNAL
    context.set_code(_CODES.get(error.status, other))
    context.set_details(error.sentence)
    context.set_trailing_metadata(trailing)
