"""Canary requests through a whole gateway: fallback to stable, routing keys and metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from gateway.errors import ModelFailed
from gateway.registry.ledger import Record
from tests.expositions import render
from tests.waiting import soon

BODY = {"text": "good"}


async def start(stack: Any, shares: tuple[float, float] = (1.0, 0.0)) -> None:
    """Serve a canary ``c`` with the new version ``e/2`` and the stable one ``e/1``."""
    stack.deploy("e", "m1", version="1")
    stack.deploy("e", "m2", version="2")
    stack.registry.canary["c"] = {"endpoint": "c", "weights": list(shares), "load_endpoints": ["e/2", "e/1"]}
    stack.registry.ledger.write([Record("rollout", "c", {"endpoint": "c", "stable": "e/1"})])
    await stack.served("e/1", "e/2")
    await stack.until(lambda: "c" in stack.gateway.table.current.canaries)


def fails(_inputs: Any) -> Any:
    """A model that fails."""
    raise ModelFailed("no")


async def test_a_failing_canary_falls_back_to_stable_and_is_counted(stack: Any) -> None:
    """The caller gets the answer of stable: one request and one failure of the canary. A refusal is an answer. Another
    number of rows than was sent is the version's fault, also if the texts need several calls to the model.
    """

    async def ask(name: str, texts: int = 1) -> tuple[int, str, str, str]:
        body = {"text": ["good"] * texts if texts else ""}
        reply = await stack.client.post(f"/serve/{name}", json=body)
        route, model, by = (reply.headers[header] for header in ("x-route", "x-model-id", "x-served-by"))
        return reply.status_code, route, model, by

    await start(stack)
    assert (422, "canary", "m2", "e/2") == await ask("c", 0)
    shapes: list[tuple[tuple[int, ...], int]] = [((), 1), ((0, 2), 1), ((3, 2), 150), ((0,), 150)]
    stack.load("e/2", fails)
    assert (200, "fallback", "m1", "e/1") == await ask("c")
    for shape, texts in shapes:
        stack.load("e/2", lambda _inputs, shape=shape: {"logits": np.zeros(shape, np.float32)})
        assert (200, "fallback", "m1", "e/1") == await ask("c", texts)
        assert (502, "direct", "m2", "e/2") == await ask("e/2", texts)
    metrics = (await stack.client.get("/metrics")).text
    lines = [line for line in metrics.splitlines() if line.startswith(("gateway_requests_total{", "gateway_canary_f"))]
    assert {
        'gateway_requests_total{endpoint="e",outcome="input_refused",route="canary",version="2"} 1.0',
        'gateway_requests_total{endpoint="e",outcome="ok",route="fallback",version="1"} 5.0',
        'gateway_requests_total{endpoint="e",outcome="backend_garbage",route="direct",version="2"} 4.0',
        'gateway_canary_fallbacks_total{endpoint="e",outcome="model_failed",version="2"} 1.0',
        'gateway_canary_fallbacks_total{endpoint="e",outcome="backend_garbage",version="2"} 4.0',
    } == {line for line in lines if not line.endswith(" 0.0")}


async def test_the_routing_key_can_be_another_header(make_stack: Any) -> None:
    """Each key always gets the same version."""
    stack = make_stack(routing_key="X-Account")
    async with stack.gateway.running():
        await start(stack, (0.5, 0.5))

        async def side(key: str) -> str:
            reply = await stack.client.post("/serve/c", json=BODY, headers={"x-account": key})
            return str(reply.headers["x-served-by"])

        by_key = {f"u{i}": await side(f"u{i}") for i in range(30)}
        assert {"e/1", "e/2"} == set(by_key.values())
        assert by_key == {key: await side(key) for key in by_key}


async def test_metrics_say_until_when_a_rollout_is_guarded(stack: Any) -> None:
    """Only while it has not ended and its canary has a weight; a renewed guard alone changes no route."""
    running = {"endpoint": "c", "phase": "running", "canary": "e/2", "stable": "e/1", "guard": "ann"}
    name = "gateway_rollout_guarded_until_timestamp_seconds"

    def told() -> tuple[str, tuple[float, ...]]:
        lines = render(stack.gateway.observer.snapshot()).decode().splitlines()
        shares = stack.gateway.table.current.canaries["c"].shares
        guard = next((line.rpartition(" ")[2] for line in lines if line.startswith(name + "{")), "")
        return guard, tuple(shares.get(url, 0.0) for url in ("e/2", "e/1"))

    await start(stack, (0.1, 0.9))
    changes: list[tuple[dict[str, Any], tuple[float, float], str]] = [
        ({}, (0.1, 0.9), "1.6e+09"), ({"guarded_until": 1.7e9}, (0.1, 0.9), "1.7e+09"),
        ({"guard": "", "guarded_until": 0.0}, (0.1, 0.9), "0.0"), ({"phase": "promoted"}, (1.0, 0.0), ""),
        ({}, (0.1, 0.9), "1.6e+09"), ({}, (0.0, 1.0), ""), ({"guarded_until": "odd"}, (0.1, 0.9), ""),
    ]  # fmt: skip
    before: tuple[Any, Any] = None, None
    for own, weights, shown in changes:
        stack.registry.canary["c"]["weights"] = list(weights)
        stack.registry.ledger.write([Record("rollout", "c", {**running, "guarded_until": 1.6e9, **own})])
        assert await soon(lambda now=(shown, weights): told() == now)
        now = weights, stack.gateway.table.current.revision
        assert now[0] != before[0] or now[1] == before[1]
        before = now
