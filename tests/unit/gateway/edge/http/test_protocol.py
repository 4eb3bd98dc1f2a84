"""The lane and the one-piece answer behind a real uvicorn on a real socket: the same answers as without them."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.dataplane.routing.canary import position_of
from gateway.edge.http.protocol import GatewayProtocol, Head, Heads


class Server:
    """A stack's gateway served by uvicorn with our protocol (or uvicorn's own) on a free port."""

    def __init__(self, stack: Any, http: Any) -> None:
        config = uvicorn.Config(
            stack.gateway, host="127.0.0.1", port=0, http=http, lifespan="off", log_config=None, ws="none",
            proxy_headers=False, loop="none",
        )  # fmt: skip
        self.stack = stack
        self._server = uvicorn.Server(config)
        self._task = asyncio.create_task(self._server._serve())

    async def started(self) -> int:
        """Wait for the port and return it."""
        while not self._server.started:
            await asyncio.sleep(0.005)
        return int(self._server.servers[0].sockets[0].getsockname()[1])

    async def stop(self) -> None:
        self._server.should_exit = True
        await self._task


@pytest.fixture(params=[GatewayProtocol, "httptools"], ids=["ours", "uvicorn"])
async def server(stack: Any, request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    """Both protocols serve the same: every test runs over each."""
    made = Server(stack, request.param)
    yield made
    await made.stop()


def post(text: str, path: str = "/serve/e", *headers: str) -> bytes:
    """One request as bytes."""
    body = json.dumps({"text": text}).encode()
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


class Wire:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """Read one answer: status, headers, decoded body."""
        async with asyncio.timeout(5):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.split(": ", 1) for line in head[1:] if line)
            body = await self.reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, json.loads(body)


async def connect(server: Server) -> Wire:
    """Open a connection."""
    return Wire(*await asyncio.open_connection("127.0.0.1", await server.started()))


async def deployed(server: Server) -> Wire:
    """A connection to a server with the endpoint `e`."""
    server.stack.deploy("e")
    await server.stack.served("e")
    return await connect(server)


async def test_answers_on_one_connection_come_one_after_another(server: Server) -> None:
    """Keep-alive: several requests, each with every header an answer has."""
    wire = await deployed(server)
    for text, label in (("good", "GOOD"), ("bad", "BAD"), ("good", "GOOD")):
        wire.writer.write(post(text, "/serve/e", f"x-request-id: {text}"))
        status, headers, body = await wire.answer()
        assert (200, label, text) == (status, body["label"], headers["x-request-id"])
        assert {
            "content-type", "content-length", "x-request-id", "x-served-by", "x-model-id", "x-route", "x-total-time",
            "x-tokenization-time", "x-queue-time", "x-inference-time", "x-compute-time",
        } <= set(headers)  # fmt: skip
    wire.writer.close()


async def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    """Three requests in one write, the first one slow: answers keep their order."""
    wire = await deployed(server)
    server.stack.backend.hold = asyncio.Event()
    wire.writer.write(post("good") + post("bad") + post("good film"))
    await asyncio.sleep(0.05)
    server.stack.backend.hold.set()
    assert ["GOOD", "BAD", "GOOD"] == [(await wire.answer())[2]["label"] for _ in range(3)]
    wire.writer.close()


async def test_body_in_pieces_is_the_same_request(server: Server) -> None:
    """Head and body, and the body itself, may arrive apart."""
    wire = await deployed(server)
    request = post("good")
    for piece in (request[:20], request[20:-5], request[-5:]):
        wire.writer.write(piece)
        await wire.writer.drain()
        await asyncio.sleep(0.02)
    assert (200, "GOOD") == ((answer := await wire.answer())[0], answer[2]["label"])
    wire.writer.close()


async def test_chunked_body_is_the_same_request(server: Server) -> None:
    """Transfer-encoding: chunked."""
    wire = await deployed(server)
    body = b'{"text": "good"}'
    wire.writer.write(
        b"POST /serve/e HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    )
    assert 200 == (await wire.answer())[0]
    wire.writer.close()


async def test_connection_close_is_honoured(server: Server) -> None:
    """The answer says so and the connection ends."""
    wire = await deployed(server)
    wire.writer.write(post("good", "/serve/e", "connection: close"))
    status, headers, _ = await wire.answer()
    assert (200, "close") == (status, headers["connection"])
    assert b"" == await wire.reader.read()


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (post("good", "/serve/nobody"), 404, "endpoint_not_found"),
        (post(""), 422, "input_refused"),
        (post("good", "/serve/e", "x-request-timeout-ms: soon"), 400, "bad_request"),
        (b"POST /serve/e HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n{", 400, "malformed_body"),
        (b"POST /serve/e HTTP/1.1\r\ncontent-type: a/b\r\ncontent-length: 2\r\n\r\n{}", 415, "unsupported_media"),
        (b"GET /serve/e HTTP/1.1\r\nhost: x\r\n\r\n", 405, "method_not_allowed"),
        (b"POST /serve/e HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n", 400, "malformed_body"),
    ],
)  # fmt: skip
async def test_refusals_are_the_same_and_the_connection_lives_on(
    server: Server, request_bytes: bytes, status: int, code: str
) -> None:
    """Status, JSON body with the request's id, and the next request is served."""
    wire = await deployed(server)
    wire.writer.write(request_bytes)
    answer = await wire.answer()
    assert (status, code) == (answer[0], answer[2]["code"])
    assert answer[1]["x-request-id"] == answer[2]["request_id"]
    wire.writer.write(post("good"))
    assert 200 == (await wire.answer())[0]
    wire.writer.close()


async def test_failing_backend_is_told_and_recovered_from(server: Server) -> None:
    """An outage is 503 with Retry-After; afterwards the same connection is served."""
    wire = await deployed(server)
    server.stack.backend.is_up = False
    wire.writer.write(post("good"))
    status, headers, body = await wire.answer()
    assert (503, "backend_unavailable", "1") == (status, body["code"], headers["retry-after"])
    server.stack.backend.is_up = True
    wire.writer.write(post("good"))
    assert 200 == (await wire.answer())[0]
    wire.writer.close()


async def test_a_failure_of_ours_in_one_answer_is_told_and_hurts_no_other(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that raises what nobody expects: 500 for that request, at once."""
    wire = await deployed(server)
    handler = server.stack.gateway.table.current.resolve("e", None)[0].text
    finish = handler.processor.finish
    monkeypatch.setattr(
        handler.processor, "finish", lambda outputs, prepared: 1 / 0 if failing else finish(outputs, prepared)
    )
    for failing in (True, False):
        wire.writer.write(post("good"))
        status, _, body = await wire.answer()
        assert (500, "internal") == (status, body["code"]) if failing else (200, "GOOD") == (status, body["label"])
    wire.writer.close()


async def test_client_that_leaves_is_counted_and_holds_nothing(server: Server) -> None:
    """A disconnect while Triton works: outcome client_gone, nothing in flight, the next client is served."""
    wire = await deployed(server)
    server.stack.backend.hold = asyncio.Event()
    wire.writer.write(post("good"))
    await asyncio.sleep(0.15)
    wire.writer.close()
    await asyncio.sleep(0.1)
    server.stack.backend.hold.set()
    text = (await server.stack.client.get("/metrics")).text
    assert 'outcome="client_gone",route="direct",version=""} 1.0' in text
    assert "gateway_requests_in_flight 0.0" in text
    again = await connect(server)
    again.writer.write(post("good"))
    assert 200 == (await again.answer())[0]
    again.writer.close()


async def test_canary_that_fails_is_answered_for_by_stable(server: Server) -> None:
    """The lane hands a failed canary request to the pipeline, which falls back and counts it once."""
    stack = server.stack
    stack.deploy("e", "m1", version="1")
    stack.deploy("e", "m2", version="2")
    stack.registry.canary["c"] = {"endpoint": "c", "weights": [0.6, 0.4], "load_endpoints": ["e/1", "e/2"]}
    await stack.served("e/1", "e/2")
    await stack.until(lambda: "c" in stack.gateway.table.current.canaries)
    key = next(key for key in map(str, range(100)) if position_of(key, "c") >= 0.6)
    del stack.backend.models[stack.triton_name("e/2")]
    wire = await connect(server)
    wire.writer.write(post("good", "/serve/c", f"x-routing-key: {key}"))
    status, headers, body = await wire.answer()
    assert (200, "GOOD", "fallback") == (status, body["label"], headers["x-route"])
    wire.writer.close()
    text = (await stack.client.get("/metrics")).text
    assert "gateway_requests_in_flight 0.0" in text
    assert 1 == sum(float(n) for n in re.findall(r"^gateway_requests_total{.*} (.*)$", text, re.M))


async def test_every_failure_of_a_canary_is_counted_against_it(server: Server) -> None:
    """Without a routing key the side is drawn once: a failed request is not drawn again."""
    stack = server.stack
    stack.deploy("e", "m1", version="1")
    stack.deploy("e", "m2", version="2")
    stack.registry.canary["c"] = {"endpoint": "c", "weights": [0.5, 0.5], "load_endpoints": ["e/2", "e/1"]}
    await stack.served("e/1", "e/2")
    await stack.until(lambda: "c" in stack.gateway.table.current.canaries)
    del stack.backend.models[stack.triton_name("e/2")]
    wire = await connect(server)
    random.seed(7)
    routes = []
    for _ in range(300):
        wire.writer.write(post("good", "/serve/c"))
        routes.append((await wire.answer())[1]["x-route"])
    wire.writer.close()
    assert {"stable", "fallback"} == set(routes)
    assert abs(routes.count("fallback") - 150) < 3 * (300 * 0.25) ** 0.5
    text = (await stack.client.get("/metrics")).text
    labels = 'endpoint="e",outcome="model_not_ready",version="2"'
    assert f"gateway_canary_fallbacks_total{{{labels}}} {routes.count('fallback')}.0" in text


class LoneFlight:
    """What the lane sees of a connection."""

    def __init__(self) -> None:
        self.answered: list[int] = []
        self.replayed: list[object] = []
        self.give_up = self.carried = None

    def reply(self, status: int, headers: object, body: bytes) -> None:
        """Take the answer."""
        self.answered.append(status)

    def send(self, head: bytes, body: bytes) -> None:
        """Take a good answer."""
        self.answered.append(int(head.split()[1]))

    def replay(self, carried: object) -> None:
        """Take the request back."""
        self.replayed.append(carried)


async def test_a_canary_without_a_key_is_answered_in_the_lane(stack: Any) -> None:
    """The common canary request costs no task either; only a failed one goes back, with the side it drew."""
    stack.deploy("e", "m1", version="1")
    stack.deploy("e", "m2", version="2")
    stack.registry.canary["c"] = {"endpoint": "c", "weights": [1.0, 0.0], "load_endpoints": ["e/2", "e/1"]}
    stack.registry.canary["d"] = {"endpoint": "d", "weights": [0.0, 1.0], "load_endpoints": ["e/2", "e/1"]}
    await stack.served("e/1", "e/2")
    await stack.until(lambda: {"c", "d"} <= set(stack.gateway.table.current.canaries))
    del stack.backend.models[stack.triton_name("e/2")]
    # a version of weight 1 is its own stable version: name the other one
    table = stack.gateway.table
    weighted = table.current.canaries["c"]
    table.current = replace(table.current, canaries={**table.current.canaries, "c": replace(weighted, stable="e/1")})
    good, failing = LoneFlight(), LoneFlight()
    lane = stack.gateway.lane
    assert lane.take(good, lane.read("/serve/d", []), b'{"text": "good"}')
    assert lane.take(failing, lane.read("/serve/c", []), b'{"text": "good"}')
    await stack.until(lambda: good.answered and failing.replayed)
    assert ([200], []) == (good.answered, good.replayed)
    (drawn,) = failing.replayed
    assert ("e/2", "canary", "e/1") == (drawn.endpoint.identity.url, drawn.route, drawn.fallback.identity.url)
    assert "model_not_ready" == drawn.error.kind


HEAD = b"POST /serve/e HTTP/1.1\r\nhost: x\r\n%bcontent-type: application/json\r\n\r\n"


def test_a_known_head_is_found_with_any_body_of_the_length_it_tells() -> None:
    """Only the digits of the length may differ; anything else is the parser's."""
    heads = Heads()
    kept = Head(b"/serve/e", [(b"content-length", b"4")], None)
    heads.remember(HEAD % b"content-length: 4\r\n" + b"body", kept, b"body")
    assert (kept, b"") == heads.find(HEAD % b"content-length: 0\r\n")
    assert (kept, b"longer body") == heads.find(HEAD % b"content-length: 11\r\n" + b"longer body")
    for other in (
        HEAD % b"content-length: 4\r\n" + b"bod",
        HEAD % b"content-length: 4\r\n" + b"body POST / HTTP/1.1",
        HEAD % b"Content-Length: 4\r\n" + b"body",
        HEAD % b"content-length: 4\r\nx-route-to: e\r\n" + b"body",
        HEAD % b"transfer-encoding: chunked\r\n" + b"body",
        b"content-length: 4\r\n",
        b"",
    ):
        assert heads.find(other) is None, other


@pytest.mark.parametrize(
    "data",
    [
        HEAD % b"x-content-length: 4\r\n" + b"body",
        HEAD % b"x: content-length: 4\r\n" + b"body",
        HEAD % b"content-length: 5\r\n" + b"body",
        HEAD % b"content-length: 4\r\n" + b"body and more",
        HEAD % b"content-length: 4\r\nx-request-id: mine\r\n" + b"body",
        HEAD % b"content-length: 4\r\nx: " + b"y" * 5000 + b"\r\n\r\nbody",
    ],
)  # fmt: skip
def test_heads_that_do_not_tell_the_length_or_name_their_request_are_not_kept(data: bytes) -> None:
    """What was taken for the body must be what the head announced and all that came."""
    heads = Heads()
    names = [line.partition(b":")[0] for line in data.split(b"\r\n")]
    heads.remember(data, Head(b"/serve/e", [(name, b"") for name in names], None), b"body")
    assert not len(heads)


def test_heads_are_bounded() -> None:
    """A client that never sends the same head twice costs no memory."""
    heads = Heads(most=8)
    for number in range(100):
        heads.remember(HEAD % b"x: %d\r\ncontent-length: 4\r\n" % number + b"body", Head(b"", [], None), b"body")
        assert 0 < len(heads) <= 8


async def test_known_heads_are_answered_as_unknown_ones(stack: Any) -> None:
    """The same bytes, in the same pieces, to a server that remembers heads and to one that does not."""
    stack.deploy("e")
    stack.registry.canary["c"] = {"endpoint": "c", "weights": [1.0], "load_endpoints": ["e"]}
    await stack.served("e")
    length = b"content-length: %d\r\n"
    good, bad, refused, broken = b'{"text": "good"}', b'{"text": "a bad film"}', b'{"texts": 1}', b'{"text'
    plain = [HEAD % (length % len(body)) + body for body in (good, bad, refused, broken)]
    odd = [
        HEAD % (b"content-length: 16\r\ncontent-length: 22\r\n") + bad,
        HEAD % (b"x-content-length: 22\r\ncontent-length: 16\r\n") + good,
        HEAD % (b"x-content-length: 16\r\ncontent-length: 22\r\n") + bad,
        HEAD % (b"content-length: 16\r\ntransfer-encoding: chunked\r\n") + b"10\r\n" + good + b"\r\n0\r\n\r\n",
        HEAD % b"transfer-encoding: chunked\r\n" + b"10\r\n" + good + b"\r\n0\r\n\r\n",
        (HEAD % (length % len(good))).replace(b"1.1", b"1.0") + good,
        HEAD % (b"connection: close\r\n" + length % len(good)) + good,
        (HEAD % (length % len(good))).replace(b"/serve/e", b"/serve/none") + good,
        (HEAD % (length % len(good))).replace(b"/serve/e", b"/serve/c") + good,
        b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n",
        b"what is this\r\n\r\n",
        plain[0] + plain[1],
    ]
    draw = random.Random(3)
    lane = stack.gateway.lane
    known, unknown = Heads(), Forgetful()
    lane.heads = known
    for request in plain + odd:  # it has seen them all
        await spoken(stack, [request])
    assert len(known)
    for _ in range(120):
        requests = draw.choices(plain, k=4) + draw.choices(odd, k=1)
        draw.shuffle(requests)
        cuts = [draw.choice([0, 0, 0, draw.randrange(len(request))]) for request in requests]
        pieces = [
            piece for request, at in zip(requests, cuts, strict=True) for piece in (request[:at], request[at:]) if piece
        ]
        answers = []
        for lane.heads in (known, unknown):
            answers.append(await spoken(stack, pieces))
        assert answers[0] == answers[1], pieces


class Forgetful(Heads):
    """Remembers nothing."""

    def remember(self, data: bytes, head: Head, body: bytes) -> None:
        pass


class Ear(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.heard = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.heard += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def spoken(stack: Any, pieces: list[bytes]) -> tuple[list[bytes], bytes, bool]:
    """Statuses and bodies (ids left out) that one connection answers to pieces, and whether it was closed."""
    config = uvicorn.Config(
        stack.gateway, lifespan="off", log_config=None, ws="none", proxy_headers=False, loop="none"
    )  # fmt: skip
    config.load()
    ear, protocol = Ear(), GatewayProtocol(config, ServerState(), {})
    protocol.connection_made(ear)
    for piece in pieces:
        if ear.is_closed:
            break
        protocol.data_received(piece)
        for _ in range(40):
            await asyncio.sleep(0)
    protocol.connection_lost(None)
    bodies = re.sub(rb"HTTP/1.1 [^\r]*\r\n(?:[^\r]+\r\n)*\r\n", b"|", ear.heard)
    return re.findall(rb"HTTP/1.1 (\d+)", ear.heard), re.sub(rb"[0-9a-f]{16}", b"ID", bodies), ear.is_closed


async def test_a_known_head_may_fall_back_on_a_new_connection(stack: Any) -> None:
    """The request goes to the application as if it had been parsed there."""
    stack.deploy("e", "m1", version="1")
    stack.deploy("e", "m2", version="2")
    stack.registry.canary["c"] = {"endpoint": "c", "weights": [0.5, 0.5], "load_endpoints": ["e/2", "e/1"]}
    await stack.served("e/1", "e/2")
    await stack.until(lambda: "c" in stack.gateway.table.current.canaries)
    del stack.backend.models[stack.triton_name("e/2")]
    server = Server(stack, GatewayProtocol)
    try:
        routes = []
        for text in ["good", "good good", "a good film"] * 8:
            wire = await connect(server)
            wire.writer.write(post(text, "/serve/c"))
            status, headers, body = await wire.answer()
            assert (200, "GOOD") == (status, body["label"])
            routes.append(headers["x-route"])
            wire.writer.close()
        assert {"stable", "fallback"} == set(routes)
        assert 1 == len(stack.gateway.lane.heads)
    finally:
        await server.stop()


async def test_many_clients_get_their_own_answers(server: Server) -> None:
    """Sixty-four connections at once, each asking for what only it asks for."""
    await deployed(server)
    wires = [await connect(server) for _ in range(64)]
    for round_ in range(3):
        for i, wire in enumerate(wires):
            wire.writer.write(post(" ".join(["good"] * (i % 3) + ["bad"] * (1 + (i + round_) % 2))))
        for i, wire in enumerate(wires):
            good, bad = i % 3, 1 + (i + round_) % 2
            body = (await wire.answer())[2]
            assert ("GOOD" if good > bad else "BAD") == body["label"]
    for wire in wires:
        wire.writer.close()
    text = (await server.stack.client.get("/metrics")).text
    assert 'gateway_requests_total{endpoint="e",outcome="ok",route="direct",version=""} 192.0' in text
