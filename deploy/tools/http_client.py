"""Small HTTP calls to our own servers on this machine or network: probes, status, one request of the demo.

Called by ``up``, by rollouts and by the commands that ask a gateway. Plain urllib without proxies: an ``http_proxy``
variable must not send a call for 127.0.0.1 elsewhere. Blocking; callers on an event loop use the ``async`` forms.
"""

from __future__ import annotations

import asyncio
import email.message
import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

KEY: Final = "TRITON_GATEWAY_KEY"
"""The variable with the key that commands show to gateways."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply of any status; ``content`` is the decoded JSON, None when it is none."""

    status: int
    headers: Mapping[str, str]
    content: Any


def call(url: str, *, body: object = None, timeout: float = 5.0, key: str = "") -> Answer | None:
    """GET ``url``, or POST ``body`` to it as JSON, with a gateway's ``key``; None when nothing answers there."""
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
    except (OSError, ValueError, http.client.HTTPException):  # ValueError: not an address at all
        return None


def fetch_text(url: str, timeout: float = 5.0, key: str = "") -> str | None:
    """GET ``url`` and return its text; None when nothing answers there with 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url, headers=shown(key))  # noqa: S310 - as above
        with opener.open(request, timeout=timeout) as reply:
            text: str = reply.read().decode("utf-8", "replace")
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return text


def call_gateway(url: str, *, body: object = None, timeout: float = 5.0) -> Answer | None:
    """``call`` a gateway, with this person's key if there is one."""
    return call(url, body=body, timeout=timeout, key=os.environ.get(KEY, ""))


def fetch_from_gateway(url: str) -> str | None:
    """``fetch_text`` of a gateway, with this person's key if there is one."""
    return fetch_text(url, key=os.environ.get(KEY, ""))


async def call_async(url: str, *, body: object = None, timeout: float = 5.0) -> Answer | None:
    """``call_gateway`` in a thread."""
    return await asyncio.to_thread(call_gateway, url, body=body, timeout=timeout)


async def is_ok(url: str) -> bool:
    """Say whether ``url`` answers 200 within five seconds."""
    answer = await asyncio.to_thread(call, url, timeout=5.0)
    return answer is not None and answer.status == http.HTTPStatus.OK


async def can_connect(url: str, environ: Mapping[str, str]) -> bool:
    """Say whether something listens at a server's address; True unasked where a proxy stands in between."""
    parts = urllib.parse.urlsplit(url)
    if any(environ.get(name) for name in (f"{parts.scheme}_proxy", f"{parts.scheme}_proxy".upper(), "ALL_PROXY")):
        return True
    try:
        port = parts.port or {"https": 443}.get(parts.scheme, 80)
        async with asyncio.timeout(5.0):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, ValueError):
        return False
    writer.close()
    return True


def shown(key: str) -> dict[str, str]:
    """Return the headers that show a gateway's key; none without one."""
    return {"authorization": f"Bearer {key}"} if key else {}


def reachable_host(host: str) -> str:
    """Return the address under which a server that listens on ``host`` is reached from here, as it goes into a URL."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - compared only
    return f"[{reached}]" if ":" in reached and not reached.startswith("[") else reached


def _answer(status: int, headers: email.message.Message, raw: bytes) -> Answer:
    try:
        content = json.loads(raw)
    except ValueError:
        content = None
    return Answer(status, {name.lower(): value for name, value in headers.items()}, content)
