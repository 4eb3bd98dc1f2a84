"""Readiness: at its start a gateway waits for earlier endpoints; afterwards only lost endpoints count."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from gateway.registry.ledger import Record
from gateway.registry.reports import ModelReport, record
from gateway.workers import Link
from tests.fakes import FakeBackend
from tests.unit.gateway.conftest import starting
from tests.waiting import LIMIT_S

HOOK = """
class Preprocess:
    def process(self, body, state, collect_custom_statistics_fn=None):
        return {"x": 1}
"""


async def readyz(stack: Any, gateway: Any = None) -> tuple[int, dict[str, Any]]:
    """Return status and body of a gateway's `/readyz`."""
    async with stack.new_client(gateway or stack.gateway) as client:
        reply = await client.get("/readyz")
    return reply.status_code, reply.json()


async def test_a_new_endpoint_never_makes_a_serving_gateway_unready(served: Any) -> None:
    """Neither while Triton loads it for minutes nor if its build fails. The body names it."""
    refused: list[str] = []

    async def until(condition: Callable[[], bool]) -> None:
        await served.until(lambda: bool(refused.extend(served.gateway.health.reasons())) or condition())

    served.add_text_model("m2")
    served.registry.add_endpoint("slow", "m2")  # Triton does not get it
    served.registry.add_endpoint("broken", "nosuchmodel")
    await until(lambda: "Triton" in served.state("slow")[1] or "fake backend" in served.state("slow")[1])
    await until(lambda: served.state("broken")[0] == "failed")
    degraded = (await readyz(served))[1]["degraded"]
    served.load("slow")
    await until(lambda: "slow" in served.gateway.table.current.endpoints)
    assert [] == refused
    assert any(text.startswith("slow is pending: ") for text in degraded)
    assert any("broken has failed: model nosuchmodel is not in the registry" in text for text in degraded)


async def test_a_gateway_that_has_lost_every_endpoint_is_not_ready(served: Any) -> None:
    """Even if they were removed on purpose, because it can answer nothing. It is ready again with the first one."""
    entry = served.registry.endpoints.pop("e")
    await served.served()
    code, body = await readyz(served)
    assert (503, ["no endpoint is served: deploy one with `clearml-serving model add …`"]) == (code, body["reasons"])
    await served.until(lambda: not served.backend.is_up)  # closed: nobody needs it
    served.backend.is_up = True
    served.registry.endpoints["e"] = entry
    await served.served("e")
    assert 200 == (await readyz(served))[0]


AWAY = "Triton at fake:8001 does not answer"


@pytest.mark.parametrize(
    ("settings", "hook", "reasons"),
    [({}, True, []), ({}, False, [AWAY]), ({"cold_start_timeout": "5s"}, False, [])],
    ids=["a hook serves", "nothing serves", "a request starts a Triton"],
)
async def test_a_gateway_without_triton_is_ready_if_it_can_answer(
    make_stack: Any, settings: dict[str, str], hook: bool, reasons: list[str]
) -> None:
    """The body names what cannot be answered. A pool at zero is started by a request, which an unready gateway would
    not get. A dead Triton is shown; when it is back, but without its model, that is said.
    """
    stack = make_stack(**settings)
    async with stack.gateway.running(), stack.client:
        stack.deploy("e")
        if hook:
            stack.add_hook("h", HOOK, engine="custom")
        await stack.served("e", *["h"] * hook)

        async def told() -> tuple[Any, ...]:
            body = (await stack.client.get("/v1/status")).json()
            return body["triton"]["fake:8001"], body["pools"][0]["answers"], body["endpoints"][0]["state"]

        await stack.until(lambda: stack.gateway.health.backend_live == {"fake:8001": True})
        stack.backend.is_up = False
        await stack.until(lambda: stack.gateway.health.backend_live == {"fake:8001": False})
        assert (False, False, "serving") == await told()
        code, body = await readyz(stack)
        assert (503 if reasons else 200, reasons) == (code, body["reasons"])
        assert reasons or [f"{AWAY}: e cannot be answered"] == body["degraded"]
        models, stack.backend.models = stack.backend.models, {}
        stack.backend.is_up = True
        await stack.until(lambda: stack.gateway.health.backend_live == {"fake:8001": True})
        assert (True, True, "its model is not in Triton") == await told()
        stack.backend.models = models
        assert (True, True, "serving") == await told()


async def test_a_triton_that_the_task_no_longer_names_does_not_count(served: Any) -> None:
    """After `clearml-serving config --triton-grpc-server`, the old address is closed and forgotten."""
    served.backends["other:8001"] = FakeBackend(served.backend.models)
    before = served.gateway.table.current.endpoints["e"]
    served.registry.settings["triton_grpc_server"] = "other:8001"
    await served.until(lambda: served.gateway.table.current.endpoints["e"] is not before)
    await served.until(lambda: not served.backend.is_up)  # closed
    await served.until(lambda: served.gateway._status()["triton"] == {"other:8001": True})
    assert (200, {"ready": True, "reasons": [], "degraded": []}) == await readyz(served)


@pytest.fixture
def half(make_stack: Any) -> Any:
    """A stack that is not started, with the endpoint `fast` and with `slow`, whose model Triton does not have yet."""
    stack = make_stack()
    stack.deploy("fast")
    stack.add_text_model("m2")
    stack.registry.add_endpoint("slow", "m2")
    return stack


async def test_a_worker_beside_others_is_ready_and_waits_before_it_takes_requests(half: Any, caplog: Any) -> None:
    """`/readyz` may reach any worker, and the gateway has been ready before. The others answer for a time."""
    ours, of_parent = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    joins, alone = half.new_gateway(link=Link(ours, 0, joins=True), settle=0.2), half.new_gateway()
    async with starting(joins), starting(alone):
        for one in (joins, alone):
            await half.until(lambda one=one: "fast" in one.table.current.endpoints)
        await half.until(lambda: "takes requests from now on, and still lacks" in caplog.text)
        assert (200, 503) == ((await readyz(half, joins))[0], (await readyz(half, alone))[0])
        asyncio.get_running_loop().call_later(1.5, half.load, "slow")
        third = half.new_gateway(settle=LIMIT_S)
        async with third.running():
            assert {"fast", "slow"} == set(third.table.current.endpoints)
    ours.close()
    of_parent.close()


@pytest.mark.parametrize("has_state", [False, True])
async def test_a_starting_gateway_waits_for_earlier_endpoints_up_to_a_limit(
    half: Any, monkeypatch: pytest.MonkeyPatch, has_state: bool
) -> None:
    """A rollout must not lose an endpoint that is slow to build; what is new does not count. A first start, of a new
    pod, waits for all that the Task names, as other pods serve it. Then it serves what it can.
    """
    waits, missing = "waiting for what was served before: slow (is pending: ", half.triton_name("slow")
    if has_state:
        half.load("slow")
        async with half.gateway.running():
            await half.served("fast", "slow")
        half.backend.models.pop(missing)
        half.backend.is_up = True
        half.registry.add_endpoint("new", "m2")
    monkeypatch.setattr("gateway.control.reconcile.STARTUP_WAIT_S", 1.0)
    second = half.new_gateway()
    async with starting(second):
        await half.until(lambda: "fast" in second.table.current.endpoints)
        assert [True] == [reason.startswith(waits) for reason in second.health.reasons()]
        await half.until(lambda: second.health.reasons() == [])
        assert ["fast"] == list(second.table.current.endpoints)
        assert any(text.startswith("slow is pending: ") for text in (await readyz(half, second))[1]["degraded"])
        half.load("slow")
        await half.until(lambda: "slow" in second.table.current.endpoints)


def overwrite(stack: Any) -> None:
    """Record another content of the model ``m2``, as the controller does when a model sync has fetched it before."""
    value = {"name": "film", "uri": stack.registry.model("m2").uri, "sha256": "c" * 64, "parts": "c" * 64}
    stack.registry.ledger.write([Record("content_hash", "m2", value)])


def refuse(stack: Any, ago: float = 60.0) -> None:
    """Report what the only model sync says of ``e``, and says again every minute."""
    bad = ModelReport("e", "m2", stack.triton_name("e"), "pending", "no GPU", is_final=True)
    stack.registry.reports.write([record("pod", [bad], at=time.time() - ago)])


@pytest.mark.parametrize(
    ("spoil", "waits"),
    [
        (lambda stack: stack.registry.models.pop("m2"), False),
        (refuse, False),
        (overwrite, False),
        (lambda stack: (stack.folder / "m2.zip").rename(stack.folder / "away.zip"), True),
    ],
    ids=["not registered", "refused by model sync", "overwritten", "cannot be fetched"],
)
async def test_a_starting_gateway_does_not_wait_for_final_failures(
    make_stack: Any, monkeypatch: pytest.MonkeyPatch, spoil: Any, waits: bool
) -> None:
    """A refused endpoint fails everywhere. One that could not be downloaded is served by others, so it counts."""
    monkeypatch.setattr("gateway.control.reports._EVERY_S", 0.1)
    stack = make_stack()
    stack.deploy("fine")
    stack.add_text_model("m2")
    stack.registry.add_endpoint("e", "m2")
    spoil(stack)
    async with stack.gateway.running():
        if spoil is refuse:
            await stack.until(lambda: "no GPU" in stack.state("e")[1])
            assert "failed" != stack.state("e")[0]  # an old report may be of an attempt that is repeated now
            refuse(stack, 0.0)
        await stack.until(lambda: stack.state("e")[0] == "failed")
        await stack.until(lambda: "fine" in stack.gateway.table.current.endpoints)
        code, body = await readyz(stack)
        assert (503 if waits else 200) == code
        assert waits == any("waiting for what was served before: e (has failed: " in text for text in body["reasons"])
