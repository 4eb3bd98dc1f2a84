"""The order of connections while the gateway is full: in simulated time, and over a real port."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from gateway.edge.http.connections import Connections
from gateway.edge.http.pacing import (
    MAX_PER_SECOND,
    MIN_PER_SECOND,
    NEW_CONNECTION_COST,
    RETRIES_PER_SECOND,
    TICK_S,
    RefusalPacer,
)
from gateway.edge.http.protocol import PAUSE, GatewayProtocol
from tests.simulated import SimulatedLoop, simulate
from tests.unit.gateway.edge.http.serving import Port, post, serving

Serve = Callable[..., AbstractAsyncContextManager[Port]]


class Asker:
    """A connection that sends the next request as soon as it gets an answer."""

    def __init__(self, crowd: Crowd, address: str = "a") -> None:
        self.crowd, self.address = crowd, address
        self.told: list[float] = []
        self.until = 0.0
        self.is_gone = False

    def ask(self) -> None:
        """Do as the protocol does with a new request."""
        pacer, now = self.crowd.pacer, self.crowd.now
        if self.crowd.room > 0:
            self.crowd.room -= 1
            self.crowd.let_in.append(self)
        elif self.told and (pacer.is_exhausted or now < self.until):
            pacer.pause(self, self.until)
        elif pacer.is_exhausted:
            pacer.wait(self, self.address)
        else:
            pacer.count_refusal(1.0 if self.told else NEW_CONNECTION_COST)
            self.told.append(now)
            self.until = pacer.pause_until(now)
            self.crowd.asks_again.append(self)

    def has_room(self) -> bool:
        """See ``pacing.PacedConnection``."""
        return self.crowd.room > 0

    def resume(self) -> bool:
        """See ``pacing.PacedConnection``."""
        if self.is_gone:
            return False
        self.ask()
        return True


class Crowd:
    """Simulated time: ``tick`` seconds pass between two looks."""

    def __init__(self, *, room: int = 0, tick: float = TICK_S) -> None:
        self.now, self.room, self._tick = 1.0, room, tick
        self.pacer = RefusalPacer(lambda: self.room, chance=lambda: 0.5)
        self.pacer.start(self.now)
        self.let_in: list[Asker] = []
        self.asks_again: list[Asker] = []

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / self._tick)):
            again, self.asks_again = self.asks_again, []
            for asker in again:
                asker.ask()
            self.now += self._tick
            self.pacer.tick(self.now)


def test_a_flood_is_refused_at_a_limited_rate_and_every_request_is_answered() -> None:
    """Without a limit, refusals would use the whole core. No waiting connection is forgotten."""
    crowd = Crowd()
    askers = [Asker(crowd) for _ in range(4000)]
    for asker in askers:
        asker.ask()
    first = sum(len(asker.told) for asker in askers)
    assert first <= MAX_PER_SECOND * TICK_S
    crowd.run(10)
    assert all(asker.told for asker in askers)
    before = sum(len(asker.told) for asker in askers)
    crowd.run(5)
    again = sum(len(asker.told) for asker in askers) - before
    assert 0.8 * 5 * RETRIES_PER_SECOND <= again <= 1.1 * 5 * RETRIES_PER_SECOND


def test_a_late_event_loop_refuses_fewer() -> None:
    """If it is ten times too late, answers need its time."""

    def told(tick: float) -> int:
        crowd = Crowd(tick=tick)
        askers = [Asker(crowd) for _ in range(4000)]
        for asker in askers:
            asker.ask()
        crowd.run(2)
        before = sum(len(asker.told) for asker in askers)
        crowd.run(1)
        return sum(len(asker.told) for asker in askers) - before

    assert told(0.05) <= MIN_PER_SECOND / NEW_CONNECTION_COST * 1.2
    assert told(TICK_S) >= 3.5 * told(0.05)


def test_a_new_connection_is_refused_before_those_that_repeat() -> None:
    """Three thousand connections repeat their request. A new one waits for a few looks at most."""
    crowd = Crowd()
    for _ in range(3000):
        Asker(crowd).ask()
    crowd.run(8)
    for _ in range(20):
        stranger = Asker(crowd)
        began = crowd.now
        stranger.ask()
        crowd.run(0.05)
        assert stranger.told
        assert stranger.told[0] - began <= 0.03


def test_client_addresses_take_turns() -> None:
    """A client that opens thousands of connections delays only itself."""
    crowd = Crowd()
    for _ in range(5000):
        Asker(crowd).ask()
    other = Asker(crowd, "b")
    other.ask()
    began = crowd.now
    crowd.run(0.05)
    assert other.told[0] - began <= 4 * TICK_S


def test_paused_connections_are_read_as_soon_as_there_is_room() -> None:
    """A pause is not a punishment: free places are used."""
    crowd = Crowd()
    asker = Asker(crowd)
    asker.ask()
    crowd.run(TICK_S)  # it asks again, and rests
    assert 1 == len(crowd.pacer)
    crowd.room = 1
    crowd.run(2 * TICK_S)
    assert [asker] == crowd.let_in


def test_paused_connections_get_their_turn_among_new_ones() -> None:
    """If more new ones came than could be refused, a paused connection used to wait for ever."""
    crowd = Crowd()
    patient = Asker(crowd)
    patient.ask()
    for _ in range(600):
        for _ in range(100):
            Asker(crowd).ask()
        crowd.asks_again = [asker for asker in crowd.asks_again if asker is patient]
        crowd.run(TICK_S)
    assert len(patient.told) >= 3


def test_closed_connections_do_not_prolong_the_pause_of_others() -> None:
    """Thousands of a flood have left during their pause. Reading them again would take seconds."""
    crowd = Crowd()
    flood = [Asker(crowd) for _ in range(5000)]
    for asker in flood:
        asker.ask()
    crowd.run(6)
    assert len(crowd.pacer) > 3000
    for asker in flood:
        asker.is_gone = True
    crowd.asks_again.clear()
    last = Asker(crowd)
    last.ask()
    crowd.run(1.5)
    assert len(last.told) >= 2


async def test_an_exception_of_one_connection_does_not_stop_the_turns_of_others() -> None:
    """Otherwise all paused and waiting connections would wait for ever."""
    connections = Connections(room=lambda: 0)
    went_on = asyncio.Event()

    class PacedConnection:
        def __init__(self, *, is_broken: bool) -> None:
            self.is_broken = is_broken

        def has_room(self) -> bool:
            return True

        def resume(self) -> bool:
            if self.is_broken:
                raise RuntimeError("broken")
            went_on.set()
            return True

    loop, said = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _loop, context: said.append(context["exception"]))
    for is_broken in (True, False):
        connections.pacer.pause(PacedConnection(is_broken=is_broken), loop.time())
    connections.start_pacing(loop)
    await asyncio.wait_for(went_on.wait(), 10)
    assert ["broken"] == [str(error) for error in said]


def test_retry_after_grows_with_the_number_of_paused_connections() -> None:
    """``Retry-After`` is the time until they are read again."""
    crowd = Crowd()
    for _ in range(4000):
        Asker(crowd).ask()
    assert 1.0 == crowd.pacer.retry_after
    crowd.run(6)
    assert 2.5 <= crowd.pacer.retry_after <= 4


def test_the_clock_stops_without_paused_connections() -> None:
    """It starts again with the next refusal, or when a paused connection sends again."""
    pacer = RefusalPacer(lambda: 0)
    pacer.count_refusal()
    assert pacer.start(1.0)
    assert not pacer.start(1.0)
    looks = 0
    while pacer.tick(1.0 + TICK_S * (looks + 1)):
        looks += 1
        assert looks < 100
    assert pacer.start(9.0)


def test_waiting_connections_are_answered_when_the_process_drains() -> None:
    """They are not dropped."""
    crowd = Crowd()
    for _ in range(500):
        Asker(crowd).ask()
    crowd.room = 500
    crowd.pacer.resume_all()
    assert 0 == len(crowd.pacer)


@pytest.fixture(params=[True, False], ids=["fast", "ordinary"])
def serve(make_stack: Callable[..., Any], request: pytest.FixtureRequest) -> Serve:
    """Serve an endpoint whose model answers when the test says so, on each path."""

    @asynccontextmanager
    async def make(**settings: Any) -> AsyncIterator[Port]:
        stack = make_stack(fast_path=request.param, max_in_flight=1, **settings)
        stack.deploy("e")
        stack.may_answer = asyncio.Event()
        answer = stack.backend.infer

        async def infer(*arguments: Any, **options: Any) -> Any:
            await stack.may_answer.wait()
            return await answer(*arguments, **options)

        async with stack.gateway.running(), stack.client, serving(stack) as port:
            await stack.served("e")
            stack.backend.infer = infer
            yield port

    return make


async def busy(port: Port) -> Any:
    """Take the only permit."""
    wire = await port.connect()
    wire.send(post())
    await port.stack.until(lambda: port.stack.gateway.permits.in_flight == 1)
    return wire


async def test_a_refused_connection_is_not_read_until_there_is_room(serve: Serve) -> None:
    """It used to be refused 15,000 times a second, while admitted requests waited."""
    async with serve() as port:
        first = await busy(port)
        second = await port.connect()
        second.send(post())
        status, headers, body = await second.answer()
        assert (429, "overloaded", "1") == (status, body["code"], headers["retry-after"])
        second.send(post())
        pacer = port.stack.gateway.connections.pacer
        await port.stack.until(lambda: len(pacer) == 1)
        port.stack.may_answer.set()
        assert 200 == (await first.answer())[0]
        assert 200 == (await second.answer())[0]  # it rested until there was room, and was not refused again


async def test_a_paused_connection_is_refused_again_after_its_pause(serve: Serve) -> None:
    """As long as no permit becomes free."""
    async with serve() as port:
        await busy(port)
        second = await port.connect()
        for _ in range(2):
            second.send(post())
            assert 429 == (await second.answer())[0]


async def test_a_paused_connection_that_sends_again_is_answered(serve: Serve) -> None:
    """Without other refusals, the clock of the turns had stopped and it waited for ever."""
    async with serve() as port:
        await busy(port)
        wire = await port.connect()
        wire.send(post())
        assert 429 == (await wire.answer())[0]
        pacer = port.stack.gateway.connections.pacer
        await port.stack.until(lambda: not pacer._ticked)
        wire.send(post())
        assert 429 == (await wire.answer())[0]


async def test_prepared_and_rendered_refusals_are_equal(serve: Serve) -> None:
    """Except for the id, at every address."""
    async with serve() as port:
        await busy(port)
        for path in ("/serve/e", "/v1/models/e:predict"):
            found = []
            for more in ((), ("x-request-id: " + "a" * 16,)):
                wire = await port.connect()
                for _ in range(2):  # the second one's head is known
                    wire.send(post(b'{"text": "good"}', path, *more))
                    status, headers, body = await wire.answer()
                    request_id = headers.pop("x-request-id")
                    headers.pop("date", "")  # uvicorn's
                    assert 16 == len(request_id)
                    found.append((status, headers, {**body, "request_id": ""}))
            assert 429 == found[0][0]
            assert [found[0]] * 4 == found


async def test_a_refused_request_is_counted_once(serve: Serve) -> None:
    """Under the endpoint that it called."""
    async with serve() as port:
        await busy(port)
        wire = await port.connect()
        for _ in range(3):
            wire.send(post())
            assert 429 == (await wire.answer())[0]
        text = (await port.stack.client.get("/metrics")).text
        assert 'gateway_requests_total{endpoint="e",outcome="overloaded",route="",version=""} 3.0' in text


async def test_a_connection_that_closes_during_its_pause_is_freed(serve: Serve) -> None:
    """Its buffered bytes are released."""
    async with serve() as port:
        await busy(port)
        wire = await port.connect()
        wire.send(post())
        await wire.answer()
        wire.send(post())
        pacer = port.stack.gateway.connections.pacer
        await port.stack.until(lambda: pacer.buffered_bytes > 0)
        wire.close()
        await port.stack.until(lambda: len(pacer) == 0 and pacer.buffered_bytes == 0)


async def test_health_is_answered_while_the_gateway_is_full(serve: Serve) -> None:
    """A probe does not belong to the flood."""
    async with serve() as port:
        await busy(port)
        for _ in range(3):
            wire = await port.connect()
            wire.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
            assert 200 == (await wire.answer())[0]


async def test_a_flood_of_one_endpoint_leaves_room_for_others(make_stack: Callable[..., Any]) -> None:
    """With a limit over all endpoints, 99 of 100 requests of two others failed."""
    for fast_path in (True, False):
        stack = make_stack(fast_path=fast_path, max_in_flight=32)
        stack.registry.endpoints = {}
        stack.deploy("slow")
        stack.deploy("quick", "m2")
        may_answer = asyncio.Event()
        answer = stack.backend.infer
        slow = stack.triton_name("slow")

        async def infer(model: str, *arguments: Any, **options: Any) -> Any:
            if model == slow:  # noqa: B023 - of this round
                await may_answer.wait()  # noqa: B023
            return await answer(model, *arguments, **options)  # noqa: B023

        async with stack.gateway.running(), stack.client, serving(stack) as port:
            await stack.served("slow", "quick")
            stack.backend.infer = infer
            flood = [await port.connect() for _ in range(40)]
            for wire in flood:
                wire.send(post(path="/serve/slow"))
            status, headers, _ = await flood[-1].answer()
            assert (429, "endpoint_full") == (status, headers["x-refused-because"])
            for _ in range(5):
                wire = await port.connect()
                wire.send(post(path="/serve/quick"))
                assert 200 == (await wire.answer())[0]
            may_answer.set()


async def test_a_class_is_asked_for_by_name(serve: Serve) -> None:
    """Another class is a client error. Critical requests have their own permits only if there are at least sixteen."""
    async with serve() as port:
        await busy(port)
        wire = await port.connect()
        wire.send(post(b'{"text": "good"}', "/serve/e", "x-priority: urgent"))
        status, _, body = await wire.answer()
        assert (400, "x-priority must be one of critical, default, batch") == (
            status,
            body["error"],
        )
        wire.send(post(b'{"text": "good"}', "/serve/e", "x-priority: batch"))
        status, headers, _ = await wire.answer()
        assert (429, "gateway_full") == (status, headers["x-refused-because"])
        text = (await port.stack.client.get("/metrics")).text
        assert 'gateway_refused_requests_total{priority="batch",reason="gateway_full"} 1.0' in text


async def test_a_request_beyond_the_work_limit_is_refused_before_its_body(make_stack: Callable[..., Any]) -> None:
    """On either path. It holds no bytes. The others are answered."""
    for fast_path in (True, False):
        stack = make_stack(fast_path=fast_path, work_limit="always")
        stack.registry.endpoints = {}
        stack.deploy("e")
        async with stack.gateway.running(), stack.client, serving(stack) as port:
            await stack.served("e")
            batcher = stack.gateway.table.current.endpoints["e"].batcher
            batcher.limit.per_row = 1.0  # so that one row is as much as the limit admits
            stack.backend.hold = asyncio.Event()
            flood = [await port.connect() for _ in range(20)]
            for wire in flood:
                wire.send(post())
            status, headers, _ = await flood[-1].answer()
            assert (429, "work_full") == (status, headers["x-refused-because"])
            permits = stack.gateway.permits
            await stack.until(lambda: permits.in_flight < 19)  # noqa: B023 - of this round
            held = permits.held_bytes
            late = await port.connect()
            late.send(post(b"x" * 100_000)[:-99_000])
            status, headers, _ = await late.answer()
            assert (429, "work_full") == (status, headers["x-refused-because"])
            assert held == permits.held_bytes
            stack.backend.hold.set()
            assert 200 == (await flood[0].answer())[0]


class Stuck(RefusalPacer):
    """The limit on refusals is reached, and no turn comes."""

    is_stuck = True

    def begin(self, now: float) -> bool:
        """Never begin."""
        del now
        return False

    @property
    def is_exhausted(self) -> bool:
        """Always, until it goes on."""
        return self.is_stuck

    @is_exhausted.setter
    def is_exhausted(self, value: bool) -> None:
        pass


def stick(port: Port) -> Stuck:
    """Make all new connections wait."""
    pacer = port.stack.gateway.connections.pacer = Stuck(port.stack.gateway.permits.free)
    return pacer


@pytest.mark.parametrize("line", ["X-Priority: critical", "x-priority:critical", "X-PRIORITY: \t CRITICAL "])
async def test_a_critical_request_is_read_before_waiting_refusals(serve: Serve, line: str) -> None:
    """It used to be read seconds later. It has its own permit beyond the others'."""
    async with serve() as port:
        port.stack.gateway.permits.ceilings = (2, 1, 1)
        await busy(port)
        pacer = stick(port)
        other, critical = await port.connect(), await port.connect()
        other.send(post())
        await port.stack.until(lambda: len(pacer) == 1)
        critical.send(post(b'{"text": "good"}', "/serve/e", line))
        await port.stack.until(lambda: port.stack.gateway.permits.in_flight == 2)
        assert 1 == len(pacer)
        port.stack.may_answer.set()
        assert 200 == (await critical.answer())[0]


async def test_unproven_critical_requests_wait_if_too_many_come(serve: Serve) -> None:
    """Any stranger can send the header. Only as many are read out of turn as are refused in a few milliseconds."""
    async with serve() as port:
        await busy(port)
        pacer = stick(port)
        pacer.count_refusal(MAX_PER_SECOND)
        wire = await port.connect()
        wire.send(post(b'{"text": "good"}', "/serve/e", "x-priority: critical"))
        await port.stack.until(lambda: len(pacer) == 1)


@pytest.mark.parametrize("serve", [True], indirect=True)
async def test_an_admissible_request_does_not_wait_for_refusals(serve: Serve) -> None:
    """A permit is free because another caller was answered."""
    async with serve() as port:
        port.stack.may_answer.set()
        wire = await port.connect()
        wire.send(post())
        assert 200 == (await wire.answer())[0]
        pacer = stick(port)
        wire = await port.connect()
        wire.send(post())
        assert 200 == (await wire.answer())[0]
        assert 0 == len(pacer)


@pytest.mark.parametrize("serve", [True], indirect=True)
async def test_a_request_that_waited_too_long_is_refused_despite_room(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newer requests are answered quickly in its place. Critical ones are answered."""
    monkeypatch.setattr("gateway.edge.http.fast._MAX_WAIT_S", -1.0)
    async with serve() as port:
        asks = post(b'{"text": "good"}', "/serve/e", "x-priority: critical")
        known = await port.connect()
        known.send(asks)
        await port.stack.until(lambda: port.stack.gateway.permits.in_flight == 1)
        port.stack.may_answer.set()
        assert 200 == (await known.answer())[0]
        port.stack.may_answer.clear()
        first = await busy(port)
        pacer = stick(port)
        late, critical = await port.connect(), await port.connect()
        late.send(post())
        critical.send(asks)
        await port.stack.until(lambda: len(pacer) == 2)
        port.stack.may_answer.set()
        assert 200 == (await first.answer())[0]
        port.stack.gateway.permits.ceilings = (3, 3, 3)
        pacer.resume_all()
        status, headers, _ = await late.answer()
        assert (429, "work_full") == (status, headers["x-refused-because"])
        assert 200 == (await critical.answer())[0]
        assert 0 == pacer.buffered_bytes


async def test_a_connection_that_is_closed_while_it_waits_is_freed(serve: Serve) -> None:
    """Ten thousand callers that had left after seconds took the places of all others."""
    async with serve() as port:
        await busy(port)
        pacer, connections = stick(port), port.stack.gateway.connections
        wires = [await port.connect() for _ in range(3)]
        for wire in wires:
            wire.send(post())
        await port.stack.until(lambda: len(pacer) == 3)
        for wire in wires[:2]:
            wire.reset()
        await port.stack.until(lambda: (len(pacer), len(connections.open)) == (1, 2))
        wires[2].send(post())  # and one that sends more meanwhile keeps its order
        held = len(post())
        await port.stack.until(lambda: pacer.buffered_bytes == 2 * held)
        port.stack.may_answer.set()
        port.stack.gateway.permits.ceilings = (9, 9, 9)
        port.stack.gateway.permits.easy = (9, 9, 9)
        pacer.is_stuck = False
        pacer.resume_all()
        assert [200, 200] == [(await wires[2].answer())[0] for _ in range(2)]
        assert 0 == pacer.buffered_bytes


async def test_a_half_closed_connection_that_waits_is_answered(serve: Serve) -> None:
    """It may still read."""
    async with serve() as port:
        await busy(port)
        pacer = port.stack.gateway.connections.pacer
        pacer.count_refusal(MAX_PER_SECOND / 50)
        wire = await port.connect()
        wire.send(post())
        wire.half_close()
        status, _, _ = await wire.answer()
        assert 429 == status
        assert b"" == await wire.rest()


async def test_a_connection_waiting_for_its_refusal_makes_room_for_a_new_one(serve: Serve) -> None:
    """But not one that is idle or has sent nothing: it may be a critical caller's."""
    async with serve(max_connections=3) as port:
        await busy(port)
        idle = await port.connect()
        pacer = stick(port)
        waits = await port.connect()
        waits.send(post())
        await port.stack.until(lambda: len(pacer) == 1)
        await port.connect()
        assert (await waits.rest())[:12] in (b"", b"HTTP/1.1 429")
        assert 0 == len(pacer)
        assert 0 == pacer.buffered_bytes
        port.stack.may_answer.set()
        await port.stack.until(lambda: port.stack.gateway.permits.in_flight == 0)
        pacer.is_stuck = False
        idle.send(post())
        assert 200 == (await idle.answer())[0]


class Pipe(asyncio.Transport):
    """A transport that records whether it is read from, and the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read, self.is_closed, self.written = True, False, b""

    def pause_reading(self) -> None:
        """See ``asyncio.Transport``, as for the others."""
        self.is_read = False

    def resume_reading(self) -> None:
        """Record it."""
        self.is_read = True

    def write(self, data: Any) -> None:
        """Record it."""
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        """Return 0: everything is sent."""
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return nothing."""
        del name
        return default

    def is_closing(self) -> bool:
        """Return whether it is closed."""
        return self.is_closed

    def close(self) -> None:
        """Record it."""
        self.is_closed = True

    abort = close


class Caller:
    """Sends a request, in one or several pieces, as long as its connection is read."""

    def __init__(self, protocol: GatewayProtocol) -> None:
        self.pipe, self._protocol, self._left, self.asked = Pipe(), protocol, b"", 0
        protocol.connection_made(self.pipe)

    def send(self, size: int, share: float) -> None:
        """Send a part of the current request, or of a new one with a text of this size."""
        if not self._left:
            self._left, self.asked = post(b'{"text": "' + b"x" * size + b'"}'), self.asked + 1
        self.resume(share)

    def resume(self, share: float = 1.0) -> None:
        """Send so much of what is left."""
        if self._left and self.pipe.is_read and not self.pipe.is_closed:
            cut = max(int(share * len(self._left)), 1)
            piece, self._left = self._left[:cut], self._left[cut:]
            self._protocol.data_received(piece)


@pytest.mark.parametrize("seed", range(40))
def test_every_connection_is_finally_read_and_answered(seed: int) -> None:
    """After requests in pieces, changing room and floods of refusals in any order, there is room."""
    chance = random.Random(seed)

    async def story(loop: SimulatedLoop) -> None:
        room = 0
        connections = Connections(room=lambda: room)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if room:
                while (await receive()).get("more_body"):
                    pass
                await asyncio.sleep(chance.choice((0.0, 0.01)))
            else:
                scope["extensions"][PAUSE](lambda: not room)
            head = [(b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 200 if room else 429, "headers": head})
            await send({"type": "http.response.body", "body": b""})

        config = Config(app, http=GatewayProtocol, lifespan="off", log_config=None, access_log=False)
        config.load()
        config.loaded_app.connections = connections
        state = ServerState()
        protocols = [GatewayProtocol(config=config, server_state=state, app_state={}, _loop=loop) for _ in range(5)]
        callers = [Caller(protocol) for protocol in protocols]
        for _ in range(60):
            what = chance.choice(("ask", "ask", "part", "wait", "wait", "room", "refusals"))
            if what in ("ask", "part"):
                chance.choice(callers).send(chance.choice((1, 1, 100_000)), chance.random() if what == "part" else 1.0)
            elif what == "wait":
                await asyncio.sleep(chance.choice((0.001, 0.1, 0.7)))
            elif what == "room":
                room = 1 - room
            else:
                connections.refused(loop, 200.0)
        room = 1
        for _ in range(40):
            await asyncio.sleep(0.2)
            for caller in callers:
                caller.resume()
        for caller, protocol in zip(callers, protocols, strict=True):
            assert caller.pipe.is_read or caller.pipe.is_closed
            assert caller.pipe.written.count(b"HTTP/1.1 ") >= caller.asked
            protocol.connection_lost(None)
        await asyncio.sleep(1)

    simulate(story)
