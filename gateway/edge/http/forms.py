"""The request forms of others at the HTTP edge: Hugging Face's ``/predict``, OpenAI's ``/v1``, KServe's ``/v1`` and the
Open Inference Protocol's ``/v2``: which path is in which protocol, and the lists of what is served.

Inference goes the same way as ``/serve`` (``InferRoute``): routing, canaries, pins, limits, deadlines, metrics and
stage times are the same. A protocol decides how a body reads, how an answer is written, and what a refusal looks like.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from gateway.call import Call, Reply
from gateway.dataplane.routing.table import RoutingTable
from gateway.edge.http import body as bodies
from gateway.edge.http.edge import NO_EXTENSIONS, Receive, Scope, Send, clean_id
from gateway.edge.http.fast import EXTENSION
from gateway.edge.http.problems import oip_problem, openai_problem, problem
from gateway.edge.http.routes import InferRoute, Limits
from gateway.errors import EndpointNotFound, GatewayError, InputRefused, MethodNotAllowed
from gateway.protocols import kserve, oip, openai, openai_text
from gateway.protocols.json_body import decode, rendered
from gateway.protocols.serve import ServeCall
from gateway.protocols.tensors import parse_json, read_request

Statistics = Callable[[], Awaitable[list[dict[str, Any]]]]
"""What every version has done, as the protocol's statistics extension tells it."""

_MODELS: Final = "/v2/models"
_V1_MODELS: Final = "/v1/models"
_INDEX: Final = "/v2/repository/index"
_INDEX_BYTES: Final = 64 << 10
_JSON: Final = b"application/json"
_OPENAI: Final[Mapping[str, Callable[[object], Call]]] = {
    "/v1/embeddings": openai.EmbeddingsCall,
    "/v1/completions": openai_text.CompletionsCall,
    "/v1/chat/completions": openai_text.ChatCall,
}
_PATHS: Final = frozenset({"/predict", *_OPENAI})


class FormRoutes:
    """Every path of the forms; ``takes`` says which. ``started`` is the process's start in unix seconds."""

    def __init__(
        self, route: InferRoute, table: RoutingTable, limits: Limits, statistics: Statistics, *, started: int
    ) -> None:
        self._route = route
        self._table = table
        self._limits = limits
        self._statistics = statistics
        self._started = started

    def takes(self, path: str) -> bool:
        """True for a path of one of the forms."""
        return path.startswith((_MODELS, _V1_MODELS, "/v2/repository/")) or path in _PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request of a form."""
        path, method = scope["path"], scope["method"]
        answer = partial(self._route.answer, scope, receive, send)
        if path == "/predict":
            await answer(self._read_predict, problem)
        elif path in _OPENAI:
            await answer(partial(_read_openai, _OPENAI[path]), openai_problem)
        elif path.startswith(_V1_MODELS) and path.endswith(":predict"):
            await answer(partial(_read_kserve, path[len(_V1_MODELS) + 1 : -len(":predict")]), oip_problem)
        elif path.startswith(_MODELS) and path.endswith("/infer") and method == "POST":
            await answer(partial(self._read_infer, path), oip_problem)
        else:
            await self._tell(scope, receive, send)

    async def chat(self, scope: Scope, receive: Receive, send: Send, endpoint: str) -> None:
        """Answer a chat at an endpoint's own address: the path names the model, whatever the body says."""

        def read(raw: bytes, headers: Mapping[bytes, bytes]) -> Call:
            body = decode(raw, headers.get(b"content-type", b""), takes_bytes=False)
            return openai_text.ChatCall({**body, "model": endpoint} if isinstance(body, dict) else body)

        await self._route.answer(scope, receive, send, read, openai_problem)

    # --- inference ----------------------------------------------------------------------------------------------------

    def _read_predict(self, raw: bytes, headers: Mapping[bytes, bytes]) -> Call:
        return ServeCall(self._only(), raw, headers.get(b"content-type", b""))

    def _read_infer(self, path: str, raw: bytes, headers: Mapping[bytes, bytes]) -> Call:
        url, _ = oip.locate(path[len(_MODELS) :])
        request = read_request(raw, headers.get(b"inference-header-content-length", b""), url)
        request.path = oip.settle(self._table.current, url)
        return oip.InferCall(request)

    def _only(self) -> str:
        """The one thing this gateway serves. Raises ``EndpointNotFound`` if there are several, or none."""
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

    # --- what is served -----------------------------------------------------------------------------------------------

    async def _tell(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        request_id = clean_id(dict(scope["headers"]).get(b"x-request-id", b""))
        refuse = openai_problem if path.startswith("/v1/") else oip_problem
        try:
            status, told = await self._told(path, method, receive)
        except GatewayError as error:
            reply = refuse(error, request_id)
        else:
            content = rendered(told) if told is not None else Reply(200, [(b"content-type", b"text/plain")], b"")
            reply = content if isinstance(content, Reply) else Reply(200, [(b"content-type", _JSON)], content)
            reply = reply._replace(status=status)
        await _send(scope, send, reply)

    async def _told(self, path: str, method: str, receive: Receive) -> tuple[int, Any]:
        snapshot = self._table.current
        if path == _INDEX:
            _only_method(method, "POST")
            raw = await bodies.read(receive, limit=_INDEX_BYTES, announced=b"", hold=lambda _size: None)
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


def _read_openai(form: Callable[[object], Call], raw: bytes, headers: Mapping[bytes, bytes]) -> Call:
    return form(decode(raw, headers.get(b"content-type", b""), takes_bytes=False))


def _read_kserve(name: str, raw: bytes, headers: Mapping[bytes, bytes]) -> Call:
    return kserve.PredictCall(decode(raw, headers.get(b"content-type", b""), takes_bytes=False), name)


def _only_method(method: str, wanted: str) -> None:
    if method != wanted:
        raise MethodNotAllowed(f"{method} is not possible here", hint=f"use {wanted}")


async def _send(scope: Scope, send: Send, reply: Reply) -> None:
    status, headers, content = reply
    headers = [*headers, (b"content-length", str(len(content)).encode())]
    at_once = scope.get("extensions", NO_EXTENSIONS).get(EXTENSION)
    if at_once is not None and at_once(status, headers, content):
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
