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


async def test_the_version_before_a_broken_one_serves_after_a_restart_too(make_stack: Any) -> None:
    """While the newest version cannot be built, the one before it is served."""
    stack = make_stack()
    async with stack.gateway.running():
        stack.deploy("e", "m1")
        stack.deploy("other", "m3")
        await stack.served("e", "other")
        stack.add_text_model("m2")
        stack.registry.add_endpoint("e", "m2")  # Triton never gets it
        await stack.until(lambda: stack.state("e")[0] == "pending")
        assert "m1" == await model_of(stack, stack.gateway, "e")
    for _ in range(2):  # a second restart finds it as the first one did
        second = stack.gateway = stack.new_gateway()
        stack.backend.is_up = True
        async with second.running():
            await stack.until(lambda: {"e", "other"} == set(stack.gateway.table.current.endpoints))
            assert "m1" == await model_of(stack, second, "e")
            assert "pending" == stack.state("e")[0]
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


async def test_an_endpoint_that_was_removed_does_not_come_back(make_stack: Any) -> None:
    """Neither its served versions nor older ones."""
    stack = make_stack()
    async with stack.gateway.running():
        stack.deploy("e", "m1")
        await stack.served("e")
        stack.add_text_model("m2")
        stack.registry.add_endpoint("e", "m2")
        await stack.until(lambda: stack.state("e")[0] == "pending")
    del stack.registry.endpoints["e"]
    stack.backend.is_up = True
    second = stack.gateway = stack.new_gateway()
    async with second.running():
        await stack.until(lambda: second.health.first_sync_done)
        assert "404" == await model_of(stack, second, "e")


async def test_a_model_deleted_in_the_registry_serves_after_a_restart_too(make_stack: Any) -> None:
    """Its record and its files are on disk."""
    stack = make_stack()
    async with stack.gateway.running():
        stack.deploy("e", "m1")
        await stack.served("e")
    del stack.registry.models["m1"]
    stack.backend.is_up = True
    second = stack.gateway = stack.new_gateway()
    async with second.running():
        await stack.until(lambda: {"e"} == set(second.table.current.endpoints))
        assert "m1" == await model_of(stack, second, "e")
