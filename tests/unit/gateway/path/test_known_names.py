"""Names that the serving Task knows but no version answers yet: 503 and the reason, never 404. Unknown ones: 404."""

from __future__ import annotations

from typing import Any

from gateway import default_version
from gateway.registry.ledger import Record
from tests.unit.gateway.conftest import starting

BODY = {"text": "good"}
TENSOR = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["good"]}]}


def addresses(name: str) -> list[tuple[str, str, Any]]:
    """Return one request to ``name`` in each protocol that names an endpoint."""
    return [
        ("POST", f"/serve/{name}", BODY),
        ("POST", f"/v1/models/{name}:predict", {"instances": ["good"]}),
        ("POST", f"/v2/models/{name}/infer", TENSOR),
        ("POST", "/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "good"}]}),
        ("POST", "/v1/embeddings", {"model": name, "input": "good"}),
        ("POST", f"/tei/{name}/predict", {"inputs": "good"}),
        ("GET", f"/v1/models/{name}", None),
        ("GET", f"/v2/models/{name}", None),
        ("GET", f"/v2/models/{name}/ready", None),
        ("GET", f"/v2/models/{name}/stats", None),
        ("GET", f"/tei/{name}/info", None),
    ]


async def answers(client: Any, name: str) -> list[tuple[str, int, str]]:
    """Return each address with status and text of its answer; every 503 says when to ask again."""
    found = []
    for method, path, body in addresses(name):
        reply = await client.request(method, path, json=body)
        if reply.status_code == 503:
            assert int(reply.headers["retry-after"]) >= 1, path
        found.append((path, reply.status_code, reply.text))
    return found


def canary(stack: Any, name: str, **weights: float) -> None:
    """Add a canary over fixed versions; ``_`` in a keyword stands for the slash."""
    urls = [url.replace("_", "/") for url in weights]
    stack.registry.canary[name] = {"endpoint": name, "weights": list(weights.values()), "load_endpoints": urls}


async def test_while_a_gateway_builds_every_name_of_the_task_is_not_ready(make_stack: Any) -> None:
    """Versions, canaries, bare names; in every protocol, from the first moment until they serve."""
    stack = make_stack()
    stack.deploy("e", "m1", version="1")
    stack.deploy("e", "m2", version="2")
    stack.deploy("plain", "m1")
    canary(stack, "c", e_1=0.9, e_2=0.1)
    canary(stack, "plain-canary", plain=1.0)
    stack.registry.ledger.write(
        [Record(default_version.KIND, *default_version.record("first", "e", default_version.Default("e/1")))]
    )
    held = dict(stack.backend.models)
    stack.backend.models.clear()
    names = ("e", "e/1", "e/2", "c", "plain", "plain-canary")
    async with starting(stack.gateway), stack.client:
        for name in names:  # the Task has not been read
            assert {503} == {status for _, status, _ in await answers(stack.client, name)}, name
        await stack.until(lambda: stack.gateway.health.first_sync_done)
        for name in ("nobody", "nobody/1", "e/9", "c/1"):  # no wait helps
            assert {404} == {status for _, status, _ in await answers(stack.client, name)}, name
        for name in names:
            found = await answers(stack.client, name)
            assert {503} == {status for _, status, _ in found}, found
            assert all("pending" in text for _, _, text in found if text), found
        status = (await stack.client.get("/v1/status")).json()
        assert {"c", "plain-canary"} <= {one["url"] for one in status["pending"]}
        stack.backend.models.update(held)
        await stack.served("e/1", "e/2", "plain")
        assert {200} == {(await stack.client.post(f"/serve/{name}", json=BODY)).status_code for name in names}
        assert [] == (await stack.client.get("/v1/status")).json()["pending"]
        await bare_names_are_the_default(stack)


async def bare_names_are_the_default(stack: Any) -> None:
    """In answers, lists and descriptions. If the default is removed, the other version gets no traffic for it."""
    reply = await stack.client.post("/serve/e", json=BODY)
    assert ["direct", "e/1", "m1"] == [reply.headers[name] for name in ("x-route", "x-served-by", "x-model-id")]
    assert {"e": "e/1"} == (await stack.client.get("/v1/status")).json()["defaults"]
    assert {"e", "e/1", "e/2"} < set((await stack.client.get("/v1/models")).json()["models"])
    shape = (await stack.client.get("/v2/models/e")).json()
    assert ("e", ["1"]) == (shape["name"], shape["versions"])
    del stack.registry.endpoints["e/1"]
    await stack.until(lambda: "e/1" not in stack.gateway.table.current.endpoints)
    reply = await stack.client.post("/serve/e", json=BODY)
    assert (404, "version_not_found") == (reply.status_code, reply.json()["code"])
    assert "e/2" in reply.text


async def test_a_canary_whose_versions_cannot_be_served_says_why(stack: Any) -> None:
    """For as long as that lasts. Callers learn the reason, and ``status`` and the index have a row. A served
    version of weight 0 answers nothing, and is not blamed either.
    """
    stack.deploy("clf", "m1", version="2")
    stack.registry.add_endpoint("clf", "gone", version="1")
    canary(stack, "zc", clf_1=1.0, clf_2=0.0)
    canary(stack, "wrong", clf_2=-1.0)
    await stack.until(lambda: "clf/2" in stack.gateway.table.current.endpoints and stack.state("clf/1")[0] == "failed")
    found = await answers(stack.client, "zc")
    assert {503} == {status for _, status, _ in found}, found
    assert all("zc is failed: model gone is not in the registry" in text for _, _, text in found if text), found
    assert not any("clf/2" in text for _, _, text in found), found
    assert {503} == {status for _, status, _ in await answers(stack.client, "wrong")}
    [row] = [one for one in (await stack.client.get("/v1/status")).json()["pending"] if one["url"] == "zc"]
    assert ("failed", True) == (row["state"], "model gone" in row["reason"])
    index = (await stack.client.post("/v2/repository/index", json={})).json()
    assert [("zc", "UNAVAILABLE")] == [(one["name"], one["state"]) for one in index if one["name"] == "zc"]


async def test_addresses_that_stand_for_a_name_are_not_ready_either(stack: Any) -> None:
    """The only endpoint, version 1 of an endpoint without versions, and labels for a canary."""
    stack.add_text_model("m1")
    stack.registry.add_endpoint("e", "m1")
    canary(stack, "c", e=1.0)
    await stack.until(lambda: "e" in stack.gateway.table.current.pending)
    for method, path, body in (
        ("POST", "/predict", {"inputs": "good"}), ("POST", "/v2/models/e/versions/1/infer", TENSOR),
        ("GET", "/v2/models/e/versions/1", None), ("GET", "/info", None),
        ("POST", "/v1/feedback", {"endpoint": "c", "predicted": "good", "label": "good"}),
    ):  # fmt: skip
        assert 503 == (await stack.client.request(method, path, json=body)).status_code, path
