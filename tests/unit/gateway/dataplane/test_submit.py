"""The way through, with fakes and without sockets: choice and lease in one step, permits, one record, adapters."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from gateway.admission import PRESSED_S, Permits, Pressure
from gateway.call import Ask
from gateway.dataplane.inflight import ENDED, InFlight
from gateway.dataplane.routing.canary import Weighted
from gateway.dataplane.routing.snapshot import Snapshot
from gateway.dataplane.routing.table import RoutingTable
from gateway.dataplane.submit import DataPlane, ask_version
from gateway.endpoints.endpoint import Endpoint, in_task, offload
from gateway.errors import (
    BackendUnavailable,
    DeadlineExceeded,
    Draining,
    EndpointNotFound,
    GatewayError,
    MalformedBody,
    Overloaded,
    Unavailable,
    VersionNotFound,
)
from gateway.health import Health
from gateway.metrics.observer import Observer
from gateway.trace import BATCH, DEFAULT, Trace
from tests.unit.gateway.dataplane.flights import Counted, Echo, Obedient


class Plane:
    """A data plane over endpoints that do as they are told."""

    def __init__(
        self, *urls: str, timeout: float = 30.0, max_requests: int = 3, max_bytes: int = 1000, limits: str = "off"
    ) -> None:
        self.table, self.health = RoutingTable(), Health(None)
        self.health.first_sync_done = True
        self.permits = Permits(max_requests, max_bytes, Pressure(limits))
        self.plane = DataPlane(self.table, self.permits, Observer(), self.health, timeout=timeout)
        self.ended: list[Trace] = []
        self.plane.subscribe(self.ended.append)
        self.endpoints = {url: Counted(Obedient(), url) for url in urls}
        self.publish()

    def publish(self, **canaries: Weighted) -> None:
        """Swap to what is in ``endpoints`` now."""
        served: dict[str, Endpoint] = dict(self.endpoints)
        self.table.swap(Snapshot("r", MappingProxyType(served), MappingProxyType(canaries)))

    def job(self, url: str) -> Any:
        """The newest job of an endpoint."""
        handler: Any = self.endpoints[url].handler
        return handler.jobs[-1]

    def submit(self, call: Any) -> tuple[InFlight, list[InFlight]]:
        """Submit; returns the flight, and a list that holds it when it has ended."""
        done: list[InFlight] = []
        return self.plane.submit(call, done.append), done


async def test_a_version_that_is_replaced_is_open_for_those_who_have_chosen_it() -> None:
    """Choice and lease are one step: the old one is closed after its last answer, and nobody meets it closed."""
    made = Plane("e")
    old = made.endpoints["e"]
    first, done = made.submit(Echo())
    made.endpoints["e"] = Counted(Obedient(), "e")
    made.publish()
    retiring = asyncio.create_task(old.retire())
    await asyncio.sleep(0)
    assert not old.handler.is_closed
    _, others = made.submit(Echo())
    assert 1 == old.leased
    made.job("e").answered("new")
    old.handler.jobs[-1].answered("old")
    await retiring
    assert old.handler.is_closed
    assert [b"('e', 'old')", b"('e', 'new')"] == [done[0].reply, others[0].reply]
    assert first.state is ENDED


async def test_the_version_behind_a_canary_is_held_as_long_as_it_may_be_needed() -> None:
    """It used to be leased when the canary failed: replaced meanwhile, it was asked after it was closed."""
    made = Plane("new", "old")
    made.publish(c=Weighted(("new", "old"), (1.0, 1.0), "old"))
    _, done = made.submit(Echo("c"))
    retiring = asyncio.create_task(made.endpoints["old"].retire())
    await asyncio.sleep(0)
    made.job("new").failed(BackendUnavailable("away"))
    assert not made.endpoints["old"].handler.is_closed
    made.job("old").answered("saved")
    await retiring
    assert b"('old', 'saved')" == done[0].reply


@pytest.mark.parametrize(
    ("path", "pin", "error"),
    [("none", "", EndpointNotFound), ("e/9", "", VersionNotFound), ("e", "e/9", VersionNotFound)],
)
async def test_who_is_not_there_is_an_end_and_no_exception(path: str, pin: str, error: type[GatewayError]) -> None:
    """``submit`` never raises; ``done`` is called before it returns, and nothing is held."""
    made = Plane("e")
    call = Echo(path)
    call.pin = pin
    flight, done = made.submit(call)
    assert [flight] == done
    assert isinstance(flight.error, error)
    assert error.kind == made.ended[0].outcome


async def test_every_way_ends_in_one_record() -> None:
    """Answered, refused before there was a call, given up."""
    made = Plane("e")
    made.submit(Echo())
    made.job("e").answered("yes")
    made.plane.refuse(made.plane.open("r"), MalformedBody("no"))
    flight, _ = made.submit(Echo())
    flight.cancel()
    assert ["ok", "malformed_body", "client_gone"] == [trace.outcome for trace in made.ended]
    assert 0 == made.plane._observer._in_flight


@pytest.mark.looptime
async def test_the_deadline_ends_a_request_whatever_the_handler_does() -> None:
    """And frees the version at once; the handler's late answer is nobody's."""
    made = Plane("e", timeout=2.0)
    flight, done = made.submit(Echo())
    await asyncio.sleep(1.9)
    assert not done
    await asyncio.sleep(0.3)
    assert [flight] == done
    assert isinstance(flight.error, DeadlineExceeded)
    assert "no answer within 2 s" in str(flight.error)
    made.job("e").answered("late")
    assert (1, 1, 1) == (made.endpoints["e"].released, len(made.ended), made.endpoints["e"].handler.given_up)


@pytest.mark.looptime
async def test_the_time_a_body_took_counts() -> None:
    """The deadline is that of the request, from its first byte on."""
    made = Plane("e", timeout=2.0)
    trace = made.plane.open("r")
    trace.started_ns -= 1_500_000_000
    done: list[InFlight] = []
    made.plane.submit(Echo(), done.append, trace)
    await asyncio.sleep(0.7)
    assert isinstance(done[0].error, DeadlineExceeded)


async def test_cancelling_who_asks_cancels_the_request() -> None:
    """A coroutine that waits and is cancelled leaves no lease and no job behind."""
    made = Plane("e")
    asking = asyncio.create_task(made.plane.ask(Echo()))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (1, ["client_gone"]) == (made.endpoints["e"].released, [trace.outcome for trace in made.ended])


async def test_a_hooks_call_is_answered_in_process_and_raises_what_went_wrong() -> None:
    """Counted like any other request; no permit, since the one whose hook calls has one."""
    made = Plane("e", max_requests=1)
    with made.plane.permit():
        asking = asyncio.create_task(made.plane.call("e", {"text": "x"}, 5.0))
        await asyncio.sleep(0)
        assert {"text": "x"} == made.job("e").question
        made.job("e").answered([1])
        assert [1] == await asking
    with pytest.raises(EndpointNotFound):
        await made.plane.call("none", {}, 5.0)
    assert ["ok", "endpoint_not_found"] == [trace.outcome for trace in made.ended]


async def test_a_version_can_be_asked_that_nobody_else_knows() -> None:
    """Trials and shadows: the same way, recorded nowhere; a hung one ends at its deadline."""

    class Doubles:
        takes_bytes = False

        async def answer(self, body: Any, _trace: Trace, _deadline: float) -> object:
            if body == "hang":
                await asyncio.Event().wait()
            return body * 2

        async def close(self) -> None: ...

    endpoint = Counted(Doubles())
    endpoint.handler.is_closed = False  # type: ignore[attr-defined]
    assert "abab" == await ask_version(endpoint, "ab", 5.0, Trace("trial"))
    with pytest.raises(DeadlineExceeded):
        await ask_version(endpoint, "hang", 0.02, Trace("trial"))
    assert (2, 2) == (endpoint.leased, endpoint.released)


async def test_coroutines_end_with_their_request() -> None:
    """The one adapter: cancelled with the flight; its exceptions, foreign ones too, are answers."""
    made = Plane("e")
    handler: Any = made.endpoints["e"].handler
    seen: list[str] = []

    async def wait() -> object:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")
        return None

    async def break_() -> object:
        raise KeyError("ours")

    handler._begin = lambda job: in_task(job, wait())
    flight, _ = made.submit(Echo())
    await asyncio.sleep(0)
    flight.cancel()
    await asyncio.sleep(0)
    assert ["ended"] == seen
    handler._begin = lambda job: in_task(job, break_())
    _, done = made.submit(Echo())
    await asyncio.sleep(0)
    assert "internal" == done[0].error.kind  # type: ignore[union-attr]


async def test_what_a_thread_has_done_for_a_request_that_is_over_goes_no_further() -> None:
    """Nor if the request ends between the thread's end and the turn of what comes next."""

    class Thread(Executor):
        def __init__(self) -> None:
            self.work = Future[Any]()

        def submit(self, *_: Any, **__: Any) -> Any:
            return self.work

    made, went_on = Plane("e"), list[str]()
    for is_over in (False, True):
        thread = Thread()
        begin = partial(offload, threads=thread, function=str, then=went_on.append)
        made.endpoints["e"].handler._begin = begin  # type: ignore[attr-defined]
        flight, _ = made.submit(Echo())
        thread.work.set_result("gone" if is_over else "here")
        await asyncio.sleep(0)  # the loop knows of it, what comes next has not had its turn
        if is_over:
            flight.cancel()
        await asyncio.sleep(0)
    assert ["here"] == went_on


# --- permits ----------------------------------------------------------------------------------------------------------


async def test_permits_bound_requests_and_the_bytes_of_their_bodies() -> None:
    """Each comes back once, whatever order; what is refused holds nothing."""
    made = Plane(max_requests=2, max_bytes=100)
    first, second = made.plane.permit(60), made.plane.permit()
    with pytest.raises(Overloaded, match="2 requests"):
        made.plane.permit()
    with pytest.raises(Overloaded, match="holds"):
        second.hold(50)
    second.hold(40)
    first.release()
    first.release()
    assert (1, 40) == (made.permits.in_flight, made.permits.held_bytes)
    with pytest.raises(Overloaded), second:
        made.plane.permit(70)
    assert (0, 0) == (made.permits.in_flight, made.permits.held_bytes)


async def test_a_single_large_request_is_let_in() -> None:
    """The bound is on many together: one that is larger than it would otherwise never be answered."""
    made = Plane(max_bytes=100)
    with made.plane.permit() as permit:
        permit.hold(150)
        permit.hold(150)
        with pytest.raises(Overloaded):
            made.plane.permit(1)
    assert 0 == made.permits.held_bytes


async def test_nobody_is_let_in_before_the_first_configuration_or_while_draining() -> None:
    """Refused before the body is read."""
    made = Plane("e")
    made.health.first_sync_done = False
    with pytest.raises(Unavailable):
        made.plane.permit()
    made.health.first_sync_done = True
    made.health.is_draining = True
    with pytest.raises(Draining):
        made.plane.permit()
    assert 0 == made.permits.in_flight


async def test_only_what_needs_an_operator_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Also where no status says whose doing it was: gRPC, and callers who leave while they send."""
    caplog.set_level("INFO")
    made = Plane("e")
    for error in (MalformedBody("no"), asyncio.CancelledError(), BackendUnavailable("away")):
        made.plane.refuse(made.plane.open("r"), error)
    levels = [(record.levelname, record.code) for record in caplog.records if record.name == "triton_gateway.request"]  # type: ignore[attr-defined]
    assert [("INFO", "malformed_body"), ("INFO", "client_gone"), ("WARNING", "backend_unavailable")] == levels


async def test_listeners_come_and_go() -> None:
    """Each hears what ends while it listens."""
    made = Plane("e")
    heard: list[Trace] = []
    leave = made.plane.subscribe(heard.append)
    made.submit(Ask("e", {}))
    made.job("e").answered(1)
    leave()
    made.submit(Ask("e", {}))
    made.job("e").answered(2)
    assert (1, 2) == (len(heard), len(made.ended))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the data plane reads: the first of these."""
    now = [100.0]
    monkeypatch.setattr("gateway.dataplane.submit.time.monotonic", lambda: now[0])
    return now


def pressed(*urls: str) -> tuple[Plane, dict[str, Pressure]]:
    """A data plane whose endpoints have more work in hand than their limits, as soon as these hold."""
    made = Plane(*urls, max_requests=18, limits="auto")
    pressures = {url: made.permits.pressure.below() for url in urls}
    for url, pressure in pressures.items():
        batcher: Any = SimpleNamespace(is_full=lambda _rank, _tenant, of=pressure: of.is_on, pressure=pressure)
        made.endpoints[url].work = batcher
    return made, pressures


def refuse(made: Plane, url: str) -> Overloaded:
    """Refuse a request as both ways through do."""
    error = made.plane.refusal(url, DEFAULT)
    made.plane.refused(error, DEFAULT, url, 0.0)
    return error


async def test_limits_of_work_hold_while_requests_are_refused_and_for_some_seconds_after(clock: list[float]) -> None:
    """Waiting callers are nobody's harm until more is asked for than fits: from then on work is limited, and no
    request goes past it unseen.
    """
    made, _ = pressed("e")
    easy = made.permits.easy
    made.plane.refused(made.permits.full(BATCH), BATCH, "e", 0.0)  # batch work comes to its half every night
    assert not made.plane.is_full("e", DEFAULT)
    flights = [made.submit(Ask("e", {})) for _ in range(18)]
    made.permits.in_flight = 18
    assert "gateway_full" == refuse(made, "e").because
    made.permits.in_flight = len(flights) // 2
    assert made.permits.easy == (0, 0, 0)
    assert made.plane.is_full("e", DEFAULT)
    with pytest.raises(Overloaded) as refused:
        made.plane.require_room("e", DEFAULT)
    assert refused.value.because == "work_full"
    assert not made.plane.is_full("another", DEFAULT)
    clock[0] += PRESSED_S
    assert not made.plane.is_full("e", DEFAULT)
    assert made.permits.easy == easy


async def test_one_endpoint_that_is_refused_limits_no_other(clock: list[float]) -> None:
    """Whether its share of the process is full or all of it: who has little in hand is none of the reasons."""
    made, pressures = pressed("flooded", "quiet")
    for _ in range(16):
        made.submit(Ask("flooded", {}))
    made.submit(Ask("quiet", {}))
    made.permits.in_flight = 17
    assert "endpoint_full" == refuse(made, "flooded").because
    assert {"flooded": True, "quiet": False} == {url: one.is_on for url, one in pressures.items()}
    clock[0] += PRESSED_S
    assert not made.plane.is_full("quiet", DEFAULT)
    assert not any(one.is_on for one in pressures.values())
    made.permits.in_flight = 18
    assert "gateway_full" == refuse(made, "quiet").because
    assert {"flooded": True, "quiet": False} == {url: one.is_on for url, one in pressures.items()}


async def test_of_many_small_endpoints_those_with_most_in_hand_are_limited(clock: list[float]) -> None:
    """Nobody has an eighth, and the process is full: somebody must be."""
    del clock
    urls = [f"e{number}" for number in range(17)]
    made, pressures = pressed(*urls)
    for url in (*urls, "e3"):
        made.submit(Ask(url, {}))
    made.permits.in_flight = 18
    refuse(made, "e5")
    assert ["e3"] == [url for url, one in pressures.items() if one.is_on]


async def test_the_last_place_is_for_whoever_has_none() -> None:
    """gRPC and protocols that name the endpoint in the body have their place before it is known whose it is."""
    made = Plane("e", "another", max_requests=1)
    with made.plane.permit():
        made.plane.require_room("e", DEFAULT)
