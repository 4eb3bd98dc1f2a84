"""The addresses of the gateways that a controller looks at."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from deploy.controller.counters import Reading, grown, parse
from deploy.controller.drift.references import variables
from deploy.controller.gateways import Gateways, addresses


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


def test_one_reading_serves_whoever_looks_at_about_the_same_time() -> None:
    """Two rollouts and the judging ask each gateway once; one that does not answer keeps what it had counted."""
    asked: list[str] = []
    now, pages = [0.0], {"http://a": 5.0, "http://b": 7.0}

    def fetch(url: str) -> str | None:
        asked.append(url)
        counted = pages.get(url.removesuffix("/metrics"))
        labels = 'endpoint="e",outcome="ok",route="stable",version="1"'
        return None if counted is None else f"gateway_requests_total{{{labels}}} {counted}\n"

    gateways = Gateways(lambda: ["http://a", "http://b"], fetch=fetch, clock=lambda: now[0])
    first = gateways.counters()
    assert [gateways.counters()] * 3 == [first] * 3
    assert ["http://a/metrics", "http://b/metrics"] == sorted(asked)

    now[0], pages["http://a"] = 2.0, 6.0
    last = pages.pop("http://b")
    second = gateways.counters().over(first)
    series = ("gateway_requests_total", "e", "1", "stable", "ok")
    assert (("http://b",), {series: 1.0}) == (second.missing, grown(first, second))
    now[0], pages["http://b"] = 4.0, last + 2
    assert {series: 2.0} == grown(second, gateways.counters().over(second)), "what it counted meanwhile is not lost"


def test_buckets_without_new_values_are_known_too() -> None:
    """A look has the bounds of every bucket, whatever came since the last one; of values it tells those of each bin."""
    name, key = "gateway_variable_scalar_bucket", ("e", "1", "top_score")
    text = name + '{{endpoint="e",version="1",variable="top_score",le="{}"}} {}\n'
    pages = [
        "".join(text.format(*one) for one in zip(("1", "2", "+Inf"), n, strict=True)) for n in ((5, 5, 5), (7, 7, 8))
    ]
    found = grown(*(Reading({"a": parse(page)}) for page in pages))
    assert {(name, *key, "1"): 2, (name, *key, "2"): 2, (name, *key, "+Inf"): 3} == found
    assert {key: {"1": 2, "2": 0, "+Inf": 1}} == variables(found)
