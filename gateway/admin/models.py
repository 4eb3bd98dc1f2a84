"""Lists and describes the served models in each protocol's form: ``GET /v1/models``, ``/v2/models/…``,
``/v2/repository/index``, ``/info``. Inference is in ``addresses``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from gateway.callers.access import Access
from gateway.callers.rights import METADATA, Caller
from gateway.errors import InputRefused, MethodNotAllowed
from gateway.http.exchange import Exchange
from gateway.path.call import Reply
from gateway.path.rights import INFO, MODELS, TEI, V1_MODELS, rows_for, snapshot_for
from gateway.path.routing import RoutingTable
from gateway.protocols import oip, openai, tei
from gateway.protocols.json_body import rendered
from gateway.protocols.tensors import parse_json
from gateway.spec import normalize_url

Statistics = Callable[[], Awaitable[list[dict[str, Any]]]]
"""Returns the statistics of every version in the form of the protocol's statistics extension."""

_REPOSITORY: Final = "/v2/repository/"
_INDEX: Final = "/v2/repository/index"
_INDEX_BYTES: Final = 64 << 10
_JSON: Final = b"application/json"


class ModelRoutes:
    """Answers the paths that list or describe models; ``takes`` says which.

    ``started``: the process's start in Unix seconds. ``most``: requests that a worker takes at once.
    """

    def __init__(
        self,
        table: RoutingTable,
        statistics: Statistics,
        *,
        started: int,
        version: str = "",
        most: int = 0,
        access: Access | None = None,
    ) -> None:
        self._version = version
        self._most = most
        self._table = table
        self._access = access
        self._statistics = statistics
        self._started = started

    def takes(self, path: str) -> bool:
        """Return whether ``path`` is answered here."""
        return path.startswith((MODELS, V1_MODELS, _REPOSITORY, TEI)) or path == INFO

    async def answer(self, exchange: Exchange, caller: Caller | None = None) -> Reply:
        """Answer one request with what ``caller`` may see; None may see everything. Raises ``GatewayError``."""
        method = "GET" if exchange.method == "HEAD" else exchange.method
        status, answer = await self._answer(exchange, method, caller)
        if answer is None:
            return Reply(status, [(b"content-type", b"text/plain")], b"")
        content = rendered(answer)
        reply = content if isinstance(content, Reply) else Reply(200, [(b"content-type", _JSON)], content)
        return reply._replace(status=status)

    async def _answer(self, exchange: Exchange, method: str, caller: Caller | None) -> tuple[int, Any]:
        path = exchange.path
        snapshot = snapshot_for(caller, self._table.current)
        if path == _INDEX:
            _only_method(method, "POST")
            raw = await exchange.read_body(_INDEX_BYTES, lambda _size: None)
            only_ready = bool(raw) and parse_json(raw).get("ready") is True
            return 200, oip.index(snapshot, only_ready=only_ready)
        if path.startswith(_REPOSITORY):
            raise InputRefused(
                "models cannot be loaded or unloaded here: the ClearML serving Task lists what is served",
                hint="clearml-serving model add … / model remove …",
            )
        _only_method(method, "GET")
        if path == INFO or path.startswith(TEI):
            return 200, self._info(path, caller)
        if path in (V1_MODELS, V1_MODELS + "/"):
            return 200, openai.models(snapshot, self._started)
        if path.startswith(V1_MODELS):
            name = path[len(V1_MODELS) + 1 :].strip("/")
            self._require(caller, name)
            return 200, openai.model(self._table.current, name, self._started)
        if path == MODELS + "/stats":
            return 200, {"model_stats": rows_for(caller, await self._statistics())}
        return await self._answer_of_model(path, caller)

    def _info(self, path: str, caller: Caller | None) -> dict[str, Any]:
        snapshot = self._table.current
        if path == INFO:
            name = tei.only(snapshot_for(caller, snapshot), path)
        else:
            name = normalize_url(path[len(TEI) : -len(INFO)])
        self._require(caller, name)
        return tei.info(snapshot.resolve(name)[0], name, self._version, self._most)

    def _require(self, caller: Caller | None, url: str) -> None:
        if caller is not None and self._access is not None:
            self._access.require(caller, METADATA, url)

    async def _answer_of_model(self, path: str, caller: Caller | None) -> tuple[int, Any]:
        snapshot = self._table.current
        url, action = oip.split_path(path[len(MODELS) :])
        url = oip.resolve_version_one(snapshot, url)
        self._require(caller, url)
        if action == "ready":
            return (200, None) if await oip.is_ready(snapshot, url) else (503, {"error": f"{url} is not ready"})
        if action == "config":
            return 200, oip.describe(snapshot, url).config()
        if action == "stats":
            oip.representative(snapshot, url)
            return 200, {"model_stats": oip.statistics_of(snapshot, url, await self._statistics())}
        if action == "infer":
            raise MethodNotAllowed("an endpoint is called with POST", allow="POST")
        return 200, oip.describe(snapshot, url).metadata()


def _only_method(method: str, wanted: str) -> None:
    if method != wanted:
        raise MethodNotAllowed(f"{method} is not allowed here", allow=wanted)
