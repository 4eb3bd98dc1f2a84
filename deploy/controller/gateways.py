"""The gateways that a controller looks at, as they are at each look."""

from __future__ import annotations

import math
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from deploy.controller.counters import Reading, Series, parse
from deploy.tools import http_client

T = TypeVar("T")
Status = Mapping[str, Any] | None

_AT_ONCE: Final = 8
"""Gateways that are asked at the same time."""
_SHARED_S: Final = 1.0
"""Seconds in which a reading serves whoever asks: every rollout and what is judged look at about the same time."""


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


def status_of(gateway: str) -> Status:
    """Return the ``/v1/status`` of a gateway; None if it does not answer."""
    answer = http_client.call_gateway(f"{gateway}/v1/status")
    return answer.content if answer is not None and answer.status == 200 else None


class Gateways:
    """Asks the gateways at ``addresses()``. Blocking; never raises; for several threads. ``clock``: seconds.

    ``fetch(url)`` returns a text, ``status(address)`` a gateway's ``/v1/status``; both None if it does not answer.
    """

    def __init__(
        self, addresses: Callable[[], Sequence[str]], *,
        fetch: Callable[[str], str | None] = http_client.fetch_from_gateway,
        status: Callable[[str], Status] = status_of, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._addresses, self._fetch, self._status, self._clock = addresses, fetch, status, clock
        self._known: dict[str, Series] = {}
        self._lock = threading.Lock()
        self._reading, self._until = Reading(), -math.inf

    def counters(self) -> Reading:
        """Return what all gateways have counted; who asks while they are asked waits for it."""
        with self._lock:
            if self._clock() >= self._until:
                self._reading = self._read()
                self._until = self._clock() + _SHARED_S
            return self._reading

    def statuses(self) -> Mapping[str, Status]:
        """Return the status of each gateway by address."""
        return self._asked(self._status)

    def _read(self) -> Reading:
        texts = self._asked(lambda address: self._fetch(f"{address.rstrip('/')}/metrics"))
        numbers = {address: parse(text, self._known) for address, text in texts.items() if text is not None}
        return Reading(numbers, tuple(address for address, text in texts.items() if text is None))

    def _asked(self, ask: Callable[[str], T]) -> dict[str, T]:
        """Ask several at a time: one that does not answer must not cost the others, or the lead, its time-out."""
        gateways = self._addresses()
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="gateways") as asking:
            return dict(zip(gateways, asking.map(ask, gateways), strict=True))
