"""Pools of Tritons: an endpoint names its pool. A pool without Tritons is only its endpoints' fault."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import pools
from gateway.control.compile import compile_spec
from gateway.settings import Settings
from gateway.spec import decode
from tests.fakes import FakeBackend, FakeRegistry

A10, H100 = "dns:///triton-a10:8001", "dns:///triton-h100:8001"


def on(pool: str) -> dict[str, Any]:
    """Return what the stock CLI writes for `--aux-config gateway.pool=…`."""
    return {"auxiliary_cfg": {"gateway": {"pool": pool}}}


def plan_of(registry: FakeRegistry, **given: Any) -> Any:
    """Return a gateway's plan for the Task."""
    spec = decode(registry.task())
    models = dict(registry.models)
    return compile_spec(spec, default_triton="t:8001", models=models, **given)


@pytest.fixture
def registry(tmp_path: Any) -> FakeRegistry:
    """Endpoints of several pools."""
    found = FakeRegistry()
    for model_id, tags in (("plain", []), ("tagged", ["pool:h100", "prod"])):
        (tmp_path / model_id).write_text("x")
        found.add_model(model_id, tmp_path / model_id, tags=tags)
    found.add_endpoint("none", "plain")
    found.add_endpoint("named", "plain", **on("a10"))
    found.add_endpoint("tagged", "tagged")
    found.add_endpoint("both", "tagged", **on("a10,h100"))
    return found


BOTH = {"a10": A10, "h100": H100}


@pytest.mark.parametrize(
    ("known", "addresses"),
    [
        (BOTH, {"none": "t:8001", "named": A10, "tagged": H100, "both": f"{A10};{H100}"}),
        ({"a10": A10}, {"none": "t:8001", "named": A10, "both": A10}),
        ({"default": "d:1", "*": "x:1"}, {"none": "d:1", "named": "x:1", "tagged": "x:1", "both": "x:1"}),
        ({"*": "x:1"}, {"none": "t:8001", "named": "x:1", "tagged": "x:1", "both": "x:1"}),
    ],
)
def test_an_endpoint_is_routed_to_the_pool_it_names(
    registry: FakeRegistry, known: dict[str, str], addresses: dict[str, str]
) -> None:
    """By its option, else by its model's tag, else to the default pool; `*` is every pool without its own address.
    Several pools have one joint address. A pool without Tritons is a fault only of what runs nowhere else.
    """
    plan = plan_of(registry, pools=known)
    assert addresses == {url: one.triton_address for url, one in plan.endpoints.items()}
    assert {"none": "default", "named": "a10", "tagged": "h100", "both": "a10,h100"}.items() >= {
        (url, one.pool) for url, one in plan.endpoints.items()
    }
    told = {fault.subject: fault.message for fault in plan.faults}
    assert ({"endpoint tagged", "pool h100"} if len(addresses) == 3 else set()) == set(told)
    if told:
        assert told["endpoint tagged"].startswith("pool h100 has no Tritons here; this gateway knows a10, default: ")
    # The command line knows no addresses and refuses nothing; a gateway that gets pools rebuilds nothing else.
    before = plan_of(registry)
    assert {*addresses} <= {*before.endpoints}
    assert (known is not BOTH) or (
        [False, True] == [before.endpoints[u].fingerprint != plan.endpoints[u].fingerprint for u in ("none", "named")]
    )


def test_an_invalid_pool_is_a_fault_of_the_endpoint(registry: FakeRegistry) -> None:
    """Also of code, which runs in gateways. The command line decodes it in the same way and refuses it too."""
    for pool in ("A10", "a b", "-a", "a_b", ","):
        registry.add_endpoint(f"named-{pool}", "plain", **on(pool))
    registry.add_endpoint("hook", None, engine="custom", **on("a10"))
    faults = decode(registry.task()).faults
    assert 6 == len(faults)
    assert all("is not the name of a pool" in fault.message for fault in faults[:5])
    assert ("endpoint hook", True) == (faults[5].subject, "gateway.pool is for engine triton" in faults[5].message)


def test_the_setting_of_pools_is_parsed_or_refused() -> None:
    """Spaces, semicolons and line breaks separate pools, commas addresses. Model sync follows the default pool if its
    setting is empty.
    """
    text = "a10=dns:///a:8001; h100=1.2.3.4:8001,1.2.3.5:8001\n*=x:1"
    assert {"a10": "dns:///a:8001", "h100": "1.2.3.4:8001,1.2.3.5:8001", "*": "x:1"} == pools.addresses(text)
    assert {} == pools.addresses("")
    for bad in ("a10", "a10=", "=x:1", "A=x:1", "a=x:1 a=y:1"):
        with pytest.raises(ValueError, match=r"pool|POOL"):
            Settings(pools=bad)
    assert [{"default"}, {"a10", "cpu"}, {"*"}] == [pools.followed(said) for said in ("", " a10, cpu", "*")]
    with pytest.raises(ValueError, match="is not the name of a pool"):
        pools.followed("A10")


async def test_a_gateway_serves_each_endpoint_from_its_pool(make_stack: Any) -> None:
    """A failed pool affects only its endpoints. Status and metrics name it."""
    stack = make_stack(pools="a10=a:8001")
    stack.deploy("plain")
    stack.deploy("big", **on("a10"))
    a10 = stack.backends["a:8001"] = FakeBackend(stack.backend.models)
    async with stack.gateway.running(), stack.client as client:
        await stack.served("plain", "big")
        a10.is_up = False
        await stack.until(lambda: stack.gateway.health.backend_live.get("a:8001") is False)
        assert 200 == (await client.post("/serve/plain", json={"text": "good"})).status_code
        assert 503 == (await client.post("/serve/big", json={"text": "good"})).status_code
        told = "pool a10: Triton at a:8001 does not answer: big cannot be answered"
        assert {"ready": True, "reasons": [], "degraded": [told]} == (await client.get("/readyz")).json()
        status = (await client.get("/v1/status")).json()
        assert {"plain": "default", "big": "a10"} == {one["url"]: one["pool"] for one in status["endpoints"]}
        assert 'gateway_backend_up{backend="a:8001",pool="a10"} 0' in (await client.get("/metrics")).text
