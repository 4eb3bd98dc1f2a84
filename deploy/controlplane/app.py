"""The ASGI application: routes URLs and writes envelopes. The composition root of the control plane.

Each call is one transaction. Handlers run in worker threads, because SQLite and `fsync` block; the event loop only
moves bytes.
"""

import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from deploy.controlplane.access import Access, Identity
from deploy.controlplane.api import events, models, projects, tasks
from deploy.controlplane.api.call import Call, Clock, Handler
from deploy.controlplane.credentials import Credentials
from deploy.controlplane.envelope import API_VERSION, ApiError, JsonObject, envelope, validation_error
from deploy.controlplane.files import METHODS, FileServer, drained
from deploy.controlplane.store import Store, dumps, loads
from gateway.local_names import are_local

HANDLERS: Mapping[str, Handler] = {**projects.CALLS, **tasks.CALLS, **models.CALLS, **events.CALLS}
LOGIN = "auth.login"
# telemetry of newer clearml-serving containers: accepted and dropped, because our own metrics replace it
DROPPED = "serving.container_status_report"
# docs/clearml.md#the-embedded-server lists them
CALLS = frozenset({LOGIN, DROPPED, *HANDLERS})

_PATH = re.compile(r"^(?:v(?P<version>[^/]*)/)?(?P<name>[a-z_]+\.[a-z_]+)/?$")

_log = logging.getLogger("controlplane")


class ApiServer:
    """Turns an HTTP request into a call of one endpoint, and its result into an envelope."""

    def __init__(self, *, store: Store, access: Access) -> None:
        self._store = store
        self._access = access
        self._clock = Clock()

    async def handle(self, request: Request) -> Response:
        """Answer an API call. Web links, which the CLI and the SDK print, get the same 404 as an unknown call."""
        path = request.path_params["path"]
        match = _PATH.match(path)
        if request.method not in ("GET", "POST", "PUT"):
            return PlainTextResponse("Method not allowed", 405, {"Allow": "GET, POST, PUT"})
        name, version = (match["name"], match["version"] or API_VERSION) if match else (path, API_VERSION)
        outcome: JsonObject | ApiError
        try:
            if not re.fullmatch(r"\d+(\.\d+)?", version):
                raise ApiError(400, 2, "Request path has invalid version")
            if match is None:
                raise ApiError(404, 0, f"Unable to find endpoint /{path:.200} (this is an API without web pages)")
            identity = self._access.identify(request.headers.get("authorization"))
            if name not in CALLS:
                service, _, action = name.partition(".")
                raise ApiError(404, 0, f"Unable to find endpoint for service {service} and action {action}")
            outcome = await run_in_threadpool(self._answer, name, identity, await request.body(), request.query_params)
        except ApiError as error:
            await drained(request)
            outcome = error
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # noqa: BLE001 - the top of the request loop
            _log.exception("%s failed", name)
            outcome = ApiError(500, 0, f"General error ({type(error).__name__})")
        status = outcome.code if isinstance(outcome, ApiError) else 200
        return Response(dumps(envelope(name, version, outcome)), status, media_type="application/json")

    def _answer(self, name: str, identity: Identity, content: bytes, query: Mapping[str, str]) -> JsonObject:
        lines = _lines(content) if name == "events.add_batch" else []
        body = {} if lines else _object(content)
        if name == LOGIN:
            wanted = str(query.get("expiration_sec") or "")
            return {
                "token": self._access.issue(identity, int(wanted) if re.fullmatch(r"[0-9]{1,12}", wanted) else None)
            }
        if name == DROPPED:
            return {}
        try:
            with self._store.transaction() as tx:
                return HANDLERS[name](Call(identity=identity, tx=tx, clock=self._clock, body=body, lines=lines))
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as exc:
            _log.info("%s was refused", name, exc_info=exc)  # in case it is a fault of this server
            raise validation_error(f"a value of the body has a wrong type: {type(exc).__name__}: {exc!s:.200}") from exc


def build(
    *,
    state_dir: Path,
    store: Store,
    credentials: Credentials,
    local_names: Collection[str] | None = None,
) -> Starlette:
    """The application over an open store. With ``local_names``, it answers only to loopback names and these.

    It first removes leftovers of a crash. The caller closes the store afterwards.
    """
    access = Access(credentials)
    api = ApiServer(store=store, access=access)
    files = FileServer(directory=state_dir / "files", access=access)
    return Starlette(
        routes=[
            Route("/healthz", _health),
            Route("/files", files.handle, methods=METHODS),
            Route("/files/{path:path}", files.handle, methods=METHODS),
            Route("/{path:path}", api.handle, methods=METHODS),
        ],
        middleware=[] if local_names is None else [Middleware(_OnlyLocal, names=local_names)],
    )


class _OnlyLocal:
    """Refuses requests for other names: those of web pages that have their name resolve to this machine."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not are_local(scope["headers"], self._names):
            said = "This control plane answers only to local names: ask localhost, or start it with --public-url\n"
            await PlainTextResponse(said, 403)(scope, receive, send)
            return
        await self._app(scope, receive, send)


async def _health(_: Request) -> Response:
    return Response('{"status":"ok"}', media_type="application/json")


def _value(text: bytes, what: str) -> Any:
    try:
        return loads(text)
    except (ValueError, RecursionError) as exc:
        raise validation_error(f"{what} is not JSON, or nested too deeply") from exc


def _object(body: bytes) -> JsonObject:
    value = _value(body, "the body") if body.strip() else {}
    if not isinstance(value, dict):
        raise validation_error("the body must be a JSON object")
    return value


def _lines(body: bytes) -> list[JsonObject]:
    """JSON lines; a single object or a JSON list of objects is also accepted."""
    values = [_value(line, "a line of the batch") for line in body.splitlines() if line.strip()]
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return [item for item in flat if isinstance(item, dict)]
