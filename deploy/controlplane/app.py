"""The ASGI application: routes URLs, reads bodies and writes envelopes. The composition root of the control plane.

Only `build` names concrete classes. `server` and tests call it. Endpoints run in worker threads, because SQLite and
`fsync` block; the event loop only moves bytes.
"""

import logging
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from deploy.controlplane import bodies, fields
from deploy.controlplane.access import Access
from deploy.controlplane.api.auth import AuthApi
from deploy.controlplane.api.call import Call, Handler
from deploy.controlplane.api.events import EventsApi
from deploy.controlplane.api.models import ModelsApi
from deploy.controlplane.api.projects import ProjectsApi
from deploy.controlplane.api.serving import ServingApi
from deploy.controlplane.api.tasks import TasksApi
from deploy.controlplane.bodies import LIMITS, Limits
from deploy.controlplane.clock import Clock, new_id
from deploy.controlplane.credentials import Credentials
from deploy.controlplane.envelope import (
    API_VERSION,
    ApiError,
    EndpointName,
    JsonObject,
    StoreBusy,
    refusal,
    reply,
    unknown_endpoint,
    validation_error,
)
from deploy.controlplane.files import Files
from deploy.controlplane.fileserver import FileServer
from deploy.controlplane.pages import Pages
from deploy.controlplane.store import Store, dumps, loads
from deploy.controlplane.tokens import Identity, Tokens
from deploy.tools.local_names import are_local

JSON = "application/json"

_ENDPOINT = re.compile(r"^(?:v(?P<version>\d+(?:\.\d+)?)/)?(?P<name>[a-z_]+\.[a-z_]+)/?$")
_BAD_VERSION = re.compile(r"^v[^/]*/(?P<name>[a-z_]+\.[a-z_]+)/?$")
_METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE"]
_FILE_METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE"]

_log = logging.getLogger("controlplane")


class ApiServer:
    """Turns an HTTP request into a call of one endpoint, and its result into an envelope."""

    def __init__(
        self,
        *,
        endpoints: Mapping[str, Handler],
        access: Access,
        pages: Pages,
        new_id: Callable[[], str],
        limits: Limits = LIMITS,
    ) -> None:
        self._endpoints = endpoints
        self._access = access
        self._pages = pages
        self._new_id = new_id
        self._limits = limits

    async def handle(self, request: Request) -> Response:
        """Answer an API call, or a browser that follows a web link."""
        path = str(request.path_params.get("path", ""))
        match = _ENDPOINT.match(path)
        if match is None:
            return await self._other(request, path)
        if request.method not in ("GET", "POST", "PUT"):
            return PlainTextResponse("Method not allowed", 405, {"Allow": "GET, POST, PUT"})
        endpoint = EndpointName(name=match["name"], requested_version=match["version"] or API_VERSION)
        try:
            bodies.require_small(request, self._limits)
            identity = self._access.identify(request.headers.get("authorization"))
            handler = self._endpoints.get(endpoint.name)
            if handler is None:
                raise unknown_endpoint(endpoint.name)
            body = await bodies.read(request, self._limits)
            data = await run_in_threadpool(_call, handler, endpoint, identity, request, body)
            return self._answer(200, reply(endpoint, data, call_id=self._new_id()))
        except ApiError as error:
            await bodies.discard(request, self._limits)
            return self._refuse(endpoint, error)
        except StoreBusy as error:
            # exactly 503: clients retry it by themselves, while a 500 makes them drop the write
            busy = ApiError(503, 0, f"The store is busy, try again ({error})")
            return self._refuse(endpoint, busy, headers={"Retry-After": "1"})
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # noqa: BLE001 - the top of the request loop
            _log.exception("%s failed", endpoint.name)
            return self._refuse(endpoint, ApiError(500, 0, f"General error ({type(error).__name__})"))

    async def _other(self, request: Request, path: str) -> Response:
        bad = _BAD_VERSION.match(path)
        if bad is not None:
            return self._refuse(EndpointName(name=bad["name"]), ApiError(400, 2, "Request path has invalid version"))
        if request.method not in ("GET", "HEAD"):
            return self._refuse(
                EndpointName(name=path or "/"), ApiError(404, 0, f"Unable to find endpoint for /{path}")
            )
        return HTMLResponse(await run_in_threadpool(self._pages.overview, path))

    def _refuse(self, endpoint: EndpointName, error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
        return self._answer(error.code, refusal(endpoint, error, call_id=self._new_id()), headers)

    def _answer(self, status: int, envelope: JsonObject, headers: Mapping[str, str] | None = None) -> Response:
        return Response(dumps(envelope), status, headers, JSON)


def build(
    *,
    state_dir: Path,
    store: Store,
    credentials: Credentials,
    clock: Clock | None = None,
    ids: Callable[[], str] = new_id,
    limits: Limits = LIMITS,
    local_names: Collection[str] | None = None,
) -> Starlette:
    """The application over an open store. With ``local_names``, it answers only to loopback names and these.

    It first removes leftovers of a crash. The caller closes the store afterwards.
    """
    clock = clock or Clock()
    tokens = Tokens(secret=credentials.token_secret, new_id=ids)
    access = Access(credentials=credentials, tokens=tokens)
    files = Files(store=store, directory=state_dir / "files")
    files.clean()
    models = ModelsApi(store=store, clock=clock, new_id=ids)
    tasks = TasksApi(store=store, clock=clock, new_id=ids, publish_model=models.publish_in)
    services = (
        AuthApi(tokens=tokens),
        ProjectsApi(store=store, clock=clock, new_id=ids),
        tasks,
        models,
        EventsApi(store=store, clock=clock),
        ServingApi(),
    )
    endpoints = {name: handler for service in services for name, handler in service.endpoints().items()}
    api = ApiServer(endpoints=endpoints, access=access, pages=Pages(store=store), new_id=ids, limits=limits)
    file_server = FileServer(files=files, access=access, limits=limits)
    return Starlette(
        routes=[
            Route("/healthz", _health),
            Route("/files", file_server.handle, methods=_FILE_METHODS),
            Route("/files/{path:path}", file_server.handle, methods=_FILE_METHODS),
            Route("/{path:path}", api.handle, methods=_METHODS),
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
    return Response('{"status":"ok"}', media_type=JSON)


def _call(handler: Handler, endpoint: EndpointName, identity: Identity, request: Request, body: bytes) -> JsonObject:
    lines = _lines(body) if endpoint.name == "events.add_batch" else []
    values = {} if lines else _object(body)
    fields.check(endpoint.name, values)
    return handler(
        Call(
            endpoint=endpoint,
            identity=identity,
            body=values,
            lines=lines,
            query=dict(request.query_params),
        )
    )


def _value(text: bytes, what: str) -> Any:
    try:
        value = loads(text)
    except ValueError as exc:
        raise validation_error(f"{what} is not JSON") from exc
    except RecursionError as exc:
        raise validation_error(f"{what} is nested too deeply") from exc
    if isinstance(value, list | dict) and fields.is_too_deep(value):
        raise validation_error(f"{what} is nested too deeply")
    return value


def _object(body: bytes) -> JsonObject:
    if not body.strip():
        return {}
    value = _value(body, "the body")
    if not isinstance(value, dict):
        raise validation_error("the body must be a JSON object")
    return value


def _lines(body: bytes) -> list[JsonObject]:
    """JSON lines; a single object or a JSON list of objects is also accepted."""
    lines: list[JsonObject] = []
    for line in body.splitlines():
        if not line.strip():
            continue
        value = _value(line, "a line of the batch")
        lines += [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]
    return lines
