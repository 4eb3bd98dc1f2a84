"""Small HTTP calls to our own servers on this machine or network: probes, status, single requests.

Called by ``up``, by rollouts and by commands that call a gateway. Uses urllib without proxies, because an
``http_proxy`` variable must not redirect a call to 127.0.0.1. Blocking; code on an event loop uses the async functions.
"""

from __future__ import annotations

import asyncio
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
    """A reply of any status."""

    status: int
    raw: bytes

    @property
    def content(self) -> Any:
        """The decoded JSON; None if it is not JSON."""
        try:
            return json.loads(self.raw)
        except ValueError:
            return None


def call(url: str, *, body: object = None, timeout: float = 5.0, key: str = "") -> Answer | None:
    """GET ``url``, or POST ``body`` to it as JSON, with a gateway's ``key``. Return None if nothing answers."""
    data = None if body is None else json.dumps(body).encode()
    headers = {} if data is None else {"content-type": "application/json"}
    headers |= {"authorization": f"Bearer {key}"} if key else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - every address is http and ours
        with opener.open(request, timeout=timeout) as reply:
            return Answer(reply.status, reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read())
    except (OSError, ValueError, http.client.HTTPException):  # ValueError: not a valid address
        return None


def call_gateway(url: str, *, body: object = None, timeout: float = 5.0) -> Answer | None:
    """Like ``call``, for a gateway: with the key of TRITON_GATEWAY_KEY, if set."""
    return call(url, body=body, timeout=timeout, key=os.environ.get(KEY, ""))


def fetch_from_gateway(url: str) -> str | None:
    """GET a gateway's ``url`` and return its text; None if the answer is not 200."""
    answer = call_gateway(url)
    return None if answer is None or answer.status != http.HTTPStatus.OK else answer.raw.decode("utf-8", "replace")


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


def reachable_host(host: str) -> str:
    """Return the host for URLs by which a server that listens on ``host`` is reached from this machine."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - compared only
    return f"[{reached}]" if ":" in reached and not reached.startswith("[") else reached
