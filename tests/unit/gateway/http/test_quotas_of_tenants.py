"""Quotas and usage for callers and operators, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.callers.access import Access
from gateway.callers.rights import OPERATIONS, Caller
from gateway.callers.siblings import addresses_of, follow_siblings
from gateway.metrics import catalog
from gateway.metrics.observer import MAX_TENANTS, Observer
from gateway.trace import Trace
from tests.unit.gateway.grpc.test_server import Caller as Client
from tests.unit.gateway.grpc.test_server import channel_to, texts
from tests.unit.gateway.http.serving import Port, made_key, serving, write_keys
from tests.waiting import soon


class Tenants:
    """A file of keys with quotas."""

    def __init__(self, folder: Path) -> None:
        made = {tenant: made_key(tenant, operations=tuple(OPERATIONS)) for tenant in ("few", "free")}
        self.texts = {tenant: text for tenant, (text, _) in made.items()}
        self._keys = [key for _, key in made.values()]
        self.path = write_keys(folder, *self._keys, quotas={"few": {"requests_per_minute": 3}})

    async def change(self, port: Port, **quotas: Any) -> None:
        write_keys(self.path.parent, *self._keys, quotas=quotas)
        await port.stack.gateway._callers.look()


@pytest.fixture
def tenants(tmp_path: Path) -> Tenants:
    """See the class."""
    return Tenants(tmp_path)


@pytest.fixture
async def port(tenants: Tenants, make_stack: Callable[..., Any]) -> AsyncIterator[Port]:
    """A gateway with the endpoint `e` at a real port."""
    stack = make_stack(keys_file=str(tenants.path))
    async with stack.gateway.running(), stack.client, serving(stack) as port:
        stack.deploy("e")
        await stack.served("e")
        yield port


async def ask(port: Port, key: str, times: int = 1) -> list[tuple[int, str]]:
    """Make a number of inferences; return statuses, and why each was refused."""
    found = []
    for _ in range(times):
        reply = await port.stack.client.post("/serve/e", json={"text": "good film"}, headers={"x-api-key": key})
        found.append((reply.status_code, reply.headers.get("x-refused-because", "")))
        if reply.status_code == 429:
            assert 1 <= int(reply.headers["retry-after"]) <= 3600
    return found


YES, NO = (200, ""), (429, "quota_requests")


async def test_a_tenant_is_refused_over_its_quota(port: Port, tenants: Tenants) -> None:
    """Over HTTP and gRPC, before the body is read. Other tenants are not affected, a changed quota applies to the next
    request, and answers and their tokens are counted, for billing.
    """
    few, free = tenants.texts["few"], tenants.texts["free"]
    assert [YES] * 3 + [NO] * 2 == await ask(port, few, 5)
    assert [YES] * 5 == await ask(port, free, 5)
    wire = await port.connect()
    wire.send(f"POST /serve/e HTTP/1.1\r\nhost: x\r\nx-api-key: {few}\r\ncontent-length: 1000000\r\n\r\n{{".encode())
    assert 429 == (await wire.head())[0]
    async with channel_to(port.stack) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await Client(channel).infer(texts("e", "good"), metadata=(("x-api-key", few),))
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is refused.value.code()
    assert "quota_requests" == dict(refused.value.trailing_metadata() or ())["x-refused-because"]
    text = (await port.stack.client.get("/metrics", headers={"x-api-key": free})).text
    assert 'gateway_tenant_requests_total{endpoint="e",tenant="few"} 3' in text
    assert 'gateway_tenant_tokens_in_total{endpoint="e",tenant="few"} 12' in text
    assert 'gateway_over_quota_total{reason="quota_requests",tenant="few"} 4' in text
    await tenants.change(port, free={"requests_per_minute": 0})
    assert ([YES] * 5, [NO]) == (await ask(port, few, 5), await ask(port, free))


async def test_a_request_refused_for_tokens_does_not_count_as_a_request(port: Port, tenants: Tenants) -> None:
    """As if it was refused before its body was read."""
    few = tenants.texts["few"]
    await tenants.change(port, few={"requests_per_minute": 3, "tokens_per_minute": 4})
    assert [YES] + [(429, "quota_tokens")] * 2 == await ask(port, few, 3)
    await tenants.change(port, few={"requests_per_minute": 3})
    assert [YES, YES, NO] == await ask(port, few, 3)


@pytest.mark.parametrize(
    ("outcome", "sent", "billed"), [("ok", 7, [(9, 7)]), ("client_gone", 5, [(9, 5)]), ("client_gone", 0, [])]
)
def test_the_prompt_and_the_generated_tokens_are_billed(outcome: str, sent: int, billed: list[tuple[int, int]]) -> None:
    """Of an interrupted stream the sent ones. A caller that got nothing pays nothing."""
    found: list[tuple[int, int]] = []
    trace = Trace("id")
    trace.caller, trace.outcome, trace.tokens, trace.generated_tokens = Caller("k", "t"), outcome, 9, sent
    Access(used=lambda _tenant, _endpoint, *tokens: found.append(tokens)).ended(trace)
    assert billed == found


def test_the_number_of_tenants_in_metrics_is_limited() -> None:
    """The 1,001st and all later ones share one label."""
    observer = Observer()
    for number in range(MAX_TENANTS + 50):
        observer.used(f"t{number}", "e", 1, 0)
    found = {of.labels: n for of, n in observer.snapshot().items() if of.metric == catalog.TENANT_REQUESTS.name}
    assert (MAX_TENANTS + 1, 50) == (len(found), found["other", "e"])


@pytest.mark.parametrize(
    "addresses", [("10.0.0.1", "10.0.0.2", "10.0.0.1", "fd00::1", "fd00::2"), ("fd00::1", "fd00::2")]
)
def test_a_gateway_with_an_ipv4_and_an_ipv6_address_counts_once(addresses: tuple[str, ...]) -> None:
    """As behind a Service of both families; a Service of IPv6 alone counts, too."""
    assert 2 == addresses_of("gateways", look_up=lambda *_, **__: [(0, 0, 0, "", (one, 0)) for one in addresses])


async def test_the_share_follows_the_number_of_gateways() -> None:
    """A number, or the addresses of a name. A failed lookup keeps the last count."""
    told: list[int] = []
    await follow_siblings("4", told.append)
    answers: list[Any] = [2, OSError("away"), OSError("away"), 5]

    def count(_name: str) -> int:
        answer = answers.pop(0) if answers else 5
        if isinstance(answer, OSError):
            raise answer
        return int(answer)

    task = asyncio.create_task(follow_siblings("gateways", told.append, count=count, pause=0.001))
    await soon(lambda: not answers and 5 in told)
    task.cancel()
    assert [4, 1, 2, 5] == told


async def test_every_worker_of_every_gateway_has_its_share(tenants: Tenants, make_stack: Callable[..., Any]) -> None:
    """Of quotas."""
    stack = make_stack(keys_file=str(tenants.path), replicas="4", workers=2)
    async with stack.gateway.running():
        await soon(lambda: stack.gateway._callers.access.quotas.share == 0.125)
