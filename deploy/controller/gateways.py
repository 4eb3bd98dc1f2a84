"""The gateways that a controller looks at, as they are at each look."""

from __future__ import annotations

import socket
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.tools import http_client


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
    answers = {address: http_client.call_gateway(f"{address}/v1/status") for address in addresses(gateways)}
    return {a: r.content if r is not None and r.status == 200 else None for a, r in answers.items()}
