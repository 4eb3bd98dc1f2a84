"""The request forms of others at the HTTP edge: Hugging Face's ``/predict``, OpenAI's ``/v1``, KServe's ``/v1`` and the
Open Inference Protocol's ``/v2``, as bare ASGI beside ``ServeRoute``.

Every form goes through the same pipeline as ``/serve``: routing, canaries, pins, limits, deadlines, metrics and stage
times are the same. A form decides only how a body reads, how an answer is told, and what a refusal looks like.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gateway.dataplane.routing.table import RoutingTable
from gateway.dataplane.submit import Pipeline
from gateway.edge.http import body as bodies
from gateway.edge.http.edge import (
    NO_EXTENSIONS,
    Guard,
    Receive,
    Scope,
    Send,
    clean_id,
    labels,
    render,
    served_by,
    timeout_of,
)
from gateway.edge.http.fast import EXTENSION
from gateway.edge.http.problems import Headers, oip_problem, openai_problem, problem
from gateway.edge.http.sse import own_form, send_events, wants_stream
from gateway.endpoints.endpoint import Endpoint
from gateway.errors import EndpointNotFound, GatewayError, InputRefused, MethodNotAllowed
from gateway.protocols import huggingface, kserve, oip, openai, openai_text
from gateway.protocols.base import Call
from gateway.protocols.tensors import parse_json, read_request
from gateway.spec import normalize_url
from gateway.trace import FALLBACK, TRACEPARENT, Trace, parse_traceparent

Statistics = Callable[[], Awaitable[list[dict[str, Any]]]]
"""What every version has done, as the protocol's statistics extension tells it."""

Refuse = Callable[[GatewayError, str], tuple[int, Headers, bytes]]
Read = Callable[[bytes, Mapping[bytes, bytes]], Call]

_MODELS: Final = "/v2/models"
_V1_MODELS: Final = "/v1/models"
_INDEX: Final = "/v2/repository/index"
_OPENAI: Final[Mapping[str, Callable[[object], Call]]] = {
    "/v1/embeddings": openai.EmbeddingsCall,
    "/v1/completions": openai_text.CompletionsCall,
    "/v1/chat/completions": openai_text.ChatCall,
}
_PATHS: Final = frozenset({"/predict", *_OPENAI})


@dataclass(frozen=True, slots=True)
class Limits:
    """What ``FormRoutes`` needs of the settings; ``timeout`` in seconds."""

    max_body_bytes: int
    timeout: float
    key_header: str = "x-routing-key"
    allows_pins: bool = False


class FormRoutes:
    """Every path of the forms; ``takes`` says which. ``started`` is the process's start in unix seconds."""

    def __init__(
        self, pipeline: Pipeline, table: RoutingTable, limits: Limits, statistics: Statistics, *, started: int
    ) -> None:
        self._pipeline = pipeline
        self._table = table
        self._limits = limits
        self._statistics = statistics
        self._started = started
        self._key_header = limits.key_header.lower().encode()

    def takes(self, path: str) -> bool:
        """True for a path of one of the forms."""
        return path.startswith((_MODELS, _V1_MODELS, "/v2/repository/")) or path in _PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request of a form."""
        path, method = scope["path"], scope["method"]
        if path == "/predict":
            await self._infer(scope, receive, send, self._read_predict, problem)
        elif path in _OPENAI:
            await self._infer(scope, receive, send, partial(_read_openai, _OPENAI[path]), openai_problem)
        elif path.startswith(_V1_MODELS) and path.endswith(":predict"):
            name = path[len(_V1_MODELS) + 1 : -len(":predict")]
            await self._infer(scope, receive, send, lambda raw, h: _read_kserve(raw, h, name), oip_problem)
        elif path.startswith(_MODELS) and path.endswith("/infer") and method == "POST":
            await self._infer(scope, receive, send, lambda raw, h: self._read_infer(raw, h, path), oip_problem)
        else:
            await self._tell(scope, receive, send)

    async def chat(self, scope: Scope, receive: Receive, send: Send, endpoint: str) -> None:
        """Answer a chat at an endpoint's own address: the path names the model, whatever the body says."""

        def read(raw: bytes, headers: Mapping[bytes, bytes]) -> Call:
            body = bodies.decode(raw, headers.get(b"content-type", b""), takes_bytes=False)
            return openai_text.ChatCall({**body, "model": endpoint} if isinstance(body, dict) else body)

        await self._infer(scope, receive, send, read, openai_problem)

    # --- inference ----------------------------------------------------------------------------------------------------

    def _read_predict(self, raw: bytes, headers: Mapping[bytes, bytes]) -> Call:
        return PredictCall(bodies.decode(raw, headers.get(b"content-type", b""), takes_bytes=False), self._only())

    def _read_infer(self, raw: bytes, headers: Mapping[bytes, bytes], path: str) -> Call:
        url, _ = oip.locate(path[len(_MODELS) :])
        request = read_request(raw, headers.get(b"inference-header-content-length", b""), url)
        request.path = oip.settle(self._table.current, url)
        return oip.InferCall(request)

    def _only(self) -> str:
        """The one thing this gateway serves. Raises ``EndpointNotFound`` where there are several, or none."""
        snapshot = self._table.current
        left = {url for url in snapshot.endpoints if not any(url in c.urls for c in snapshot.canaries.values())}
        found = sorted({*left, *snapshot.canaries})
        if len(found) == 1:
            return found[0]
        if not found:
            raise EndpointNotFound(
                "nothing is served here", hint="deploy an endpoint with `clearml-serving model add …`"
            )
        raise EndpointNotFound(
            f"/predict is for a gateway that serves one thing, this one serves {len(found)}",
            hint=f"call one of them by its name: {', '.join(found[:10])}",
        )

    async def _infer(self, scope: Scope, receive: Receive, send: Send, read: Read, refuse: Refuse) -> None:
        headers = dict(scope["headers"])
        parent = parse_traceparent(headers[b"traceparent"]) if b"traceparent" in headers else ""
        TRACEPARENT.set(parent)
        pipeline = self._pipeline
        request_id = clean_id(headers.get(b"x-request-id", b"")) or f"{random.getrandbits(64):016x}"
        trace = pipeline.new_trace(request_id, parent)
        pipeline.started()
        guard = Guard(receive, asyncio.get_running_loop())
        try:
            if scope["method"] != "POST":
                raise MethodNotAllowed(f"{scope['method']} is not how an endpoint is called", hint="use POST")
            timeout_ms = headers.get(b"x-request-timeout-ms", b"")
            timeout = timeout_of(timeout_ms, self._limits.timeout) if timeout_ms else self._limits.timeout
            deadline = guard.start(timeout)
            limit = self._limits.max_body_bytes
            raw = await bodies.read(receive, limit=limit, announced=headers.get(b"content-length", b""))
            guard.has_body = True
            encoding = headers.get(b"content-encoding", b"")
            if encoding:
                raw = await bodies.unpacked(raw, encoding, limit=limit)
            call = read(raw, headers)
            endpoint = self._resolve(call.path, headers, trace)
            own = getattr(call, "timeout", None)
            if own is not None and own < timeout:
                guard.stop()
                deadline = guard.start(own)
            body = call.body(endpoint)
            if isinstance(call, openai_text.TextCall) and call.streams:
                await send_events(
                    send, pipeline, endpoint, body, trace, deadline, guard, form=call.answer_form, end=openai_text.END
                )
                return
            if isinstance(call, PredictCall) and wants_stream(endpoint, body):
                await send_events(
                    send, pipeline, endpoint, body, trace, deadline, guard,
                    form=huggingface.GenerationEvents() if call.is_translated else own_form,
                )  # fmt: skip
                return
            answer = await pipeline.answer(endpoint, body, trace, deadline, via=call.via)
            answered: Endpoint = endpoint if trace.route != FALLBACK else trace.fallback
            extra, told = call.tell(answer, answered, trace)
            if isinstance(told, bytes) and extra:
                status, out, content = 200, list(extra), told
            else:
                status, out, content = render(told)
                out += extra
            trace.status = status
            trace.close()
            out += answered.headers
            out += labels(trace)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not guard.ended_it():
                pipeline.failed(trace, error)
                raise
            known = pipeline.failed(trace, guard.reason or error)
            status, out, content = refuse(known, trace.request_id)
            trace.status = status
            out.append((b"x-request-id", trace.request_id.encode()))
            out += served_by(trace)
        finally:
            guard.stop()
            pipeline.finished(trace)
        if not guard.client_left:
            await _send(scope, send, status, out, content)

    def _resolve(self, path: str, headers: Mapping[bytes, bytes], trace: Trace) -> Endpoint:
        if self._limits.allows_pins and b"x-route-to" in headers:
            return self._pipeline.pin(normalize_url(headers[b"x-route-to"].decode("latin-1"), None), trace)
        key = headers.get(self._key_header)
        return self._pipeline.resolve(path, trace, None if key is None else key.decode("latin-1"))

    # --- what is served -----------------------------------------------------------------------------------------------

    async def _tell(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        request_id = clean_id(dict(scope["headers"]).get(b"x-request-id", b""))
        refuse = openai_problem if path.startswith("/v1/") else oip_problem
        try:
            status, told = await self._told(path, method, receive)
        except GatewayError as error:
            status, out, content = refuse(error, request_id)
        else:
            _, out, content = render(told) if told is not None else (200, [(b"content-type", b"text/plain")], b"")
        await _send(scope, send, status, out, content)

    async def _told(self, path: str, method: str, receive: Receive) -> tuple[int, Any]:
        snapshot = self._table.current
        if path == _INDEX:
            _only_method(method, "POST")
            raw = await bodies.read(receive, limit=self._limits.max_body_bytes, announced=b"")
            only_ready = bool(raw) and parse_json(raw).get("ready") is True
            return 200, oip.index(snapshot, only_ready=only_ready)
        if path.startswith("/v2/repository/"):
            raise InputRefused(
                "models are not loaded and unloaded here: what is served is in the ClearML serving Task",
                hint="clearml-serving model add … / model remove …",
            )
        _only_method(method, "GET")
        if path in (_V1_MODELS, _V1_MODELS + "/"):
            return 200, openai.models(snapshot, self._started)
        if path.startswith(_V1_MODELS):
            return 200, openai.model(snapshot, path[len(_V1_MODELS) + 1 :].strip("/"), self._started)
        if path == _MODELS + "/stats":
            return 200, {"model_stats": await self._statistics()}
        return await self._told_of_model(path)

    async def _told_of_model(self, path: str) -> tuple[int, Any]:
        snapshot = self._table.current
        url, action = oip.locate(path[len(_MODELS) :])
        url = oip.settle(snapshot, url)
        if action == "ready":
            return (200, None) if await oip.is_ready(snapshot, url) else (503, {"error": f"{url} is not ready"})
        if action == "config":
            return 200, oip.describe(snapshot, url).config()
        if action == "stats":
            oip.find(snapshot, url)
            return 200, {"model_stats": oip.statistics_of(snapshot, url, await self._statistics())}
        if action == "infer":
            raise MethodNotAllowed("an endpoint is called with POST", hint="use POST")
        return 200, oip.describe(snapshot, url).metadata()


class PredictCall:
    """``POST /predict``: the Hugging Face form (or ours) for the only thing that is served."""

    via = None

    def __init__(self, body: object, path: str) -> None:
        self.path = path
        self._body = body
        self._convert: huggingface.Convert | None = None

    def body(self, endpoint: Endpoint) -> object:
        """See ``Call.body``."""
        body = self._body
        if not endpoint.task or not isinstance(body, dict) or not huggingface.is_form(body):
            return body
        ours, self._convert = huggingface.read(endpoint.task, body)
        return ours

    @property
    def is_translated(self) -> bool:
        """True when the body was in the Hugging Face form."""
        return self._convert is not None

    def tell(self, answer: Any, endpoint: Endpoint, trace: Trace) -> tuple[Headers, Any]:
        """See ``Call.tell``."""
        del endpoint, trace
        return [], answer if self._convert is None else self._convert(answer)


def _read_openai(form: Callable[[object], Call], raw: bytes, headers: Mapping[bytes, bytes]) -> Call:
    return form(bodies.decode(raw, headers.get(b"content-type", b""), takes_bytes=False))


def _read_kserve(raw: bytes, headers: Mapping[bytes, bytes], name: str) -> Call:
    return kserve.PredictCall(bodies.decode(raw, headers.get(b"content-type", b""), takes_bytes=False), name)


def _only_method(method: str, wanted: str) -> None:
    if method != wanted:
        raise MethodNotAllowed(f"{method} is not possible here", hint=f"use {wanted}")


async def _send(scope: Scope, send: Send, status: int, headers: Headers, content: bytes) -> None:
    headers.append((b"content-length", str(len(content)).encode()))
    reply = scope.get("extensions", NO_EXTENSIONS).get(EXTENSION)
    if reply is not None and reply(status, headers, content):
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
