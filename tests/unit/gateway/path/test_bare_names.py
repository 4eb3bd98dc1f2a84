"""A URL without a version through a whole gateway: the default version answers in every protocol."""

from __future__ import annotations

from typing import Any

from gateway import default_version
from gateway.registry import Record

BODY = {"text": "good"}


async def start(stack: Any, default: str = "e/2") -> None:
    """Serve two versions of ``e``; ``default`` was added first."""
    stack.deploy("e", "m1", version="1")
    stack.deploy("e", "m2", version="2")
    stack.registry.ledger.write(
        [Record(default_version.KIND, *default_version.record("first", "e", default_version.Default(default)))]
    )
    await stack.served("e/1", "e/2")
    await stack.until(lambda: stack.gateway.table.current.defaults)


async def test_a_bare_name_answers_with_the_recorded_default(stack: Any) -> None:
    """The headers name the version, as for a call of that version."""
    await start(stack)
    reply = await stack.client.post("/serve/e", json=BODY)
    assert (200, "direct", "e/2", "m2") == (
        reply.status_code, reply.headers["x-route"], reply.headers["x-served-by"], reply.headers["x-model-id"],
    )  # fmt: skip
    assert {"e": "e/2"} == (await stack.client.get("/v1/status")).json()["defaults"]


async def test_if_the_default_was_removed_the_error_names_the_command_and_the_other_version(stack: Any) -> None:
    """The other version gets no traffic for it."""
    await start(stack)
    del stack.registry.endpoints["e/2"]
    await stack.until(lambda: "e/2" not in stack.gateway.table.current.endpoints)
    reply = await stack.client.post("/serve/e", json=BODY)
    assert (404, "version_not_found") == (reply.status_code, reply.json()["code"])
    assert "triton-gateway default e" in reply.text
    assert "e/1" in reply.text


async def test_lists_and_descriptions_include_the_bare_name(stack: Any) -> None:
    """Those of OpenAI's API and of the Open Inference Protocol."""
    await start(stack)
    assert ["e", "e/1", "e/2"] == (await stack.client.get("/v1/models")).json()["models"]
    assert 200 == (await stack.client.get("/v1/models/e")).status_code
    shape = (await stack.client.get("/v2/models/e")).json()
    assert ("e", ["2"]) == (shape["name"], shape["versions"])
    assert 200 == (await stack.client.get("/v2/models/e/ready")).status_code
