"""The names by which programs of this machine ask a server that listens on loopback.

A web page can have its own name resolve to 127.0.0.1 (DNS rebinding); a browser then lets it read what answers there.
Such requests carry the page's name as ``Host``. Public: ``deploy`` may import it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from ipaddress import ip_address
from typing import Final

_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]*?)\.?)(?::\d*)?")


def is_loopback(host: str) -> bool:
    """Return whether a name or an address means this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def are_local(headers: Iterable[tuple[bytes, bytes]], names: Collection[str]) -> bool:
    """Return whether every ``Host`` among a request's headers is a loopback name or one of ``names``."""
    return all(
        is_loopback(host) or host in names
        for host in (_host(value) for name, value in headers if name == b"host") if host
    )  # fmt: skip


def _host(value: bytes) -> str:
    """Return the name in a ``Host`` header without its port, in lower case."""
    text = value.decode("latin-1").strip().lower()
    found = _HOST.fullmatch(text)
    return text if found is None else found[1] or found[2]
