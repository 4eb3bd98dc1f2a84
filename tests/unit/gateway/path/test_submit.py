"""The path of a request, with fakes and without sockets: version and lease, deadline, permit and record."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

import pytest

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
from gateway.handlers.endpoint import in_task, offload
from gateway.path.inflight import ENDED, InFlight
from gateway.path.routing.canary import Weighted
from tests.unit.gateway.path.flights import Counted, Echo, Obedient, Plane


async def test_a_replaced_version_stays_open_until_its_last_request_has_ended() -> None:
    """A request chooses and leases its version in one step, so it never meets a closed one."""
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


async def test_the_stable_version_of_a_canary_is_leased_from_the_start() -> None:
    """If it is replaced before the canary fails, it is still open for the fallback."""
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
async def test_an_unknown_endpoint_or_version_ends_the_request_without_an_exception(
    path: str, pin: str, error: type[GatewayError]
) -> None:
    """``submit`` calls ``done`` before it returns, and no lease is held."""
    made = Plane("e")
    call = Echo(path)
    call.pin = pin
    flight, done = made.submit(call)
    assert [flight] == done
    assert isinstance(flight.error, error)
    assert error.kind == made.ended[0].outcome


async def test_every_request_has_one_record() -> None:
    """Whether it was answered, refused before there was a call, or cancelled."""
    made = Plane("e")
    made.submit(Echo())
    made.job("e").answered("yes")
    made.plane.refuse(made.plane.open("r"), MalformedBody("no"))
    flight, _ = made.submit(Echo())
    flight.cancel()
    assert ["ok", "malformed_body", "client_gone"] == [trace.outcome for trace in made.ended]
    assert made.plane._observer._begun == made.plane._observer._ended == 3


@pytest.mark.looptime
async def test_the_deadline_ends_a_request_even_if_the_handler_does_nothing() -> None:
    """It releases the version at once, and a late answer is dropped."""
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
async def test_the_time_in_which_the_body_arrived_counts_towards_the_deadline() -> None:
    """The deadline is counted from the first byte of the request."""
    made = Plane("e", timeout=2.0)
    trace = made.plane.open("r")
    trace.started_ns -= 1_500_000_000
    done: list[InFlight] = []
    made.plane.submit(Echo(), done.append, trace)
    await asyncio.sleep(0.7)
    assert isinstance(done[0].error, DeadlineExceeded)


async def test_a_call_by_a_hook_is_answered_in_the_process_or_raises_the_error() -> None:
    """It is counted like any other request. It needs no permit, because the hook's own request has one."""
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


async def test_a_handlers_coroutine_is_cancelled_with_its_request() -> None:
    """Its exceptions, foreign ones too, become answers."""
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


async def test_the_result_of_a_thread_is_dropped_if_its_request_has_ended() -> None:
    """Also if the request ends after the thread, but before the next step."""

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


async def test_permits_limit_requests_and_the_bytes_of_their_bodies() -> None:
    """Each permit is returned once, in any order. A refused request holds nothing."""
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


async def test_a_single_request_larger_than_the_limit_on_bytes_is_admitted() -> None:
    """The limit is on all bodies together. Otherwise this request could never be answered."""
    made = Plane(max_bytes=100)
    with made.plane.permit() as permit:
        permit.hold(150)
        permit.hold(150)
        with pytest.raises(Overloaded):
            made.plane.permit(1)
    assert 0 == made.permits.held_bytes


async def test_requests_are_refused_before_the_first_configuration_and_while_draining() -> None:
    """Before their bodies are read."""
    made = Plane("e")
    made.health.first_sync_done = False
    with pytest.raises(Unavailable):
        made.plane.permit()
    made.health.first_sync_done = True
    made.health.is_draining = True
    with pytest.raises(Draining):
        made.plane.permit()
    assert 0 == made.permits.in_flight
