"""The gateways that a controller looks at, as they are at each look."""

from __future__ import annotations

import socket
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from deploy.tools import http_client

T = TypeVar("T")

_AT_ONCE: Final = 8
"""Gateways that are asked at the same time."""


def addresses(gateways: Sequence[str]) -> list[str]:
    """Return one address for each gateway behind these: every address that a name of ``http://name:port`` has now."""
    found: list[str] = []
    for gateway in gateways:
        parts = urllib.parse.urlsplit(gateway)
        hosts = {parts.hostname or ""}
        if parts.scheme == "http" and parts.hostname:
            try:
                answers = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
                hosts = {str(answer[4][0]) for answer in answers}
            except OSError:
                pass  # it is asked by its name, which does not answer either
        if len(hosts) == 1:
            found.append(gateway)
        else:
            named = sorted(f"[{host}]" if ":" in host else host for host in hosts)
            found += [f"http://{host}:{parts.port or 80}" for host in named]
    return found


def status_of(gateways: Sequence[str]) -> Mapping[str, Mapping[str, Any] | None]:
    """Return the ``/v1/status`` of each gateway behind these addresses; None if it does not answer."""
    answers = _asked(addresses(gateways), lambda address: http_client.call_gateway(f"{address}/v1/status"))
    return {a: r.content if r is not None and r.status == 200 else None for a, r in answers.items()}


def counters(gateways: Sequence[str], fetch: Callable[[str], str | None]) -> dict[str, str | None]:
    """Return the ``/metrics`` of each of these addresses, with all series; None if it does not answer."""
    return _asked(gateways, lambda address: fetch(f"{address.rstrip('/')}/metrics?detail=full"))


def _asked(gateways: Sequence[str], ask: Callable[[str], T]) -> dict[str, T]:
    """Ask several at a time: one that does not answer must not cost the others, or the lead, its time-out."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="gateways") as asking:
        return dict(zip(gateways, asking.map(ask, gateways), strict=True))
