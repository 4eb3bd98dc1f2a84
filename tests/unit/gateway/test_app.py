"""The whole worker over fakes: deployments answer, changes are swapped in, and failures stay isolated."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from gateway.metrics import catalog
from tests.expositions import parse


async def test_changed_model_is_swapped_without_a_failed_request(stack: Any) -> None:
    """The old version answers until the new one is ready."""
    stack.deploy("e", "m1")
    await stack.served("e")
    statuses: list[int] = []
    stop = asyncio.Event()

    async def load() -> None:
        while not stop.is_set():
            reply = await stack.client.post("/serve/e", json={"text": "good"})
            statuses.append(reply.status_code)

    callers = [asyncio.create_task(load()) for _ in range(4)]
    stack.add_text_model("m2")
    stack.registry.add_endpoint("e", "m2")
    await stack.until(lambda: stack.state("e")[0] == "pending")
    assert "m1" == stack.gateway.table.current.endpoints["e"].identity.model_id
    stack.load("e")
    await stack.until(lambda: stack.gateway.table.current.endpoints["e"].identity.model_id == "m2")
    stop.set()
    await asyncio.gather(*callers)
    assert {200} == set(statuses)


async def test_a_gateway_that_starts_on_an_unreadable_section_serves_the_last_good_state(served: Any) -> None:
    """It follows the Task again once that is fixed, and faults are counted until then. The broken section does not
    replace the good one on disk: without the registry, too, the same is served.
    """

    async def faults(client: Any) -> float:
        text = (await client.get("/metrics")).text
        return next(n for name, _, n in parse(text) if name == catalog.CONFIGURATION_FAULTS.name)

    def has_saved(url: str) -> bool:  # a change is on disk a moment after it is live
        return (saved := served.gateway._reconciler._store.load()) is not None and url in saved.served

    await served.until(lambda: has_saved("e"))
    served.registry.sections["endpoints"] = "br{ace {"
    await served.until(lambda: bool(served.gateway.table.current.faults))
    assert 1 == await faults(served.client)
    served.registry.is_up = False
    second = served.new_gateway()
    async with second.running(), served.new_client(second) as client:
        await served.until(lambda: "e" in second.table.current.endpoints)
        reply = await client.post("/serve/e", json={"text": "bad"})
        assert (200, "BAD") == (reply.status_code, reply.json()["label"])
        served.registry.is_up = True
        await served.until(lambda: ["section endpoints"] == [f.subject for f in second.table.current.faults])
        assert 200 == (await client.get("/v2/health/ready")).status_code
        del served.registry.sections["endpoints"]
        served.deploy("late")
        await served.until(lambda: {"e", "late"} == set(second.table.current.endpoints))
        assert () == second.table.current.faults
        assert 0 == await faults(client)


@pytest.mark.parametrize("prefix", ["", "/ml/gateway"])
async def test_the_pages_load_only_from_where_they_are(served: Any, prefix: str) -> None:
    """They work without Internet access, and behind a proxy that strips a prefix: also the requests that one tries."""
    outside = f"http://gateway{prefix}"

    async def get(address: str) -> httpx.Response:
        assert address.startswith(f"{outside}/"), address
        return await served.client.get(address.replace(outside, "http://gateway"))

    page = (await get(f"{outside}/docs")).text
    document = f"{outside}/openapi.json"
    addresses = [urljoin(f"{outside}/docs", found) for found in re.findall(r"(?:src=|href=|url: )[\"']([^\"']+)", page)]
    assert document in addresses
    assert len(addresses) >= 4
    addresses += [
        urljoin(f"{outside}/", found) for found in re.findall(r"href=(\w[\w/]*)", (await get(f"{outside}/")).text)
    ]
    for address in addresses:
        assert 200 == (await get(address)).status_code, address
    described = (await get(document)).json()
    assert "3.0.3" == described["openapi"]
    server = urljoin(document, described["servers"][0]["url"])
    assert f"{outside}/serve/e" == server.rstrip("/") + next(path for path in described["paths"] if "/serve/e" in path)


async def test_response_cache_answers_repeats_without_triton(stack: Any) -> None:
    """It is off by default. Hits and misses are counted, and the oldest answer is dropped first. Answers from it count
    for drift and the comparison of versions like others; only their texts were counted before.
    """
    stack.deploy("cached", auxiliary_cfg={"gateway": {"response_cache": "2"}})
    stack.deploy("plain", "m2")
    await stack.served("cached", "plain")
    answers, calls = {}, {}
    for endpoint in ("cached", "plain"):
        stack.backend.calls.clear()
        answers[endpoint] = [
            (await stack.client.post(f"/serve/{endpoint}", json={"text": text})).json()
            for text in ("good", "good", "bad", "film", "good")
        ]
        calls[endpoint] = len(stack.backend.calls)
    assert answers["cached"] == answers["plain"]
    assert {"cached": 4, "plain": 5} == calls
    counted: dict[tuple[str, str], float] = {}
    for name, labels, value in parse((await stack.client.get("/metrics")).text):
        if name in ("gateway_variable_scalar_count", "gateway_variable_enum_total", "gateway_cache_requests_total"):
            key = labels["endpoint"], labels.get("variable") or labels["result"]
            counted[key] = counted.get(key, 0.0) + value
    assert {("cached", "hit"): 1, ("cached", "miss"): 4, ("cached", "token_length"): 4, ("plain", "token_length"): 5,
            ("cached", "predicted_label"): 5}.items() <= counted.items()  # fmt: skip
    assert ("plain", "miss") not in counted


async def test_calls_have_no_more_rows_than_the_model_accepts(stack: Any) -> None:
    """Triton refuses more than max_batch_size, so a large request is split."""
    stack.deploy("e")
    info, run = stack.backend.models[stack.triton_name("e")]
    stack.backend.models[stack.triton_name("e")] = (replace(info, max_batch_size=8), run)
    await stack.served("e")
    stack.backend.calls.clear()
    reply = await stack.client.post("/serve/e", json={"text": ["good"] * 20})
    assert 200 == reply.status_code
    assert [8, 8, 4] == sorted((rows for _, rows in stack.backend.calls), reverse=True)


async def test_lineage_of_known_urls_is_shown(stack: Any) -> None:
    """Unknown ones are 404, a registry outage is 503."""
    stack.deploy("e", "m1", version="1")
    await stack.served("e/1")
    reply = await stack.client.get("/v1/endpoints/e/1/lineage")
    assert (200, "m1") == (reply.status_code, reply.json()["model"]["id"])
    answers = [await stack.client.post(f"/serve/e{at}", json={"text": "good"}) for at in ("/1", "?version=1")]
    assert ["m1"] * 2 == [answer.headers["x-model-id"] for answer in answers]
    assert 404 == (await stack.client.get("/v1/endpoints/e/9/lineage")).status_code
    stack.registry.is_up = False
    reply = await stack.client.get("/v1/endpoints/e/1/lineage")
    assert (503, "registry_unavailable") == (reply.status_code, reply.json()["code"])
