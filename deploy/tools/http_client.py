"""Small HTTP calls to our own servers on this machine or network: probes, status, single requests.

Called by ``up``, by rollouts and by commands that call a gateway. Uses urllib without proxies, because an
``http_proxy`` variable must not redirect a call to 127.0.0.1. Blocking; code on an event loop uses the async functions.
"""

from __future__ import annotations

import asyncio
import email.message
import http.client
import json
import os
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

KEY: Final = "TRITON_GATEWAY_KEY"
"""The variable with the API key that commands send to gateways."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply of any status; ``content`` is the decoded JSON, or None if it is not JSON."""

    status: int
    headers: Mapping[str, str]
    content: Any


def call(url: str, *, body: object = None, timeout: float = 5.0, key: str = "") -> Answer | None:
    """GET ``url``, or POST ``body`` to it as JSON, with a gateway's ``key``. Return None if nothing answers."""
    data = None if body is None else json.dumps(body).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(  # noqa: S310 - every address here is http and ours
            url, data=data, headers={**({"content-type": "application/json"} if data else {}), **shown(key)}
        )
        with opener.open(request, timeout=timeout) as reply:
            return _answer(reply.status, reply.headers, reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return _answer(error.code, error.headers, error.read())
    except (OSError, ValueError, http.client.HTTPException):  # ValueError: not a valid address
        return None


def fetch_text(url: str, timeout: float = 5.0, key: str = "") -> str | None:
    """GET ``url`` and return its text; None if the answer is not 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url, headers=shown(key))  # noqa: S310 - as above
        with opener.open(request, timeout=timeout) as reply:
            text: str = reply.read().decode("utf-8", "replace")
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return text


def call_gateway(url: str, *, body: object = None, timeout: float = 5.0) -> Answer | None:
    """Like ``call``, for a gateway: with the key of TRITON_GATEWAY_KEY, if set."""
    return call(url, body=body, timeout=timeout, key=os.environ.get(KEY, ""))


def fetch_from_gateway(url: str) -> str | None:
    """Like ``fetch_text``, for a gateway: with the key of TRITON_GATEWAY_KEY, if set."""
    return fetch_text(url, key=os.environ.get(KEY, ""))


async def call_async(url: str, *, body: object = None, timeout: float = 5.0) -> Answer | None:
    """Run ``call_gateway`` in a thread."""
    return await asyncio.to_thread(call_gateway, url, body=body, timeout=timeout)


async def is_ok(url: str) -> bool:
    """Return True if ``url`` answers 200 within five seconds."""
    answer = await asyncio.to_thread(call, url, timeout=5.0)
    return answer is not None and answer.status == http.HTTPStatus.OK


def listens(url: str, environ: Mapping[str, str] | None = None) -> bool:
    """Return True if something accepts connections at a server's address; always if ``environ`` names a proxy."""
    parts = urllib.parse.urlsplit(url)
    proxies = (f"{parts.scheme}_proxy", f"{parts.scheme}_proxy".upper(), "ALL_PROXY")
    if environ is not None and any(environ.get(name) for name in proxies):
        return True
    try:
        port = parts.port or {"https": 443}.get(parts.scheme, 80)
        with socket.create_connection((parts.hostname or "", port), timeout=5.0):
            return True
    except (OSError, ValueError):
        return False


def shown(key: str) -> dict[str, str]:
    """Return the headers with a gateway's key; empty without a key."""
    return {"authorization": f"Bearer {key}"} if key else {}


def reachable_host(host: str) -> str:
    """Return the host for URLs by which a server that listens on ``host`` is reached from this machine."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - compared only
    return f"[{reached}]" if ":" in reached and not reached.startswith("[") else reached


def _answer(status: int, headers: email.message.Message, raw: bytes) -> Answer:
    try:
        content = json.loads(raw)
    except ValueError:
        content = None
    return Answer(status, {name.lower(): value for name, value in headers.items()}, content)
