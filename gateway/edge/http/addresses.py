"""Which address is in which protocol: how a request to it is read, and how a failure is written there.

The only list of inference addresses; the ordinary route and the fast path ask it alike. What is served, listed in each
protocol's own way, is in ``models``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import parse_qs

from gateway.call import Call, Refuse, Reply
from gateway.dataplane.routing.table import RoutingTable
from gateway.edge.http.problems import oip_problem, openai_problem, problem
from gateway.errors import EndpointNotFound, GatewayError, NotPermitted
from gateway.protocols import kserve, oip, openai, openai_text
from gateway.protocols.json_body import decode
from gateway.protocols.serve import ServeCall
from gateway.protocols.tensors import read_request
from gateway.spec import normalize_url

ByName = Mapping[bytes, bytes]
Parse = Callable[[bytes, ByName], Call]
"""``parse(body, headers)``: a protocol's reading of a request. Raises ``GatewayError``."""

MODELS: Final = "/v2/models"
V1_MODELS: Final = "/v1/models"
_PREDICT: Final = "/predict"
_CHAT: Final = "/v1/chat/completions"
"""At the end of an endpoint's address it is what huggingface_hub puts there to chat with it."""
_OPENAI: Final[Mapping[str, Callable[[object], Call]]] = {
    "/v1/embeddings": openai.EmbeddingsCall,
    "/v1/completions": openai_text.CompletionsCall,
    _CHAT: openai_text.ChatCall,
}


class Reading(NamedTuple):
    """How requests to one address are read, and how they are refused."""

    parse: Parse
    refuse: Refuse
    path: str | None = None
    """Who is asked, if the address says so: if there is nobody, no body is read."""


class Addresses:
    """All of them. ``prefix``: what endpoints' own addresses begin with; ``key_field``: where a body has a routing
    key, name by name.
    """

    def __init__(self, table: RoutingTable, *, prefix: str, key_field: Sequence[str] = ()) -> None:
        self._table = table
        self._prefix = prefix
        self._key_field = key_field
        self.starts = tuple(start.encode() for start in (prefix, _PREDICT, "/v1/", MODELS))
        """One of these begins every address."""

    def at(self, path: str, query: bytes = b"") -> Reading | None:
        """Return how ``path`` is read; None if nothing is inferred there."""
        if path.startswith(self._prefix):
            name = path[len(self._prefix) :]
            if path.endswith(_CHAT):
                return Reading(partial(_chat, name[: -len(_CHAT)]), openai_problem)
            version = parse_qs(query.decode("latin-1")).get("version", [None])[0] if query else None
            url = normalize_url(name, version)
            return Reading(partial(ServeCall, url, self._key_field), problem, url)
        if path in _OPENAI:
            return Reading(partial(_openai, _OPENAI[path]), openai_problem)
        if path == _PREDICT:
            return Reading(self._only, _only_problem)
        if path.startswith(V1_MODELS) and path.endswith(":predict"):
            url = normalize_url(path[len(V1_MODELS) + 1 : -len(":predict")])
            return Reading(partial(_kserve, url), oip_problem, url)
        if path.startswith(MODELS) and path.endswith("/infer"):
            try:
                url, _ = oip.locate(path[len(MODELS) :])
            except EndpointNotFound:
                return None  # whoever tells of models says so
            return Reading(partial(self._infer, url), oip_problem)
        return None

    def _infer(self, url: str, raw: bytes, headers: ByName) -> Call:
        request = read_request(raw, headers.get(b"inference-header-content-length", b""), url)
        request.path = oip.settle(self._table.current, url)
        return oip.InferCall(request)

    def _only(self, raw: bytes, headers: ByName) -> Call:
        """The one thing this gateway serves. Raises ``EndpointNotFound`` if there are several, or none."""
        snapshot = self._table.current
        left = {url for url in snapshot.endpoints if not any(url in c.urls for c in snapshot.canaries.values())}
        found = sorted({*left, *snapshot.canaries})
        if len(found) == 1:
            return ServeCall(found[0], (), raw, headers)
        if not found:
            raise EndpointNotFound(
                "nothing is served here", hint="deploy an endpoint with `clearml-serving model add …`"
            )
        raise EndpointNotFound(
            f"/predict is for a gateway that serves one thing, this one serves {len(found)}",
            hint=f"call one of them by its name: {', '.join(found[:10])}",
        )


def _only_problem(error: GatewayError, request_id: str) -> Reply:
    """Whoever may not ask the one thing that is served has not named it, and is not told its name."""
    if isinstance(error, NotPermitted) and error.because == "endpoint_not_permitted":
        error = NotPermitted("this caller has no right to what is served here", because=error.because, hint=error.hint)
    return problem(error, request_id)


def _chat(name: str, raw: bytes, headers: ByName) -> Call:
    """The path names the model, whatever the body says."""
    body = decode(raw, _type_of(headers), takes_bytes=False)
    return openai_text.ChatCall({**body, "model": name} if isinstance(body, dict) else body)


def _openai(call: Callable[[object], Call], raw: bytes, headers: ByName) -> Call:
    return call(decode(raw, _type_of(headers), takes_bytes=False))


def _kserve(url: str, raw: bytes, headers: ByName) -> Call:
    return kserve.PredictCall(decode(raw, _type_of(headers), takes_bytes=False), url)


def _type_of(headers: ByName) -> bytes:
    return headers.get(b"content-type", b"")
