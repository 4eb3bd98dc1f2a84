"""Quotas and usage for callers and operators, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.callers.rights import OPERATIONS, Caller
from gateway.callers.siblings import addresses_of, follow_siblings
from gateway.callers.usage import Usage
from gateway.metrics import catalog
from gateway.metrics.observer import MAX_TENANTS, Observer
from gateway.trace import Trace
from tests.unit.gateway.grpc.test_server import Caller as Client
from tests.unit.gateway.grpc.test_server import channel_to, texts
from tests.unit.gateway.http.serving import Port, made_key, post, serving, write_keys
from tests.waiting import LIMIT_S, soon


class Tenants:
    """A file of keys with quotas."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        made = {tenant: made_key(tenant, operations=tuple(OPERATIONS)) for tenant in ("few", "free")}
        self.texts = {tenant: text for tenant, (text, _) in made.items()}
        self._keys = [key for _, key in made.values()]
        self.path = self.write(few={"requests_per_minute": 3})

    def write(self, **quotas: Any) -> Path:
        return write_keys(self._folder, *self._keys, quotas=quotas)


@pytest.fixture
def tenants(tmp_path: Path) -> Tenants:
    """See the class."""
    return Tenants(tmp_path)


@pytest.fixture
async def port(tenants: Tenants, make_stack: Callable[..., Any]) -> AsyncIterator[Port]:
    """A gateway with the endpoint `e` at a real port."""
    stack = make_stack(keys_file=str(tenants.path))
    async with stack.gateway.running(), serving(stack) as port:
        stack.deploy("e")
        await stack.served("e")
        yield port


async def ask(port: Port, key: str, times: int) -> list[tuple[int, dict[str, str], Any]]:
    """Make a number of inferences on one connection."""
    wire = await port.connect()
    found = []
    for _ in range(times):
        found.append(await wire.ask(post(b'{"text": "good film"}', "/serve/e", f"authorization: Bearer {key}")))
    return found


async def test_a_tenant_is_refused_over_its_quota(port: Port, tenants: Tenants) -> None:
    """With the time to wait. Other tenants are not affected. Answers and their tokens are counted, for billing."""
    found = await ask(port, tenants.texts["few"], 5)
    assert [200, 200, 200, 429, 429] == [status for status, _, _ in found]
    _, headers, body = found[-1]
    assert "quota_requests" == headers["x-refused-because"]
    assert 1 <= int(headers["retry-after"]) <= 20
    assert "quota_exceeded" == body["code"]
    free = await ask(port, tenants.texts["free"], 5)
    assert [200] * 5 == [status for status, _, _ in free]
    wire = await port.connect()
    wire.send(f"GET /metrics HTTP/1.1\r\nhost: x\r\nx-api-key: {tenants.texts['free']}\r\n\r\n".encode())
    _, headers = await wire.head()
    text = (await wire._reader.readexactly(int(headers["content-length"]))).decode()
    assert 'gateway_tenant_requests_total{endpoint="e",tenant="few"} 3' in text
    assert 'gateway_tenant_tokens_in_total{endpoint="e",tenant="few"} 12' in text
    assert 'gateway_over_quota_total{reason="quota_requests",tenant="few"} 2' in text


async def test_a_changed_quota_applies_to_the_next_request(port: Port, tenants: Tenants) -> None:
    """A raised and a removed one."""
    assert 429 == (await ask(port, tenants.texts["few"], 4))[-1][0]
    tenants.write()
    await port.stack.gateway._callers.look()
    assert [200] * 5 == [status for status, _, _ in await ask(port, tenants.texts["few"], 5)]
    tenants.write(free={"requests_per_minute": 0})
    await port.stack.gateway._callers.look()
    assert 429 == (await ask(port, tenants.texts["free"], 1))[0][0]


async def test_a_tenant_without_requests_is_refused_before_the_body_is_read(port: Port, tenants: Tenants) -> None:
    """A request with an unreadable body counts too."""
    wire = await port.connect()
    for body in (b"{", b'{"text": "good"}', b"{"):
        wire.send(post(body, "/serve/e", f"authorization: Bearer {tenants.texts['few']}"))
        await wire.answer()
    wire = await port.connect()
    key = f"authorization: Bearer {tenants.texts['few']}"
    wire.send(f"POST /serve/e HTTP/1.1\r\nhost: x\r\n{key}\r\ncontent-length: 1000000\r\n\r\n{{".encode())
    async with asyncio.timeout(LIMIT_S):
        status, headers = await wire.head()
    assert (429, "quota_requests") == (status, headers["x-refused-because"])


async def test_a_request_refused_for_tokens_does_not_count_as_a_request(port: Port, tenants: Tenants) -> None:
    """As if it was refused before its body was read."""
    tenants.write(few={"requests_per_minute": 3, "tokens_per_minute": 4})
    await port.stack.gateway._callers.look()
    found = await ask(port, tenants.texts["few"], 3)
    assert [200, 429, 429] == [status for status, _, _ in found]
    assert ["quota_tokens"] * 2 == [headers["x-refused-because"] for _, headers, _ in found[1:]]
    tenants.write(few={"requests_per_minute": 3})
    await port.stack.gateway._callers.look()
    assert [200, 200, 429] == [status for status, _, _ in await ask(port, tenants.texts["few"], 3)]


async def test_grpc_has_the_same_quotas(tenants: Tenants, make_stack: Callable[..., Any]) -> None:
    """A refusal has its own code and trailers."""
    stack = make_stack(keys_file=str(tenants.path))
    async with stack.gateway.running():
        stack.deploy("e")
        await stack.served("e")
        metadata = (("x-api-key", tenants.texts["few"]),)
        async with channel_to(stack) as channel:
            for _ in range(3):
                await Client(channel).call("ModelInfer", texts("e", "good"), pb.ModelInferResponse, metadata=metadata)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await Client(channel).call("ModelInfer", texts("e", "good"), pb.ModelInferResponse, metadata=metadata)
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is refused.value.code()
    assert "quota_requests" == dict(refused.value.trailing_metadata())["x-refused-because"]


@pytest.mark.parametrize(
    ("outcome", "sent", "billed"), [("ok", 7, [(9, 7)]), ("client_gone", 5, [(9, 5)]), ("client_gone", 0, [])]
)
def test_the_prompt_and_the_generated_tokens_are_billed(outcome: str, sent: int, billed: list[tuple[int, int]]) -> None:
    """Of an interrupted stream the sent ones. A caller that got nothing pays nothing."""
    found: list[tuple[int, int]] = []
    trace = Trace("id")
    trace.caller, trace.outcome, trace.tokens, trace.generated_tokens = Caller("k", "t"), outcome, 9, sent
    Usage(lambda _tenant, _endpoint, *tokens: found.append(tokens)).finished(trace)
    assert billed == found


def test_the_number_of_tenants_in_metrics_is_limited() -> None:
    """The 1,001st and all later ones share one label."""
    observer = Observer()
    for number in range(MAX_TENANTS + 50):
        observer.used(f"t{number}", "e", 1, 0)
    found = {of.labels: n for of, n in observer.snapshot().items() if of.metric == catalog.TENANT_REQUESTS.name}
    assert (MAX_TENANTS + 1, 50) == (len(found), found["other", "e"])


def test_a_gateway_with_an_ipv4_and_an_ipv6_address_counts_once() -> None:
    """As behind a Service of both families; a Service of IPv6 alone counts, too."""

    def look_up(*addresses: str) -> Callable[..., Any]:
        return lambda *_, **__: [(0, 0, 0, "", (address, 0)) for address in addresses]

    four, six = ("10.0.0.1", "10.0.0.2", "10.0.0.1"), ("fd00::1", "fd00::2")
    assert 2 == addresses_of("gateways", look_up=look_up(*four, *six))
    assert 2 == addresses_of("gateways", look_up=look_up(*six))


async def test_the_share_follows_the_number_of_gateways(caplog: pytest.LogCaptureFixture) -> None:
    """A number, or the addresses of a name. A failed lookup keeps the last count and is logged once."""
    told: list[int] = []
    await follow_siblings("4", told.append)
    assert [4] == told
    told.clear()
    answers: list[Any] = [2, OSError("away"), OSError("away"), OSError("away"), 5]

    def count(name: str) -> int:
        assert "gateways" == name
        answer = answers.pop(0) if answers else 5
        if isinstance(answer, OSError):
            raise answer
        return int(answer)

    task = asyncio.create_task(follow_siblings("gateways", told.append, count=count, pause=0.001))
    await soon(lambda: not answers and 5 in told)
    task.cancel()
    assert [1, 2, 5] == told
    assert 1 == caplog.text.count("away")


async def test_every_worker_of_every_gateway_has_its_share(tenants: Tenants, make_stack: Callable[..., Any]) -> None:
    """Of quotas."""
    stack = make_stack(keys_file=str(tenants.path), replicas="4", workers=2)
    async with stack.gateway.running():
        status = stack.gateway._callers.access.quotas.status
        await soon(lambda: status()["share"] == 0.125)
        assert json.dumps(status())
