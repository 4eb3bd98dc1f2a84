"""A request in flight ends exactly once and releases each lease exactly once, in any order of events."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import BackendUnavailable, InputRefused, InternalError, ModelFailed
from gateway.handlers.endpoint import Event
from gateway.path.deadlines import Deadlines
from gateway.path.inflight import MOVES, InFlight, State
from gateway.trace import TRACEPARENT, Trace
from tests.unit.gateway.path.flights import Counted, Echo, Obedient, Records

ACTIONS = (
    "answer", "unreadable answer", "version fails", "request is refused", "bug", "cancel", "expire", "retire canary",
    "retire stable", "turn",
)  # fmt: skip


class Watched(InFlight):
    """A flight that records its states."""

    __slots__ = ("path",)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "state":
            self.path = [*getattr(self, "path", []), value]
        super().__setattr__(name, value)


class Case:
    """One request to a canary with a stable version behind it."""

    def __init__(self, *, begin: Any = None, call: Echo | None = None, has_fallback: bool = True) -> None:
        self.records = Records()
        self.done: list[InFlight] = []
        self.canary, self.stable = Counted(Obedient(begin), "canary"), Counted(Obedient(begin), "stable")
        self.retiring: dict[Counted, asyncio.Task[None]] = {}
        self.flight = Watched(call or Echo(), Trace("r"), self.done.append, self.records, Deadlines())
        self.flight.begin(self.canary, "canary", self.stable if has_fallback else None, 30.0)

    def handler(self, endpoint: Counted) -> Obedient:
        handler = endpoint.handler
        assert isinstance(handler, Obedient)
        return handler

    async def act(self, action: str) -> None:
        flight = self.flight
        if action == "answer":
            flight.answered("yes")
        elif action == "unreadable answer":
            flight.answered(InputRefused("no form"))
        elif action == "version fails":
            flight.failed(BackendUnavailable("away"))
        elif action == "request is refused":
            flight.failed(InputRefused("no"))
        elif action == "bug":
            flight.failed(KeyError("ours"))
        elif action == "cancel":
            flight.cancel()
        elif action == "expire":
            flight.expire()
        elif action == "turn":
            await asyncio.sleep(0)
        else:
            self.retire(self.canary if action.endswith("canary") else self.stable)

    def retire(self, endpoint: Counted) -> None:
        if endpoint not in self.retiring:
            self.retiring[endpoint] = asyncio.create_task(endpoint.retire())

    def check_what_is_held(self) -> None:
        is_over = self.flight.state is State.ENDED
        for endpoint in (self.canary, self.stable):
            held = endpoint.leased - endpoint.released
            assert held in (0, 1)
            if is_over:
                assert held == 0
            if held:
                assert not self.handler(endpoint).is_closed
        assert len(self.done) == len(self.records.ended) == int(is_over)
        if not is_over:
            assert self.flight.endpoint is not None
            held_by = self.flight.endpoint
            assert isinstance(held_by, Counted)
            assert held_by.leased == held_by.released + 1


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), max_size=12), st.booleans())
def test_in_any_order_of_events_a_request_ends_once_and_each_lease_is_released_once(
    actions: list[str], has_fallback: bool
) -> None:
    """Answers, failures, departures, deadlines and retirements, also after the end."""

    async def run() -> None:
        case = Case(has_fallback=has_fallback)
        for action in actions:
            await case.act(action)
            case.check_what_is_held()
        await case.act("cancel")
        for endpoint in (case.canary, case.stable):
            case.retire(endpoint)
        await asyncio.gather(*case.retiring.values())  # nothing is held: both can be closed
        case.check_what_is_held()
        path = case.flight.path
        assert State.ENDED is path[-1]
        assert 1 == path.count(State.ENDED)
        for before, after in pairwise(path):
            assert after in MOVES[before], path
        assert len(case.records.fallen) <= int(has_fallback)
        [trace] = case.records.ended
        known = case.flight.error
        assert trace.outcome == ("ok" if known is None else known.kind)
        assert all(handler.given_up <= 1 for handler in map(case.handler, (case.canary, case.stable)))

    asyncio.run(run())


async def test_only_the_first_end_of_a_request_counts() -> None:
    """A cancelled request is not answered, and an answered one does not expire."""
    for first, later, outcome in (
        ("cancel", "answer", "client_gone"), ("answer", "expire", "ok"), ("expire", "cancel", "deadline_exceeded"),
        ("request is refused", "answer", "input_refused"),
    ):  # fmt: skip
        case = Case()
        await case.act(first)
        await case.act(later)
        assert outcome == case.records.ended[0].outcome
        assert 1 == len(case.done)


async def test_a_request_that_is_cancelled_or_expires_releases_its_version_at_once() -> None:
    """Its job is cancelled in the same turn of the loop."""
    for action in ("cancel", "expire"):
        case = Case(has_fallback=False)
        await case.act(action)
        assert 1 == case.handler(case.canary).given_up
        assert (1, 1) == (case.canary.leased, case.canary.released)


async def test_a_failed_canary_has_one_fallback_to_the_stable_version() -> None:
    """If that fails too, its error is the answer."""
    case = Case()
    await case.act("version fails")
    assert ["stable"] == case.records.fallen
    assert ("fallback", "stable") == (case.flight.trace.route, case.flight.trace.url)
    assert (1, 1, 1, 0) == (case.canary.leased, case.canary.released, case.stable.leased, case.stable.released)
    await case.act("version fails")
    assert ["stable"] == case.records.fallen
    assert "backend_unavailable" == case.records.ended[0].outcome


async def test_an_answer_that_cannot_be_rendered_is_a_failure_of_its_version() -> None:
    """For a canary, it causes the fallback as well."""
    case = Case()
    case.flight.answered(ModelFailed("not finite"))
    assert ["stable"] == case.records.fallen
    await case.act("answer")
    assert b"('stable', 'yes')" == case.flight.reply


async def test_if_the_stable_version_does_not_accept_the_request_the_canarys_error_is_the_answer() -> None:
    """For example bytes for a version that accepts JSON only."""
    case = Case(call=Echo(refuses={"stable": InputRefused("not JSON")}))
    await case.act("version fails")
    assert ("backend_unavailable", []) == (case.records.ended[0].outcome, case.records.fallen)
    assert (1, 1) == (case.stable.leased, case.stable.released)


async def test_an_error_at_the_start_of_a_request_ends_it() -> None:
    """If ``question`` or ``start`` raises, the request has ended when ``begin`` returns."""

    def refuse(_job: Any) -> None:
        raise InputRefused("no")

    for case in (Case(begin=refuse), Case(call=Echo(refuses={"canary": InputRefused("no")}))):
        assert ("input_refused", 1) == (case.records.ended[0].outcome, len(case.done))
        case.check_what_is_held()


async def test_an_unexpected_error_is_answered_with_500(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the reason. The caller gets no traceback."""
    case = Case(has_fallback=False)
    await case.act("bug")
    assert isinstance(case.flight.error, InternalError)
    assert "ours" not in str(case.flight.error)
    assert "unexpected error" in caplog.text


async def test_a_request_is_recorded_even_if_its_answer_cannot_be_written() -> None:
    """The error does not reach the handler, which has other requests of the same call to answer."""
    records = Records()

    def breaks(_flight: InFlight) -> None:
        raise RuntimeError("the transport is broken")

    flight = InFlight(Echo(), Trace("r"), breaks, records, Deadlines())
    endpoint = Counted(Obedient())
    flight.begin(endpoint, "direct", None, 1.0)
    flight.answered("yes")
    assert (1, 1, 1) == (len(records.ended), endpoint.leased, endpoint.released)


async def test_an_error_in_recording_does_not_keep_requests_from_their_end() -> None:
    """Other requests with the same deadline end as well, and nothing is raised."""

    class Broken(Records):
        def record(self, trace: Trace) -> None:
            super().record(trace)
            raise RuntimeError("the exporter is broken")

    records, deadlines, done = Broken(), Deadlines(), list[InFlight]()
    flights = [InFlight(Echo(), Trace("r"), done.append, records, deadlines) for _ in range(2)]
    for flight in flights:
        flight.begin(Counted(Obedient()), "direct", None, 30.0)
    for flight in flights:
        flight.expire()
    assert flights == done
    assert ["deadline_exceeded"] * 2 == [trace.outcome for trace in records.ended]


async def test_an_error_in_remembering_an_answer_ends_the_request_with_500() -> None:
    """Otherwise it would stay open until its deadline."""
    case = Case(has_fallback=False)

    def breaks(_answer: object) -> None:
        raise RuntimeError("no room")

    case.flight.remember = breaks
    await case.act("answer")
    assert ["internal"] == [trace.outcome for trace in case.records.ended]


async def test_a_request_whose_deadline_has_passed_is_not_started() -> None:
    """For example because its body was slow. No version gets a job, and both leases are released."""
    records, done = Records(), list[InFlight]()
    trace = Trace("r")
    trace.started_ns -= 2_000_000_000
    canary, stable = Counted(Obedient(), "canary"), Counted(Obedient(), "stable")
    call = Echo()
    InFlight(call, trace, done.append, records, Deadlines()).begin(canary, "canary", stable, 2.0)
    assert ("deadline_exceeded", "canary") == (trace.outcome, trace.url)
    assert ([], [], []) == (canary.handler.jobs, stable.handler.jobs, records.fallen)
    assert [1, 1, 1, 1] == [canary.leased, canary.released, stable.leased, stable.released]
    assert 1 == len(done)


@pytest.mark.looptime
async def test_the_deadline_also_ends_a_fallback() -> None:
    """The canary's batcher watched the deadline, but the stable version's handler does nothing."""

    def begin(job: Any) -> None:
        if job.endpoint is case_of["canary"]:
            job.queued(lambda: None, is_watched=True)

    case_of: dict[str, Counted] = {}
    records, done = Records(), list[InFlight]()
    canary, stable = Counted(Obedient(begin), "canary"), Counted(Obedient(begin), "stable")
    case_of["canary"] = canary
    flight = InFlight(Echo(), Trace("r"), done.append, records, Deadlines())
    flight.begin(canary, "canary", stable, 3.0)
    assert flight.alarm is None
    flight.failed(BackendUnavailable("away"))
    await asyncio.sleep(3.2)
    assert [flight] == done
    assert "deadline_exceeded" == flight.trace.outcome
    assert [1, 1, 1, 1] == [canary.leased, canary.released, stable.leased, stable.released]


async def test_a_fallback_starts_with_empty_counts_and_the_requests_own_trace_context() -> None:
    """The canary's counts are dropped. Its failure may arrive in the context of another request."""
    parents: list[str] = []
    TRACEPARENT.set("mine")
    case = Case(begin=lambda _job: parents.append(TRACEPARENT.get()))
    trace = case.flight.trace
    trace.rows, trace.tokens, trace.truncated, trace.infer_ns = 3, 40, 1, 5
    trace.collect({"score": 0.5})
    TRACEPARENT.set("another's")
    await case.act("version fails")
    assert (["mine", "mine"], "another's") == (parents, TRACEPARENT.get())
    assert (0, 0, 0, None, 5) == (trace.rows, trace.tokens, trace.truncated, trace.custom, trace.infer_ns)


async def test_a_stream_waits_until_each_piece_is_sent_and_ends_when_the_caller_leaves() -> None:
    """No piece is made before the last one was sent. After the departure the source is closed."""
    made: list[int] = []
    room = asyncio.Semaphore(0)
    is_closed = asyncio.Event()

    async def stream(_question: object, _trace: object, _deadline: float) -> Any:
        try:
            for number in range(10):
                made.append(number)
                yield Event("x", (), None, 1, number)
        finally:
            is_closed.set()

    async def send(_flight: InFlight, _event: Event) -> None:
        await room.acquire()

    call = Echo()
    call.streams = True
    done: list[InFlight] = []
    records = Records()
    endpoint = Counted(Obedient())
    endpoint.stream = stream
    flight = InFlight(call, Trace("r"), done.append, records, Deadlines(), send)
    flight.begin(endpoint, "direct", None, 30.0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert [0] == made
    room.release()
    for _ in range(5):
        await asyncio.sleep(0)
    assert [0, 1] == made
    flight.cancel()
    assert (1, 1) == (endpoint.leased, endpoint.released)
    await asyncio.wait_for(is_closed.wait(), 5)
    assert [0, 1] == made
    assert ["client_gone"] == [trace.outcome for trace in records.ended]
