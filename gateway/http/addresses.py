"""The inference addresses: how requests to each are parsed, and in which form they are refused.

``models`` has the addresses that list models.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Final
from urllib.parse import parse_qs

from gateway.errors import EndpointNotFound
from gateway.http.problems import cohere_problem, oip_problem, openai_problem, problem, tei_problem
from gateway.path.call import TEXT_BYTES, Call, Route
from gateway.path.rights import INFO, MODELS, TEI, V1_MODELS
from gateway.path.routing import RoutingTable
from gateway.protocols import kserve, oip, openai, openai_text, rerank, tei
from gateway.protocols.json_body import decode
from gateway.protocols.serve import ServeCall
from gateway.protocols.tensors import read_request
from gateway.spec import normalize_url

ByName = Mapping[bytes, bytes]

LARGEST_BYTES: Final = 16 << 20
"""The most bytes of a body that is not JSON, or has tensors; as large as a message over gRPC."""
BATCH_BYTES: Final = 8 << 20
"""The most bytes of JSON with many texts: embeddings and reranking."""
_PREDICT: Final = "/predict"
_CHAT: Final = "/v1/chat/completions"
"""huggingface_hub also appends it to an endpoint's address."""
_PIPELINE: Final = "/pipeline/"
_RERANK: Final = {"/v1/rerank": 1, "/v2/rerank": 2}
_MAX_RECENT: Final = 256
"""Addresses whose routes are kept: at most as many bytes as their heads, 16 MiB."""
_EMBEDDINGS: Final = ("/v1/embeddings", "/embeddings")
_OPENAI: Final[Mapping[str, type[openai.EmbeddingsCall | openai_text.TextCall]]] = {
    "/v1/embeddings": openai.EmbeddingsCall,
    "/v1/completions": openai_text.CompletionsCall,
    _CHAT: openai_text.ChatCall,
}


class Addresses:
    """All inference addresses.

    ``prefix``: start of the endpoints' own addresses. ``max_body_bytes``: the most bytes of every body; 0: the limits
    of the addresses.
    """

    def __init__(self, table: RoutingTable, *, prefix: str, max_body_bytes: int = 0) -> None:
        self._table = table
        self._prefix = prefix
        self._max_body_bytes = max_body_bytes
        self.at = lru_cache(_MAX_RECENT)(self._at)
        """``at(path, query)`` returns how requests to an address are read; None if inference is not asked for there."""

    def _at(self, path: str, query: bytes = b"") -> Route | None:
        found, most = self._find(path, query), self._max_body_bytes
        return found._replace(max_json=most, max_other=0) if found is not None and most else found

    def _find(self, path: str, query: bytes) -> Route | None:
        if path.startswith(self._prefix):
            name = path[len(self._prefix) :]
            if path.endswith(_CHAT):
                return Route(partial(_named, openai_text.ChatCall, name[: -len(_CHAT)]), openai_problem)
            version = parse_qs(query.decode("latin-1")).get("version", [None])[0] if query else None
            name, _, task = name.partition(_PIPELINE)
            url = normalize_url(name, version)
            # A partial function with a keyword takes three times as long, and this is called for every request.
            parse = partial(ServeCall, url)
            parse = partial(parse, task=task) if task else parse
            return Route(parse, problem, url, TEXT_BYTES, LARGEST_BYTES)
        if path in _OPENAI:
            most = BATCH_BYTES if path in _EMBEDDINGS else TEXT_BYTES
            return Route(partial(_json, _OPENAI[path], ()), openai_problem, None, most)
        if path == _PREDICT:
            return Route(self._only, problem, None, TEXT_BYTES, LARGEST_BYTES)
        if path.startswith(TEI):
            return self._tei(path[len(TEI) :])
        if path in tei.ROUTES:
            return Route(partial(self._bare, path), tei_problem, None, BATCH_BYTES)
        if path in _RERANK:
            return Route(partial(self._rerank, path), cohere_problem, None, BATCH_BYTES)
        if path.startswith(V1_MODELS) and path.endswith(":predict"):
            url = normalize_url(path[len(V1_MODELS) + 1 : -len(":predict")])
            return Route(partial(_kserve, url), oip_problem, url)
        if path.startswith(MODELS) and path.endswith("/infer"):
            try:
                url, _ = oip.split_path(path[len(MODELS) :])
            except EndpointNotFound:
                return None  # ``models`` refuses it
            if not oip.may_be_version_one(url):
                return Route(partial(_infer, url), oip_problem, url, LARGEST_BYTES)
            return Route(
                lambda raw, headers: _infer(oip.resolve_version_one(self._table.current, url), raw, headers),
                oip_problem, None, LARGEST_BYTES,
            )  # fmt: skip
        return None

    def _only(self, raw: bytes, headers: ByName) -> Call:
        """Return a call of the only endpoint. Raises ``EndpointNotFound`` if there are several or none."""
        return ServeCall(tei.only(self._table.current, _PREDICT), raw, headers)

    def _tei(self, rest: str) -> Route | None:
        """What follows ``/tei/``: an endpoint, and a route of Text Embeddings Inference, or one that it shares."""
        known = (*_RERANK, *tei.ROUTES, *_EMBEDDINGS, INFO)
        route = next((one for one in known if rest.endswith(one)), "")
        name = rest.removesuffix(route)
        if route == INFO:
            return None
        if route in _EMBEDDINGS:
            return Route(partial(_named, openai.EmbeddingsCall, name), openai_problem, None, BATCH_BYTES)
        url = normalize_url(name)
        if route in _RERANK:
            ranks = partial(_json, rerank.RerankCall, (_RERANK[route], url))
            return Route(ranks, cohere_problem, url, BATCH_BYTES)
        return Route(partial(_json, tei.ROUTES.get(route, tei.ROOT), (url,)), tei_problem, url, BATCH_BYTES)

    def _bare(self, route: str, raw: bytes, headers: ByName) -> Call:
        body = _body(tei.ROUTES[route], raw, headers)
        return tei.ROUTES[route](body, tei.only(self._table.current, route))

    def _rerank(self, route: str, raw: bytes, headers: ByName) -> Call:
        """Read a body without ``model`` as at a bare route; one with ``texts`` has Text Embeddings Inference's form."""
        body = _body(rerank.RerankCall, raw, headers)
        if isinstance(body, dict) and body.get("model") is not None:
            return rerank.RerankCall(body, _RERANK[route])
        path = tei.only(self._table.current, route)
        if isinstance(body, dict) and "texts" in body:
            return tei.ROUTES["/rerank"](body, path)
        return rerank.RerankCall(body, _RERANK[route], path)


def _named(call: type[openai.EmbeddingsCall | openai_text.ChatCall], name: str, raw: bytes, headers: ByName) -> Call:
    """Parse a body for the model that the path names, whatever the body says."""
    body = _body(call, raw, headers)
    return call({**body, "model": name} if isinstance(body, dict) else body)


def _json(call: Any, more: tuple[Any, ...], raw: bytes, headers: ByName) -> Call:
    """Return ``call`` (a class or a route) of the body and ``more``."""
    made: Call = call(_body(call, raw, headers), *more)
    return made


def _kserve(url: str, raw: bytes, headers: ByName) -> Call:
    # The content type is ignored, as in the Open Inference Protocol: `curl -d` sets that of a form.
    del headers
    return kserve.PredictCall(decode(raw, b"", takes_bytes=False, form=kserve.PredictCall.form), url)


def _infer(url: str, raw: bytes, headers: ByName) -> Call:
    call = oip.InferCall(url)
    read_request(raw, headers.get(b"inference-header-content-length", b""), call)
    if call.parameters:
        call.apply_parameters()
    return call


def _body(call: Any, raw: bytes, headers: ByName) -> object:
    """Return the body of a call, a class or a route with an example of its ``form``."""
    return decode(raw, headers.get(b"content-type", b""), takes_bytes=False, form=call.form)
