"""Operations over HTTP: health, metrics, status, the status page, and the OpenAPI document.

FastAPI serves these. The inference routes are in ``routes.py``; their documentation is here: the OpenAPI document lists
every deployed endpoint, with an example from its own description.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from swagger_ui_bundle import swagger_ui_path

from gateway.admin import feedback
from gateway.admin.page import POLICY, page
from gateway.errors import STATUS, EndpointNotFound, GatewayError, MethodNotAllowed
from gateway.health import Health
from gateway.http.problems import nothing_at, problem
from gateway.path.rights import FEEDBACK_PATH
from gateway.protocols.oip import EXTENSIONS

Status = Callable[[], dict[str, Any]]

_MAX_OPEN: Final = 20
"""The most endpoints whose curves are returned at once."""
_PAGE_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

_ERROR: Final = {
    "type": "object",
    "required": ["error", "code", "request_id"],
    "properties": {
        "error": {"type": "string", "description": "The problem, in one sentence."},
        "code": {"type": "string", "enum": sorted(STATUS), "description": "The kind of error."},
        "request_id": {"type": "string"},
        "hint": {"type": "string", "description": "A possible remedy."},
    },
}

_TAGS: Final = [{"name": name} for name in ("inference", "operations", "health")]
"""In the order of the page ``/docs``: what most people look for comes first."""


@functools.cache
def product_version() -> str:
    """Return the installed version of this package."""
    try:
        return version("triton-gateway")
    except PackageNotFoundError:
        return "0+unknown"


def build_ops(
    *,
    health: Health,
    status: Status,
    lately: Callable[[Sequence[str]], Awaitable[dict[str, Any]]],
    metrics: Callable[[str], Awaitable[tuple[bytes, str]]],
    lineage: Callable[[str], Awaitable[dict[str, Any] | None]],
    learned: Callable[[str], dict[str, Any] | None],
    serve_prefix: str,
) -> FastAPI:
    """Return the FastAPI application of all routes except inference.

    ``lately`` returns what was counted lately, with the curves of some endpoints.
    """
    app = FastAPI(
        title="triton-gateway",
        version=product_version(),
        description="Text in, answers out: tokenizes in front of NVIDIA Triton, follows a ClearML serving Task. "
        "Request forms of others (OpenAI, Text Embeddings Inference, Cohere, Open Inference Protocol) are in "
        "docs/http-api.md, not here.",
        docs_url=None,
        redoc_url=None,
        openapi_tags=_TAGS,
    )
    app.openapi_version = "3.0.3"  # the newest version that the bundled Swagger UI can show
    app.mount("/docs/static", StaticFiles(directory=str(swagger_ui_path)))

    @app.get("/docs", include_in_schema=False, response_class=HTMLResponse)
    async def docs() -> HTMLResponse:
        # Relative addresses: a proxy may serve the gateway below a prefix, which it strips.
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title="triton-gateway",
            swagger_js_url="docs/static/swagger-ui-bundle.js",
            swagger_css_url="docs/static/swagger-ui.css",
            swagger_favicon_url="docs/static/favicon-32x32.png",
        )

    @app.exception_handler(GatewayError)
    async def refused(request: Request, error: GatewayError) -> Response:
        status, headers, content = problem(error, request.headers.get("x-request-id", ""))
        return Response(content, status, {name.decode(): value.decode() for name, value in headers})

    @app.exception_handler(404)
    async def not_found(request: Request, _error: HTTPException) -> Response:
        return await refused(request, nothing_at(request.url.path))

    @app.exception_handler(405)
    async def wrong_method(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} is not possible at {ascii(request.url.path)[1:-1][:100]}"
        return await refused(request, MethodNotAllowed(message, allow=(error.headers or {}).get("Allow", "GET")))

    async def live() -> dict[str, bool]:
        """Return 200 as long as the process runs, whatever the state of Triton and the registry."""
        return {"live": True}

    async def ready() -> JSONResponse:
        """Return 200 if requests can be answered; `degraded` lists partial failures. Otherwise 503 with `reasons`."""
        reasons = health.reasons()
        return JSONResponse(
            {"ready": not reasons, "reasons": reasons, "degraded": health.degraded()}, 503 if reasons else 200
        )

    for path in ("/v2/health/live", "/livez", "/healthz"):
        app.add_api_route(path, live, methods=["GET"], tags=["health"], include_in_schema=path.startswith("/v2"))
    for path in ("/v2/health/ready", "/readyz"):
        app.add_api_route(
            path, ready, methods=["GET"], tags=["health"], include_in_schema=path.startswith("/v2"),
            responses={503: {"description": "Not ready; `reasons` says why."}},
        )  # fmt: skip

    @app.get("/metrics", tags=["operations"], response_class=Response)
    async def prometheus(request: Request) -> Response:
        """Return the metrics in Prometheus' text format, or as OpenMetrics (with exemplars) if a client accepts it."""
        content, media_type = await metrics(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": media_type})

    @app.get("/v1/status", tags=["operations"])
    async def current(request: Request) -> Response:
        """Return the routes, versions, model ids and states of this process, and versions that fail with the reason.

        `?open=ENDPOINT` (also several times) adds the curves of an endpoint's last hour.
        """
        opened = request.query_params.getlist("open")[:_MAX_OPEN]
        found = {**status(), **await lately(opened)}
        # Writing hundreds of endpoints takes milliseconds. A thread does it, so that no request waits.
        return Response(await asyncio.to_thread(orjson.dumps, found), media_type="application/json")

    @app.get("/v1/endpoints/{url:path}/lineage", tags=["operations"])
    async def came_from(url: str) -> JSONResponse:
        """Return the lineage of the model of an endpoint version (`endpoint/version`): Task, data, code, links."""
        return _of_served(url, await lineage(url.strip("/")))

    @app.get("/v1/endpoints/{url:path}/learned", tags=["operations"])
    async def what_was_learned(url: str) -> JSONResponse:
        """Return what a reference of an endpoint version needs besides counts: frequent words, mean embedding."""
        return _of_served(url, learned(url.strip("/")))

    @app.get("/v2", tags=["operations"])
    async def metadata() -> dict[str, Any]:
        """Return the server's name and version in the form of the Open Inference Protocol."""
        return {"name": "triton-gateway", "version": product_version(), "extensions": list(EXTENSIONS)}

    shown = page(serve_prefix)

    @app.get("/", include_in_schema=False)
    async def status_page() -> Response:
        return HTMLResponse(shown, headers=_PAGE_HEADERS)

    def openapi() -> dict[str, Any]:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes,
            openapi_version=app.openapi_version, servers=[{"url": "."}], tags=_TAGS,
        )  # fmt: skip
        for path in document["paths"].values():  # FastAPI declares a 422 of its own form, which no route answers
            for operation in path.values():
                operation["responses"].pop("422", None)
        document["components"] = {"schemas": {"Error": _ERROR}}
        document["paths"].update(_serve_paths(status(), serve_prefix))
        document["paths"][FEEDBACK_PATH] = {"post": feedback.OPERATION}
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
    return app


def _of_served(url: str, found: dict[str, Any] | None) -> JSONResponse:
    """Return what was found of a version. Raises ``EndpointNotFound`` without anything."""
    if found is None:
        raise EndpointNotFound(f"endpoint {ascii(url)[1:-1][:100]} is not served here")
    return JSONResponse(found)


def _serve_paths(status: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    paths: dict[str, Any] = {
        prefix + "{endpoint}": {"post": _operation("Call an endpoint", None, ["endpoint"])},
        prefix + "{endpoint}/{version}": {"post": _operation("Call a version", None, ["endpoint", "version"])},
    }
    known = {}
    for endpoint in status["endpoints"]:
        details = known[endpoint["url"]] = endpoint["details"]
        title = f"{endpoint['url']} ({details.get('task', 'model')})"
        paths[prefix + endpoint["url"]] = {"post": _operation(title, details, [])}
    for name, url in status.get("defaults", {}).items():
        paths[prefix + name] = {"post": _operation(f"{name} (default: {url})", known.get(url), [])}
    for name, shares in status["canaries"].items():
        parts = ", ".join(f"{share:.0%} {url}" for url, share in shares.items())
        details = next((known[url] for url in shares if url in known), None)
        paths[prefix + name] = {"post": _operation(f"{name} (canary: {parts})", details, [])}
    return paths


def _operation(summary: str, details: Mapping[str, Any] | None, parameters: list[str]) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {}}
    if details and "example" in details:
        content["example"] = details["example"]
    return {
        "summary": summary,
        "tags": ["inference"],
        "parameters": [
            {"name": p, "in": "path", "required": True, "schema": {"type": "string"}} for p in parameters
        ] + [
            {"name": "x-request-id", "in": "header", "schema": {"type": "string"}},
            {"name": "x-routing-key", "in": "header", "schema": {"type": "string"},
             "description": "Keeps a caller on one side of a canary."},
            {"name": "x-request-timeout-ms", "in": "header", "schema": {"type": "integer", "minimum": 1}},
        ],
        "requestBody": {"required": True, "content": {"application/json": content}},
        "responses": {
            "200": {"description": "The answer", "content": {"application/json": {"schema": {}}}},
            "default": {
                "description": "A refusal",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }  # fmt: skip
