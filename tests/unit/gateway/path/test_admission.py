"""Admission with fakes and without sockets: places by class and bytes; whose refusals put whose limits into force."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.batching.pressure import PRESSED_S, Pressure
from gateway.callers.rights import Caller
from gateway.errors import Overloaded, RequestError
from gateway.path.admission import Permit, Permits, flow_of
from gateway.path.call import InternalCall
from gateway.path.canary import weighted
from gateway.trace import BATCH, CRITICAL, DEFAULT, DEFAULT_FLOW, Flow
from tests.unit.gateway.path.asks import Plane


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that ``admission`` reads: the first item."""
    now = [100.0]
    monkeypatch.setattr("gateway.path.admission.time.monotonic", lambda: now[0])
    return now


def pressed(*urls: str) -> tuple[Plane, dict[str, Pressure]]:
    """A data plane whose endpoints have more work in hand than their limits, once these are in force."""
    made = Plane(*urls, max_requests=18, limits="auto")
    pressures = {url: made.permits.pressure.below() for url in urls}
    for url, pressure in pressures.items():
        batcher: Any = SimpleNamespace(is_full=lambda _rank, _tenant, of=pressure: of.is_on, pressure=pressure)
        made.endpoints[url].batcher = batcher
    return made, pressures


def refused(made: Plane, url: str) -> str:
    """Return why a request is refused, as it is counted; empty if it is admitted."""
    permit = Permit(made.permits)
    try:
        made.plane.admission.enter(permit, url, DEFAULT_FLOW)
    except Overloaded as error:
        made.plane.admission.count(error, DEFAULT)
        return error.because
    permit.release()
    return ""


async def test_limits_of_work_are_in_force_from_the_first_refusal_until_some_seconds_after_the_last(
    clock: list[float],
) -> None:
    """Until the process is full, work is not limited. From then on every request is checked. A refusal of class batch
    does not count.
    """
    made, _ = pressed("e")
    made.plane.admission.count(made.permits.full(BATCH), BATCH)  # batch work comes to its half every night
    assert "" == refused(made, "e")
    made.permits.in_flight = 18
    assert "gateway_full" == refused(made, "e")
    made.permits.in_flight = 9
    assert "work_full" == refused(made, "e")
    clock[0] += PRESSED_S
    assert "" == refused(made, "e")


async def test_refusals_limit_the_endpoint_with_much_work_and_no_other(clock: list[float]) -> None:
    """If its share of the process is full. If the whole process is, the limits of all are in force."""
    made, pressures = pressed("flooded", "quiet")
    for _ in range(16):
        made.ask(InternalCall("flooded", {}))
    made.ask(InternalCall("quiet", {}))
    made.permits.in_flight = 17
    assert "endpoint_full" == refused(made, "flooded")
    assert {"flooded": True, "quiet": False} == {url: one.is_on for url, one in pressures.items()}
    clock[0] += PRESSED_S
    assert "" == refused(made, "quiet")
    assert not any(one.look(clock[0]) for one in pressures.values())
    made.permits.in_flight = 18
    assert "gateway_full" == refused(made, "quiet")
    assert all(one.is_on for one in pressures.values())


@pytest.mark.parametrize(
    ("weights", "full", "refuses"),
    [
        ({"old": 1.0, "new": 0.0}, "old", True),  # a rollout that has just begun, or has ended
        ({"old": 0.9, "new": 0.1}, "old", True),
        ({"old": 0.9, "new": 0.1}, "new", False),  # the stable version answers for it
        ({"old": 0.1, "new": 0.9}, "old new", True),
    ],
)  # fmt: skip
async def test_the_name_of_a_canary_is_full_if_its_stable_version_is(
    clock: list[float], weights: dict[str, float], full: str, refuses: bool
) -> None:
    """Else each of them is read and tokenized before it is refused."""
    del clock
    made, pressures = pressed("old", "new")
    made.publish(canary=weighted([*weights.items()], stable="old"))
    for url in full.split():
        pressures[url].press(100.0)
    made.permits.pressure.press(100.0)
    assert "work_full" * refuses == refused(made, "canary")


async def test_a_request_that_has_its_permit_is_not_refused_because_the_process_is_full() -> None:
    """gRPC, and protocols that name the endpoint in the body, take the permit before the endpoint is known."""
    made = Plane("e", "another", max_requests=1)
    made.plane.admission.enter(Permit(made.permits), None, DEFAULT_FLOW)
    made.plane.admission.check("e", DEFAULT)


@pytest.mark.parametrize(
    ("asked", "caller", "flow"),
    [
        (b"", None, DEFAULT_FLOW), (b"default", None, DEFAULT_FLOW), (b"Critical ", None, Flow(CRITICAL, "")),
        (b"", Caller("k", "acme"), Flow(DEFAULT, "acme")), (b"critical", Caller("k", "acme"), Flow(DEFAULT, "acme")),
        (b"batch", Caller("k", "acme"), Flow(BATCH, "acme")),
        (b"", Caller("k", "acme", priority="critical"), Flow(CRITICAL, "acme")),
    ],
)  # fmt: skip
def test_a_request_may_ask_for_any_class_up_to_that_of_its_key(asked: bytes, caller: Caller | None, flow: Flow) -> None:
    """Without keys for any class; the default one is the middle one. An unknown class is none."""
    assert flow == flow_of(asked, caller)
    with pytest.raises(RequestError):
        flow_of(asked + b"\xff", caller)


@pytest.mark.parametrize(
    ("limit", "rank", "places", "others", "because"),
    [
        (100, BATCH, 50, 50, "batch_full"), (100, DEFAULT, 100, 0, "gateway_full"),
        (160, CRITICAL, 170, 0, "gateway_full"), (1, BATCH, 1, 0, "gateway_full"), (1, DEFAULT, 1, 0, "gateway_full"),
        (1, CRITICAL, 1, 0, "gateway_full"),
    ],
)  # fmt: skip
def test_a_class_has_its_share_of_the_places(limit: int, rank: int, places: int, others: int, because: str) -> None:
    """Batch takes half and leaves the rest to others, critical a sixteenth more; a limit of one is kept exactly."""
    permits = Permits(limit, 1000)
    held = [permits.take(rank) for _ in range(places)]
    with pytest.raises(Overloaded) as refused:
        permits.take(rank)
    assert because == refused.value.because
    held += [permits.take() for _ in range(others)]
    with pytest.raises(Overloaded, match=f"{limit} requests") as refused:
        permits.take()
    assert "gateway_full" == refused.value.because
    for permit in held:
        permit.release()
    assert 0 == permits.in_flight


def test_permits_limit_the_bytes_of_all_bodies_together() -> None:
    """Each permit is returned once, in any order. A refused request holds nothing. A single body may be larger than the
    limit: otherwise its request could never be answered.
    """
    permits = Permits(100, 100)
    first, second = permits.take(), permits.take()
    first.hold(60)
    with pytest.raises(Overloaded) as refused:
        second.hold(50)
    assert "bytes_full" == refused.value.because
    second.hold(40)
    first.release()
    first.release()
    assert (1, 40) == (permits.in_flight, permits.held_bytes)
    second.hold(110)
    with pytest.raises(Overloaded):
        permits.take()
    second.release()
    assert (0, 0) == (permits.in_flight, permits.held_bytes)
