"""The addresses of the gateways that a controller looks at."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from deploy.controller.gateways import addresses


def test_a_name_stands_for_every_gateway_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters of one gateway must not be taken for those of another."""

    def answers(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        if host == "gone":
            raise OSError
        hosts = {"peers": ("10.0.0.2", "10.0.0.1", "fd00::1"), "127.0.0.1": ("127.0.0.1",)}[host]
        return [(0, 0, 0, "", (one, port)) for one in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    assert ["http://10.0.0.1:8080", "http://10.0.0.2:8080", "http://[fd00::1]:8080"] == addresses(["http://peers:8080"])
    same = ["http://127.0.0.1:8080", "http://gone:80", "https://peers"]
    assert same == addresses(same)
