"""Shadow traffic through a whole gateway: which requests are mirrored, what is measured, and that callers are not
affected.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.errors import (
    BackendGarbage,
    BackendUnavailable,
    DeadlineExceeded,
    Draining,
    GatewayError,
    HookFailed,
    InputRefused,
    ModelFailed,
    ModelNotReady,
    Overloaded,
)
from gateway.handlers.neighbours import LEAST
from gateway.handlers.shadow import agree
from gateway.metrics import catalog
from gateway.outcome import in_task
from gateway.registry.ledger import Record
from gateway.trace import CLASSES
from tests import expositions
from tests.waiting import LIMIT_S
from tests.words import text_bundle

BODY = {"text": "good film"}


def shadow(stack: Any, percent: float = 100.0, to: str = "e/2", name: str = "e", **fields: Any) -> None:
    """Configure a shadow."""
    stored = {"endpoint": name, "to": to, "percent": percent, "tolerance": 0.1, **fields}
    stack.registry.ledger.write([Record("shadow", name, stored)])


def scores(good: float) -> Callable[..., Any]:
    """Return a model that gives every text the same logits."""
    return lambda inputs: {"logits": np.array([[0.0, good]] * len(inputs["input_ids"]), np.float32)}


async def mirror(stack: Any, **fields: Any) -> None:
    """Configure a shadow and wait until it is on. No time ends a mirrored request: a machine may be slow."""
    stack.gateway._mirror._timeout = LIMIT_S
    shadow(stack, **fields)
    await stack.until(lambda: any(one["is_on"] for one in seen(stack).values()))


async def start(stack: Any, **fields: Any) -> None:
    """Serve two versions of ``e`` with a shadow on the second."""
    stack.deploy("e", "m1", version="1")
    stack.deploy("e", "m2", version="2")
    await stack.served("e/1", "e/2")
    await mirror(stack, **fields)


def seen(stack: Any) -> dict[str, Any]:
    """Return the status of the shadows."""
    return dict(stack.gateway._status()["shadows"])


def counted(stack: Any, endpoint: str = "e") -> dict[str, int]:
    """Return how many mirrored requests there were of each outcome."""
    found = expositions.counted(stack.gateway.observer.snapshot(), catalog.SHADOWS)
    return {
        outcome: int(found.get((endpoint, "2", outcome), 0)) for outcome in ("agreed", "differed", "failed", "dropped")
    }


async def mirrored(stack: Any, count: int, endpoint: str = "e") -> dict[str, int]:
    """Wait until ``count`` requests were mirrored or dropped, and return how many of each outcome."""
    await stack.until(lambda: sum(counted(stack, endpoint).values()) == count)
    return counted(stack, endpoint)


def fails(stack: Any, error: GatewayError) -> None:
    """Let the shadow fail."""

    async def answer(_question: object, _ask: object) -> object:
        raise error

    stack.gateway.table.current.endpoints["e/2"].answer = answer


async def test_answers_are_compared_and_counted(stack: Any, tmp_path: Path) -> None:
    """A label of another name is the one at its position. Requests of one text are also counted by group."""
    for version, labels in (("1", ["BAD", "GOOD"]), ("2", ["negative", "positive"])):
        stack.add_package(f"n{version}", text_bundle(tmp_path / version, id2label=dict(enumerate(labels))))
        stack.deploy("e", f"n{version}", version=version)
    stack.load("e/2", scores(1.0))
    await stack.served("e/1", "e/2")
    await mirror(stack)
    for text in ("good", "the good film", "bad", ["good", "good film"]):
        reply = await stack.client.post("/serve/e/1", json={"text": text})
        assert ("e/1", "direct") == (reply.headers["x-served-by"], reply.headers["x-route"])
    assert {"agreed": 3, "differed": 1, "failed": 0, "dropped": 0} == await mirrored(stack, 4)
    lines = (await stack.client.get("/metrics")).text.splitlines()
    counts = [line for line in lines if "requests_total{" in line and not line.endswith(" 0.0")]
    assert {
        'gateway_shadow_requests_total{endpoint="e",outcome="agreed",version="2"} 3.0',
        'gateway_shadow_requests_total{endpoint="e",outcome="differed",version="2"} 1.0',
        'gateway_requests_total{endpoint="e",outcome="ok",route="direct",version="1"} 4.0',
    } == {line for line in counts if 'endpoint="e"' in line and "group=" not in line}
    assert {
        ("label GOOD", "agreed", "2"), ("label BAD", "differed", "1"), ("up to 8 tokens", "agreed", "2"),
        ("up to 8 tokens", "differed", "1"), ("language en", "agreed", "1"), ("language none", "agreed", "1"),
        ("language none", "differed", "1"),
    } == {*re.findall(r'group="(.*?)",outcome="(.*?)".* (\d)', "\n".join(counts))}  # fmt: skip


async def test_the_configured_share_of_requests_is_mirrored(stack: Any) -> None:
    """At random, also of those through a canary. What the shadow version itself has answered is never mirrored."""
    await start(stack, percent=25.0)
    stack.registry.canary["c"] = {"endpoint": "c", "weights": [0.5, 0.5], "load_endpoints": ["e/2", "e/1"]}
    await stack.until(lambda: "c" in stack.gateway.table.current.canaries)
    stack.gateway._mirror._random = iter([i / 100 for i in range(100)]).__next__
    served = [(await stack.client.post("/serve/c", json=BODY)).headers["x-served-by"] for _ in range(30)]
    for _ in range(100 - served.count("e/1")):
        await stack.client.post("/serve/e/1", json=BODY)
        await asyncio.sleep(0)
    assert 25 == (await mirrored(stack, 25))["agreed"]


async def test_a_failure_of_the_version_is_counted_and_want_of_capacity_or_time_is_not(stack: Any) -> None:
    """A refusal of what stable answers is another answer. The reason is shown; it stays while only the share changes
    (a rollout mirrors more at first), and a changed tolerance begins anew.
    """
    await start(stack)
    outcomes = {
        ModelFailed("no memory"): "failed", BackendGarbage("NaN"): "failed", HookFailed("KeyError"): "failed",
        InputRefused("too long"): "differed", Overloaded("full"): "dropped", DeadlineExceeded("late"): "dropped",
        BackendUnavailable("away"): "dropped", ModelNotReady("loading"): "dropped", Draining("bye"): "dropped",
    }  # fmt: skip
    for number, (error, outcome) in enumerate(outcomes.items(), 1):
        fails(stack, error)
        before = counted(stack)
        await stack.client.post("/serve/e/1", json=BODY)
        found = await mirrored(stack, number)
        assert {outcome} == {name for name in found if found[name] > before[name]}
        assert error.message == seen(stack)["e"]["last_failure"]
    assert [] == stack.gateway.health.reasons()
    for changed, shown in (({"percent": 50.0}, "bye"), ({"percent": 50.0, "tolerance": 0.5}, None)):
        shadow(stack, **changed)
        await stack.until(lambda changed=changed: changed.items() <= seen(stack)["e"].items())
        assert shown == seen(stack)["e"]["last_failure"]


def hold(stack: Any) -> tuple[asyncio.Event, list[str]]:
    """Let the shadow answer nothing until the event is set; returns the class of each request as well."""
    gate = asyncio.Event()
    held: list[str] = []

    async def slow(_question: object, ask: Any) -> object:
        held.append(CLASSES[ask.flow.rank])
        await gate.wait()
        return {"label": "GOOD"}

    stack.gateway.table.current.endpoints["e/2"].answer = lambda question, ask: in_task(slow(question, ask))
    return gate, held


async def test_few_requests_are_mirrored_at_a_time_in_the_last_class_and_the_others_are_dropped(stack: Any) -> None:
    """Callers do not wait. A mirrored request has a permit of its own until it is answered."""
    await start(stack)
    (gate, held), permits = hold(stack), stack.gateway.permits
    for _ in range(20):
        assert 200 == (await stack.client.post("/serve/e/1", json=BODY)).status_code
    await stack.until(lambda: len(held) == 16)
    assert 20 - 16 == counted(stack)["dropped"]
    size = len('{"text":"good film"}')
    assert ({"batch"}, 16, 16 * size) == ({*held}, permits.in_flight, permits.held_bytes)
    gate.set()
    await mirrored(stack, 20)
    assert (0, 0) == (permits.in_flight, permits.held_bytes)
    await stack.client.post("/serve/e/1", json=BODY)
    assert 4 == (await mirrored(stack, 21))["dropped"]


async def test_a_busy_gateway_mirrors_no_requests(make_stack: Any) -> None:
    """From half of its limit on requests or on their bytes. Below that, requests are mirrored again."""
    stack = make_stack(max_in_flight=4)
    async with stack.gateway.running(), stack.client:
        await start(stack)
        permits = stack.gateway.permits
        for number, (in_flight, held, dropped) in enumerate(((2, 0, 1), (0, permits.max_bytes // 2 + 1, 2), (0, 0, 2))):
            permits.in_flight, permits.held_bytes = in_flight, held
            await stack.client.post("/serve/e/1", json=BODY)
            assert dropped == (await mirrored(stack, number + 1))["dropped"]


async def test_an_invalid_shadow_is_reported_as_a_fault(stack: Any) -> None:
    """It mirrors nothing."""
    stack.deploy("e", "m1", version="1")
    await stack.served("e/1")
    for reason, fields in (
        ("there is no endpoint e/9", {"to": "e/9"}), ("a share of 101 %", {"percent": 101.0}),
        ("cannot be read", {"percent": "many"}), ("no other version of other", {"name": "other", "to": "e/1"}),
    ):  # fmt: skip
        shadow(stack, **{"to": "e/1", **fields})
        await stack.until(
            lambda reason=reason: any(reason in fault.message for fault in stack.gateway.table.current.faults)
        )
    assert {} == seen(stack)


@pytest.mark.parametrize(
    ("one", "other", "agrees"),
    [
        ({"label": "A", "score": 0.9}, {"label": "A", "score": 0.81}, True),
        ({"label": "A", "score": 0.9}, {"label": "A", "score": 0.7}, False),
        ({"label": "A", "tokens": 3}, {"label": "A", "tokens": 9}, True),
        ({"results": [{"label": "A", "tokens": 3}]}, {"results": [{"label": "old A", "tokens": 9}]}, True),
        ({"label": "A"}, {"label": "B"}, False), ({"x": [1.0, 200.0]}, {"x": [1.0, 190.0]}, True),
        ({"x": [1.0]}, {"x": [1.0, 1.0]}, False), ({"x": 1.0}, {}, False), ([b"a"], [b"a"], True), (b"a", b"a", True),
        (b"a", b"b", False), (b'{"x": 1.0}', {"x": 1.05}, True),
        ({"y": np.full(2, 200.0)}, {"y": [190.0, 200.0]}, True), ({"y": np.ones(2)}, {"y": np.zeros(2)}, False),
        ({"y": np.ones(2)}, {"y": np.ones(3)}, False), ({"y": np.ones(2)}, {}, False),
        ({"y": np.array(["a"])}, {"y": np.array(["b"])}, False), ({"y": np.array(["a"])}, {"y": np.array(["a"])}, True),
        ({"y": np.array([3], np.uint8)}, {"y": np.array([4], np.uint8)}, False),
    ],
)  # fmt: skip
def test_answers_agree_if_their_texts_are_equal_and_their_numbers_near(one: Any, other: Any, agrees: bool) -> None:
    """Within a tenth, absolute up to 1 and relative above."""
    assert agrees is agree(one, other, {"old A": "A"}, 0.1)


async def test_embeddings_agree_if_the_same_texts_are_neighbours(stack: Any, tmp_path: Path) -> None:
    """With a tolerance of 1 or more, numbers are not compared: a mirrored space agrees. ``neighbours`` has the rule."""
    places = np.random.default_rng(3).normal(size=(2**15, 24)).astype(np.float32)

    def placed(inputs: dict[str, Any]) -> Any:
        return places[[hash(tuple(row.tolist())) % len(places) for row in inputs["input_ids"]]]

    for version, sign in (("1", 1), ("2", -1)):
        stack.add_package(f"m{version}", text_bundle(tmp_path / version, "BertModel", hidden_size=24))
        stack.registry.add_endpoint("e", f"m{version}", version=version)
        stack.backend.add(
            stack.triton_name(f"e/{version}"), {"input_ids": "int64", "attention_mask": "int64"},
            {"sentence_embedding": "float32"},
            lambda inputs, by=sign: {"sentence_embedding": placed(inputs) * by},
        )  # fmt: skip
    await stack.served("e/1", "e/2")
    await mirror(stack, tolerance=1.0)
    for number in range(40):  # texts of six words, each "good" or "bad"
        text = " ".join(("good", "bad")[number >> place & 1] for place in range(6))
        assert 200 == (await stack.client.post("/serve/e/1", json={"text": text})).status_code
        await stack.until(lambda: not stack.gateway._mirror._tasks)
    assert {"agreed": 40 - LEAST, "differed": 0, "failed": 0, "dropped": 0} == counted(stack)
