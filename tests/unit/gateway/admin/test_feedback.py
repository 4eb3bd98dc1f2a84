"""``POST /v1/feedback`` through a whole gateway: forms, refusals, rights, and the visible results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from gateway.admin.feedback import MAX_ITEMS
from gateway.registry import Record
from tests.unit.gateway.conftest import answering
from tests.unit.gateway.http.serving import made_key, write_keys

ONE = {"endpoint": "e/1", "predicted": "GOOD", "label": "BAD"}


async def served(stack: Any) -> None:
    """Two versions of a classifier and a hook."""
    stack.deploy("e", "m1", version="1")
    stack.deploy("e", "m2", version="2")
    stack.add_hook("h", answering("{'label': 'spam'}"))
    await stack.served("e/1", "e/2", "h")


async def test_the_forms_of_feedback(stack: Any) -> None:
    """One label or many. They are counted by version, also by one that was replaced: labels come late."""
    await served(stack)
    answer = (await stack.client.post("/serve/e/2", json={"text": "good"})).json()
    for body, counted in (
        (ONE, 1),
        ({"feedback": [ONE, {**ONE, "label": "GOOD"}]}, 2),
        ({"endpoint": "e", "version": 2, "predicted": answer["label"], "label": answer["label"]}, 1),
        ({"endpoint": "h", "predicted": "spam", "label": "ham"}, 1),
    ):
        reply = await stack.client.post("/v1/feedback", json=body, headers={"x-request-id": "mine"})
        assert (200, {"counted": counted}, "mine") == (reply.status_code, reply.json(), reply.headers["x-request-id"])
    reply = await stack.client.post("/v1/feedback", json={"feedback": [ONE, {**ONE, "endpoint": "e/7"}]})
    assert (200, {"counted": 2, "not_served": ["e/7"]}) == (reply.status_code, reply.json())
    text = (await stack.client.get("/metrics")).text
    for line in (
        'gateway_feedback_total{endpoint="e",label="BAD",predicted="GOOD",version="1"} 3.0',
        'gateway_feedback_total{endpoint="e",label="BAD",predicted="GOOD",version="7"} 1.0',
        'gateway_feedback_total{endpoint="e",label="GOOD",predicted="GOOD",version="1"} 1.0',
        'gateway_feedback_total{endpoint="h",label="ham",predicted="spam",version=""} 1.0',
    ):
        assert line in text


REFUSED: list[tuple[Any, int, str]] = [
    ([], 422, "feedback.0"),
    ({"feedback": []}, 422, "feedback"),
    ({"feedback": [ONE] * (MAX_ITEMS + 1)}, 422, "1000"),
    ({"feedback": [ONE, 3]}, 422, "feedback.1"),
    ({**ONE, "label": None}, 422, "feedback.0.label"),
    ({**ONE, "label": "x" * 101}, 422, "feedback.0.label"),
    ({"endpoint": "e/1", "answer": {"label": "BAD"}, "label": "BAD"}, 422, "feedback.0.predicted"),
    ({**ONE, "label": "neutral"}, 422, "neutral"),
    ({**ONE, "endpoint": "none/1"}, 404, "none/1"),
    ({**ONE, "endpoint": "e/x"}, 404, "e/x"),
    ({**ONE, "endpoint": "c"}, 422, "several versions"),
    (b"{", 400, "malformed_body"),
    (b"x" * ((1 << 20) + 1), 413, ""),
]


async def test_a_request_with_an_invalid_label_is_refused_whole(stack: Any) -> None:
    """With the reason and the position. Nothing of it is counted."""
    await served(stack)
    stack.registry.canary["c"] = {"endpoint": "c", "weights": [0.5, 0.5], "load_endpoints": ["e/1", "e/2"]}
    await stack.until(lambda: "c" in stack.gateway.table.current.canaries)
    for body, status, said in REFUSED:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = await stack.client.post("/v1/feedback", content=raw, headers={"content-type": "application/json"})
        assert (status, True) == (reply.status_code, said in reply.text), reply.text
    assert "gateway_feedback_total{" not in (await stack.client.get("/metrics")).text


async def test_labels_need_their_own_right(make_stack: Callable[..., Any], tmp_path: Any) -> None:
    """And only for the key's endpoints. The right to infer does not include it."""
    made = {
        "asks": made_key("asks", operations=("infer",)), "labels": made_key("labels", operations=("feedback",)),
        "others": made_key("others", operations=("feedback",), endpoints=("h",)),
    }  # fmt: skip
    path = write_keys(tmp_path, *(key for _, key in made.values()))
    stack = make_stack(keys_file=str(path))
    async with stack.gateway.running():
        await served(stack)
        seen = {}
        for name in ("", *made):
            headers = {"x-api-key": made[name][0]} if name else {}
            reply = await stack.client.post("/v1/feedback", json=ONE, headers=headers)
            seen[name] = (reply.status_code, reply.headers.get("x-refused-because"))
    assert {
        "": (401, "no_credentials"), "asks": (403, "operation_not_permitted"), "labels": (200, None),
        "others": (403, "endpoint_not_permitted"),
    } == seen  # fmt: skip


async def test_status_has_what_the_controller_has_found(stack: Any) -> None:
    """Drift, accuracy, and a canary beside its stable version; what it has not renewed for hours is not shown."""
    await served(stack)
    of = {"version": "1", "variable": "predicted_label", "days": 0.1, "visible": 0.2, "since": 7, "state": "steady"}
    found = {**of, "bins": ["GOOD", "other"], "reference": [0.9, 0.1], "counts": [3.0, 0.5], "n": 3.5}
    judged = {**found, "name": "8d7d43b0"}
    right = {"version": "1", "right": 9, "at": 0, "value": 0.9, "low": 0.6, "high": 0.98, "labels": 10}
    beside = {"version": "2", "beside": "1", "sentences": {"answers": "it says BAD"}}
    value = {"at": time.time(), "alarm_days": 30.0, "variables": [judged], "compared": [beside], "accuracy": [right]}
    old = {**value, "at": time.time() - 86_400}
    stack.registry.reports.write([Record("judged", "e", value), Record("judged", "h", old), Record("judged", "x", {})])
    status = (await stack.client.get("/v1/status")).json()
    assert [{"endpoint": "e", **right}] == status["accuracy"]
    assert [{"endpoint": "e", "alarm_days": 30.0, **found}] == status["drift"]
    assert [{"endpoint": "e", **beside}] == status["compared"]


async def test_feedback_counts_towards_the_bytes_in_flight(make_stack: Callable[..., Any]) -> None:
    """A full gateway refuses it. Its bytes are released after any outcome. A large body is read too."""
    stack = make_stack(max_bytes_in_flight=4 << 20)
    async with stack.gateway.running():
        await served(stack)
        many = {"feedback": [ONE] * MAX_ITEMS, "note": "x" * 500_000}
        assert {"counted": MAX_ITEMS} == (await stack.client.post("/v1/feedback", json=many)).json()
        assert 422 == (await stack.client.post("/v1/feedback", json={})).status_code
        assert 0 == stack.gateway.permits.in_flight
        held = [stack.gateway.permits.take(1) for _ in range(stack.settings.max_in_flight)]
        reply = await stack.client.post("/v1/feedback", json=ONE)
        assert (429, "overloaded") == (reply.status_code, reply.json()["code"])
        assert reply.headers["retry-after"]
        for one in held:
            one.release()
        assert 200 == (await stack.client.post("/v1/feedback", json=ONE)).status_code
