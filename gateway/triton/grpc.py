"""The Triton adapter of the backend port: the only file of the gateway that imports grpc and tritonclient.

Speaks the Open Inference Protocol over one ``grpc.aio`` channel per server. Tensors travel as raw bytes
(``raw_input_contents``) and come back as views of the received message: no per-element conversion in either direction.
Where Triton's HTTP answers too, inference takes that way (``backends.http``), which costs a fraction; gRPC then carries
everything else, and every call that HTTP did not answer.
Which servers there are and which one gets a call is decided with ``replicas``; a call that one of them could not take
(it is stopping, it is gone, it does not have the model yet) is made once more at another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb

from gateway.errors import BackendGarbage, BackendUnavailable, DeadlineExceeded, GatewayError, ModelNotReady
from gateway.trace import TRACEPARENT
from gateway.triton.errors import Complaint, translate
from gateway.triton.http import HttpCalls, NotAnswered, http_hosts
from gateway.triton.key import GRPC_HEADER, is_refusal, read_key
from gateway.triton.port import ModelInfo, TensorInfo, Tensors
from gateway.triton.replicas import ALIVE_S, QUIET_S, RESOLVE_S, Lookup, RepeatBudget, choose, parse_address, resolve
from gateway.triton.tensors import FROM_TRITON, pack, unpack
from gateway.triton.verdicts import decode

_log = logging.getLogger("triton_gateway.triton")

_SERVICE: Final = "/inference.GRPCInferenceService/"
_PROBE_S: Final = ALIVE_S

_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # a cluster's proxy for the world outside is no way to Triton
    # gRPC waits up to two minutes before it tries a lost server again; a restarted Triton must be found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A server that is gone without a word (its node is lost) must not keep calls until their deadline. Only while calls
    # run, and gRPC sends no more than two pings without data: Triton's default tolerates that.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)
_RETIRE_S: Final = 60.0
_FORGET_S: Final = 600.0
_MOST_REPLICAS: Final = 16


@dataclass(frozen=True, slots=True)
class TritonTls:
    """PEM files for TLS to Triton: the authority to trust (empty: the system's), and a client certificate with its key.

    ``name`` is what the server's certificate must be for; empty: the host of the address.
    """

    authority: str = ""
    certificate: str = ""
    key: str = ""
    name: str = ""

    def files(self) -> tuple[str, ...]:
        """Return the files that are named."""
        return tuple(name for name in (self.authority, self.certificate, self.key) if name)

    def changed(self) -> tuple[float, ...]:
        """Return when the files were changed. Raises ``OSError`` for one that cannot be read."""
        return tuple(Path(name).stat().st_mtime for name in self.files())

    def credentials(self) -> Any:
        """Read the files. Raises ``OSError``."""
        authority, certificate, key = (
            Path(name).read_bytes() if name else None for name in (self.authority, self.certificate, self.key)
        )
        return grpc.ssl_channel_credentials(authority, key, certificate)


class _Replica:
    """One Triton: a channel, its methods, and what the calls to it have shown."""

    __slots__ = (
        "_channel", "address", "asked", "calls", "config", "in_flight", "index", "infer", "is_out", "live", "metadata",
        "missing", "ready", "stream",
    )  # fmt: skip

    def __init__(self, address: str, channel: Any) -> None:
        self.address = address
        self._channel = channel
        self.in_flight = 0
        self.is_out = False
        self.calls: set[Any] = set()
        self.asked: asyncio.Task[None] | None = None
        """Finds out whether it is alive, while a call has waited for long."""
        self.missing: set[str] = set()
        self.infer = self._method("ModelInfer", pb.ModelInferRequest, pb.ModelInferResponse)
        self.stream = channel.stream_stream(
            _SERVICE + "ModelStreamInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        self.ready = self._method("ModelReady", pb.ModelReadyRequest, pb.ModelReadyResponse)
        self.live = self._method("ServerLive", pb.ServerLiveRequest, pb.ServerLiveResponse)
        self.metadata = self._method("ModelMetadata", pb.ModelMetadataRequest, pb.ModelMetadataResponse)
        self.config = self._method("ModelConfig", pb.ModelConfigRequest, pb.ModelConfigResponse)
        self.index = self._method("RepositoryIndex", pb.RepositoryIndexRequest, pb.RepositoryIndexResponse)

    def _method(self, name: str, request: Any, response: Any) -> Any:
        return self._channel.unary_unary(
            _SERVICE + name, request_serializer=request.SerializeToString, response_deserializer=response.FromString
        )

    async def has(self, model: str) -> bool | None:
        """Whether it has the model now; None when it does not answer."""
        try:
            return bool((await self.ready(pb.ModelReadyRequest(name=model), timeout=_PROBE_S)).ready)
        except grpc.RpcError as error:
            known = _translate(error, model, self.address)
            return None if isinstance(known, BackendUnavailable | DeadlineExceeded) else False

    async def probe(self) -> bool:
        """Find out whether it answers, and what it has got meanwhile of what it did not have."""
        try:
            is_live = bool((await self.live(pb.ServerLiveRequest(), timeout=_PROBE_S)).live)
        except grpc.RpcError:
            is_live = False
        if is_live:
            for model in tuple(self.missing):
                if await self.has(model):
                    self.missing.discard(model)
        if self.is_out == is_live:
            _log.info("Triton at %s %s", self.address, "gets calls" if is_live else "does not answer")
        self.is_out = not is_live
        return is_live

    async def close(self, *, within: float = 0.0) -> None:
        """Let calls in flight end, for ``within`` seconds at most, and close the channel."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within):
                    while self.in_flight:  # noqa: ASYNC110 - rare, and nothing waits for it
                        await asyncio.sleep(0.05)
        finally:
            await self._channel.close()


class TritonBackend:
    """One Triton, or all replicas behind one name or list of addresses. ``http`` as ``http_hosts`` takes it.

    ``key_file`` holds the key of Triton's control APIs, sent with the one question that needs it: why a model is not
    ready. Without it everything works, and that reason is not known.
    """

    def __init__(
        self,
        address: str,
        *,
        compression: bool = False,
        options: Sequence[tuple[str, Any]] = (),
        http: str = "off",
        tls: TritonTls | None = None,
        key_file: Path | None = None,
        lookup: Lookup = resolve,
        lookup_every: float = RESOLVE_S,
    ) -> None:
        self.address = address
        self._lookup = lookup
        self._lookup_every = lookup_every
        self.replicas = 1
        self._target = target = parse_address(address)
        self._options = dict(_OPTIONS) | dict(options)
        self._key_file = key_file
        self._compression = grpc.Compression.Gzip if compression else None
        self._tls = tls or (TritonTls() if target.is_secure else None)
        # Compression is asked for where the network is dear: what HTTP would send is not compressed, nor is it TLS.
        hosts = [] if compression or self._tls else http_hosts(address, http)
        self._http = HttpCalls(address, hosts, self.is_live) if hosts else None
        self._tls_changed: tuple[float, ...] = ()
        self._replicas: list[_Replica] = []
        self._models: dict[str, float] = {}
        """When each model was asked for the last time: what a new replica should have."""
        self._turn = 0
        self._budget = RepeatBudget()
        self._resolve_due = 0.0
        self._resolving: asyncio.Lock = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        self._problem = ""
        if target.fixed:
            self._join(target.fixed)

    def _count(self) -> None:
        self.replicas = max(1, sum(not replica.is_out for replica in self._replicas))

    async def infer(
        self, model: str, inputs: Tensors, outputs: Sequence[str], *, timeout: float, request_id: str = ""
    ) -> dict[str, NDArray[Any]]:
        """Run one inference; see ``Backend.infer``."""
        self._models[model] = time.monotonic()
        parent = TRACEPARENT.get()
        http = self._http
        if http is not None and http.is_up:
            loop = asyncio.get_running_loop()
            began = loop.time()
            try:
                return await http.infer(model, inputs, outputs, timeout=timeout, request_id=request_id, parent=parent)
            except (NotAnswered, ModelNotReady):  # a server that leaves or has just come; gRPC may know another
                timeout -= loop.time() - began
        request = _request(model, inputs, outputs, request_id)
        metadata = (("traceparent", parent),) if parent else None
        return _unpack(await self._call(model, request, timeout, metadata))

    async def _call(self, model: str, request: Any, timeout: float, metadata: Any) -> Any:
        if not self._replicas:
            await self._refresh()
        tried: tuple[_Replica, ...] = ()
        deadline = 0.0
        refusal: GatewayError | None = None
        self._budget.earn()
        while True:
            replicas = self._replicas
            self._turn += 1
            replica = replicas[0] if len(replicas) == 1 and not tried else choose(replicas, model, self._turn, tried)
            if replica is None:
                raise refusal or self._unresolved()
            if deadline:
                timeout = deadline - asyncio.get_running_loop().time()
            elif len(replicas) > 1:
                deadline = asyncio.get_running_loop().time() + timeout
            replica.in_flight += 1
            doubt = asyncio.get_running_loop().call_later(QUIET_S, self._doubt, replica) if len(replicas) > 1 else None
            call = replica.infer(request, timeout=timeout, metadata=metadata)
            replica.calls.add(call)
            try:
                return await call
            except (grpc.RpcError, asyncio.CancelledError) as error:
                if isinstance(error, grpc.RpcError):
                    refusal = _translate(error, model, replica.address)
                elif call in replica.calls or _is_cancelled():  # the caller left
                    raise
                else:
                    refusal = translate("unavailable", "no sign of life", model=model, address=replica.address)
                tried += (replica,)
                if isinstance(refusal, BackendUnavailable):
                    replica.is_out = True
                    self._count()
                    may_repeat = self._budget.spend(len(tried))
                else:
                    # Without the model nothing was run there: asking on costs little.
                    may_repeat = isinstance(refusal, ModelNotReady) and len(tried) < _MOST_REPLICAS
                    if may_repeat:
                        replica.missing.add(model)
                # Of one server nothing is known that another attempt could change.
                if len(self._replicas) < 2 or not may_repeat:
                    raise refusal from error
            finally:
                replica.in_flight -= 1
                replica.calls.discard(call)
                if doubt is not None:
                    doubt.cancel()

    def _doubt(self, replica: _Replica) -> None:
        """Ask a server that owes an answer whether it is alive, unless it is being asked."""
        if replica.calls and (replica.asked is None or replica.asked.done()):
            replica.asked = asyncio.create_task(self._ask_alive(replica), name=f"triton-alive {replica.address}")

    async def _ask_alive(self, replica: _Replica) -> None:
        if await replica.probe():
            # Slow, and alive: its calls wait. It is asked again as long as there are any.
            asyncio.get_running_loop().call_later(QUIET_S, self._doubt, replica)
        elif len(self._replicas) > 1:
            self._count()
            given_up = tuple(replica.calls)
            replica.calls.clear()  # so that they are told from calls whose caller left
            for call in given_up:
                call.cancel()

    async def stream(
        self, model: str, inputs: Tensors, outputs: Sequence[str], *, timeout: float, request_id: str = ""
    ) -> AsyncGenerator[dict[str, NDArray[Any]], None]:
        """See ``Backend.stream``: one gRPC stream per request, so that ending it ends exactly this request.

        A server without the model, or that does not answer, is passed over as long as nothing has come.
        """
        if not self._replicas:
            await self._refresh()
        request = _request(model, inputs, outputs, request_id)
        # The flag is then in a response of its own where the model ends without a last token.
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        parent = TRACEPARENT.get()
        metadata = (("traceparent", parent),) if parent else None
        until = asyncio.get_running_loop().time() + timeout
        tried: tuple[_Replica, ...] = ()
        refusal: GatewayError | None = None
        while True:
            self._turn += 1
            replica = choose(self._replicas, model, self._turn, tried)
            if replica is None:
                raise refusal or self._unresolved()
            has_begun = False
            try:
                left = until - asyncio.get_running_loop().time()
                async with aclosing(self._responses(replica, request, left, metadata)) as responses:
                    async for response in responses:
                        has_begun = True
                        yield response
            except (ModelNotReady, BackendUnavailable) as error:
                tried += (replica,)
                refusal = error
                if isinstance(error, ModelNotReady):
                    replica.missing.add(model)
                if has_begun or len(self._replicas) < 2 or len(tried) >= _MOST_REPLICAS:
                    raise
            else:
                return

    async def _responses(
        self, replica: _Replica, request: Any, timeout: float, metadata: Any
    ) -> AsyncGenerator[dict[str, NDArray[Any]], None]:
        model = request.model_name
        call = replica.stream(timeout=timeout, metadata=metadata)
        replica.in_flight += 1
        try:
            await call.write(request)
            while True:
                message = await call.read()
                if message is grpc.aio.EOF:
                    raise BackendUnavailable(f"Triton at {replica.address} ended the stream", retry_after=1)
                if message.error_message:
                    raise _stream_error(message.error_message, model, replica.address)
                response = message.infer_response
                if response.outputs:
                    yield _unpack(response)
                if response.parameters["triton_final_response"].bool_param:
                    return
        except grpc.RpcError as error:
            raise _translate(error, model, replica.address) from error
        finally:
            replica.in_flight -= 1
            call.cancel()

    async def is_live(self) -> bool:
        """See ``Backend.is_live``; also finds out who is behind the name now, and who of them answers."""
        await self._refresh()
        if not self._replicas:
            return False
        # Versions that were replaced are on no new replica: nobody need look for them.
        forgotten = time.monotonic() - _FORGET_S
        self._models = {model: at for model, at in self._models.items() if at > forgotten}
        for replica in self._replicas:
            replica.missing &= self._models.keys()
        found = await asyncio.gather(*(replica.probe() for replica in self._replicas))
        self._count()
        return any(found)

    async def is_ready(self, model: str) -> bool:
        """See ``Backend.is_ready``."""
        await self._refresh()
        self._models[model] = time.monotonic()
        replicas = self._replicas
        found = await asyncio.gather(*(replica.has(model) for replica in replicas))
        for replica, has in zip(replicas, found, strict=True):
            if has:
                replica.missing.discard(model)
            elif has is False:
                replica.missing.add(model)
        # Who does not answer is not waited for: it gets no calls either.
        answered = [has for has in found if has is not None]
        return bool(answered) and all(answered)

    async def why_not_ready(self, model: str) -> str:
        """See ``Backend.why_not_ready``."""
        reason = f"Triton at {self.address} does not answer" + (f" ({self._problem})" if self._problem else "")
        for replica in self._replicas:
            try:
                index = await self._index(replica)
            except grpc.RpcError as error:
                if is_refusal(error.details() or ""):
                    reason = (
                        f"Triton at {replica.address} does not have the model, and says why only with its key "
                        "(TRITON_GATEWAY_TRITON_KEY_FILE); model sync's log has the reason"
                    )
                continue
            entries = [m for m in index.models if m.name == model]
            if entries and entries[0].state == "READY":
                continue
            where = f" (at {replica.address})" if len(self._replicas) > 1 else ""
            if not entries:
                return f"Triton does not have the model yet{where}"
            text = str(entries[0].reason or entries[0].state or "Triton is loading it")
            return f"{decode(text) or text.splitlines()[0][:300]}{where}"
        return reason

    async def _index(self, replica: _Replica) -> Any:
        try:
            key = read_key(self._key_file or "")
        except ValueError as error:
            _log.warning("%s", error)
            key = ""
        metadata = ((GRPC_HEADER, key),) if key else None
        return await replica.index(pb.RepositoryIndexRequest(), timeout=_PROBE_S, metadata=metadata)

    async def refusal(self, model: str) -> str:
        """See ``Backend.refusal``; Triton keeps the reason of the last load in its index."""
        for replica in self._replicas:
            try:
                index = await self._index(replica)
            except grpc.RpcError:
                continue
            reasons = [str(m.reason) for m in index.models if m.name == model and m.state == "UNAVAILABLE"]
            if not reasons or reasons[0] in ("", "unloaded"):
                continue
            where = f" (at {replica.address})" if len(self._replicas) > 1 else ""
            verdict = decode(reasons[0])
            if verdict is None:
                return f"Triton refuses the model: {reasons[0].splitlines()[0][:300]}{where}"
            if verdict.is_final:
                return f"{verdict}{where}"
        return ""

    async def describe(self, model: str) -> ModelInfo:
        """See ``Backend.describe``. Whoever describes a model is about to call it: HTTP is looked for."""
        if self._http is not None:
            await self._http.start()
        await self._refresh()
        replica = choose(self._replicas, model, 0, ())
        if replica is None:
            raise self._unresolved()
        try:
            metadata = await replica.metadata(pb.ModelMetadataRequest(name=model), timeout=_PROBE_S)
            config = await replica.config(pb.ModelConfigRequest(name=model), timeout=_PROBE_S)
        except grpc.RpcError as error:
            raise _translate(error, model, replica.address) from error
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
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        for replica in self._replicas:
            if replica.asked is not None:
                replica.asked.cancel()
            await replica.close()

    async def _refresh(self) -> None:
        """Bring the replicas up to what the name says and the certificates on disk, when it is time to look."""
        if self._target.fixed and self._tls is None:
            return
        async with self._resolving:
            now = asyncio.get_running_loop().time()
            if now < self._resolve_due:
                return
            self._resolve_due = now + self._lookup_every
            addresses = self._target.fixed
            if not addresses:
                try:
                    addresses = await self._lookup(self._target.host, self._target.port)
                except OSError as error:
                    # Those known go on: a name server that is away says nothing about Triton.
                    self._problem = f"{self._target.host}: {error.strerror or error}"
                    return
            self._problem = ""
            self._join(addresses)

    def _join(self, addresses: Sequence[str]) -> None:
        known = {replica.address: replica for replica in self._replicas}
        # Beside others a new one gets its first call when it has answered, and has what they have.
        is_beside = bool(known)
        if self._tls is not None:
            try:
                changed = self._tls.changed()
                if known and changed != self._tls_changed:
                    _log.info("certificates for Triton at %s have changed: connecting anew", self.address)
                    known, is_beside = {}, False
                self._tls_changed = changed
                credentials = None if known.keys() >= set(addresses) else self._tls.credentials()
            except OSError as error:
                self._problem = f"TLS: {error}"
                return
        else:
            credentials = None
        if [*known] == [*addresses]:
            return
        replicas = []
        for address in addresses:
            replica = known.pop(address, None)
            if replica is None:
                replica = _Replica(address, self._channel(address, credentials))
                if is_beside:
                    replica.is_out = True
                    replica.missing = set(self._models)
            replicas.append(replica)
        gone = [replica for replica in self._replicas if replica not in replicas]
        if self._replicas:
            _log.info("Triton at %s is now %s", self.address, ", ".join(addresses))
        self._replicas = replicas
        self._count()
        for replica in gone:
            task = asyncio.get_running_loop().create_task(replica.close(within=_RETIRE_S))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    def _channel(self, address: str, credentials: Any) -> Any:
        options = dict(self._options)
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options=list(options.items()), compression=self._compression)
        if name := self._tls.name or self._target.host:
            options |= {"grpc.ssl_target_name_override": name, "grpc.default_authority": name}
        return grpc.aio.secure_channel(
            address, credentials, options=list(options.items()), compression=self._compression
        )

    def _unresolved(self) -> BackendUnavailable:
        return BackendUnavailable(
            f"Triton at {self.address} cannot be reached" + (f" ({self._problem})" if self._problem else ""),
            hint="it may be starting: try again shortly", retry_after=1,
        )  # fmt: skip


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _request(model: str, inputs: Tensors, outputs: Sequence[str], request_id: str) -> Any:
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
    return request


def _stream_error(message: str, model: str, address: str) -> GatewayError:
    """A stream carries errors as text alone; the model's own come as they were written there."""
    text = message.splitlines()[0][:300]
    known = translate("unavailable", text, model=model, address=address)
    return (
        known if not isinstance(known, BackendUnavailable) else translate("failed", text, model=model, address=address)
    )


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
