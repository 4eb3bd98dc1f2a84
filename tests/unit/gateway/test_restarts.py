"""A restart keeps the served endpoints and versions, whatever the state of the registry."""

from __future__ import annotations

from typing import Any

from gateway.registry.cache import SpecStore

BODY = {"text": "good"}


async def model_of(stack: Any, gateway: Any, url: str) -> str:
    """Return the model that answers, or the status if none does."""
    async with stack.new_client(gateway) as client:
        reply = await client.post(f"/serve/{url}", json=BODY)
        return str(reply.headers.get("x-model-id", reply.status_code))


async def test_a_restart_serves_what_was_served(make_stack: Any) -> None:
    """The version before one that cannot be built, also after a second restart; a model that was deleted in the
    registry, whose record and files are on disk. An endpoint that was removed does not come back.
    """
    stack = make_stack()
    async with stack.gateway.running():
        for url, model in (("e", "m1"), ("other", "m3"), ("removed", "m4")):
            stack.deploy(url, model)
        await stack.served("e", "other", "removed")
        stack.add_text_model("m2")
        for url in ("e", "removed"):
            stack.registry.add_endpoint(url, "m2")  # Triton never gets it
        await stack.until(lambda: stack.state("e")[0] == stack.state("removed")[0] == "pending")
        assert "m1" == await model_of(stack, stack.gateway, "e")
    del stack.registry.models["m3"], stack.registry.endpoints["removed"]
    for _ in range(2):
        second = stack.gateway = stack.new_gateway()
        stack.backend.is_up = True
        async with second.running():
            await stack.until(lambda: {"e", "other"} == set(stack.gateway.table.current.endpoints))
            answers = [await model_of(stack, second, url) for url in ("e", "other", "removed")]
            assert (["m1", "m3", "404"], "pending") == (answers, stack.state("e")[0])
            assert second.health.reasons() == []
    third = stack.gateway = stack.new_gateway()
    stack.backend.is_up = True
    async with third.running():
        stack.load("e")
        await stack.until(lambda: stack.gateway.table.current.endpoints["e"].identity.model_id == "m2")
        assert "m2" == await model_of(stack, third, "e")
    saved = SpecStore(stack.folder / "state" / "gateway").load()
    assert saved is not None
    assert {} == saved.former, "what was replaced does not come back"
