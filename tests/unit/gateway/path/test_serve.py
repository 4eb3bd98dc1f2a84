"""The path of a request, with fakes and without sockets: it ends exactly once and gives back all that it holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import (
    BackendUnavailable,
    DeadlineExceeded,
    EndpointNotFound,
    InputRefused,
    InternalError,
    ModelFailed,
    Overloaded,
)
from gateway.handlers.endpoint import Event, ask_version
from gateway.metrics import catalog
from gateway.outcome import Outcome
from gateway.path.call import InternalCall
from gateway.path.canary import weighted
from gateway.trace import TRACEPARENT, Trace
from preprocessing.errors import InvalidOutput, TooLong
from tests.unit.gateway.path.asks import Counted, Echo, Job, Obedient, Plane, Told
from tests.waiting import LIMIT_S, soon

ACTIONS = (
    "answer", "unreadable answer", "version fails", "request is refused", "bug", "leave", "expire", "retire canary",
    "retire stable", "read", "turn",
)  # fmt: skip
FAILURES: dict[str, Exception] = {
    "version fails": BackendUnavailable("away"), "request is refused": InputRefused("no"), "bug": KeyError("ours"),
    "model fails": ModelFailed("no"), "is full": Overloaded("no"), "too long": TooLong("no"),
    "wrong outputs": InvalidOutput("no"),
}  # fmt: skip
UNWRITABLE = {"unreadable answer": InputRefused("no form"), "not an answer": ModelFailed("not finite")}


class Case:
    """One request to a canary with a stable version behind it, whose client reads its answer only at ``read``."""

    def __init__(self, *, begin: Any = None, call: Echo | None = None, has_fallback: bool = True) -> None:
        self.made = made = Plane("canary", "stable")
        for endpoint in made.endpoints.values():
            endpoint.handler._begin = begin  # type: ignore[attr-defined]
        if has_fallback:
            made.publish(c=weighted([("canary", 1), ("stable", 0)], "stable"))
        self.canary, self.stable = made.endpoints["canary"], made.endpoints["stable"]
        self.retiring: dict[Counted, asyncio.Task[None]] = {}
        call = call or Echo()
        call.path = "c" if has_fallback else "canary"
        self.ask = made.ask(call)

    @property
    def outcomes(self) -> list[str]:
        return [trace.outcome for trace in self.made.ended]

    def jobs(self, endpoint: Counted) -> list[Job]:
        handler = endpoint.handler
        assert isinstance(handler, Obedient)
        return handler.jobs

    async def act(self, action: str) -> None:
        jobs = self.jobs(self.stable) or self.jobs(self.canary)
        if action == "answer":
            jobs[-1].answered("yes")
        elif action in UNWRITABLE:
            jobs[-1].answered(UNWRITABLE[action])
        elif action in FAILURES:
            jobs[-1].failed(FAILURES[action])
        elif action == "leave":
            self.ask.leave()
        elif action == "expire":
            if not self.ask.is_over:
                self.ask.expire()
        elif action == "read":
            if self.ask.room is not None and not self.ask.room.is_set:
                self.ask.room.set_result(None)
        elif action == "turn":
            await asyncio.sleep(0)
        else:
            endpoint = self.canary if action.endswith("canary") else self.stable
            if endpoint not in self.retiring:
                self.retiring[endpoint] = asyncio.create_task(endpoint.retire())

    def check_what_is_held(self) -> None:
        ask = self.ask
        for endpoint in (self.canary, self.stable):
            held = endpoint.leased - endpoint.released
            assert held in (0, 1)
            if ask.is_over:
                assert held == 0
            if held:
                assert not endpoint.handler.is_closed  # type: ignore[attr-defined]
        assert len(self.made.ended) == int(ask.is_over)
        assert len(ask.replies) + len(ask.refusals) <= 1
        if not ask.is_over:  # also while its client reads the answer
            held_by = ask.with_version
            assert isinstance(held_by, Counted)
            assert held_by.leased == held_by.released + 1


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), max_size=12), st.booleans(), st.booleans())
def test_in_any_order_of_events_a_request_ends_once_and_each_lease_is_released_once(
    actions: list[str], has_fallback: bool, is_slow: bool
) -> None:
    """Answers, failures, departures, deadlines, slow readers and retirements, also after the end."""

    async def run() -> None:
        case = Case(has_fallback=has_fallback)
        if is_slow:
            case.ask.room = Outcome()
        for action in actions:
            await case.act(action)
            case.check_what_is_held()
        await case.act("leave")
        assert case.ask.is_over
        case.check_what_is_held()
        for endpoint in ("canary", "stable"):
            await case.act(f"retire {endpoint}")
        await asyncio.gather(*case.retiring.values())  # nothing is held: both can be closed
        [trace] = case.made.ended
        known = case.ask.refusals[0] if case.ask.refusals else None
        assert trace.outcome == ("ok" if known is None else known.kind)
        assert all(job.given_up <= 1 for job in (*case.jobs(case.canary), *case.jobs(case.stable)))
        assert case.made.plane._observer._begun == case.made.plane._observer._ended == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    ("refuses", "actions", "outcome", "route"),
    [
        ({}, ["version fails", "answer"], "ok", "fallback"),
        ({}, ["version fails", "version fails"], "backend_unavailable", "fallback"),  # one fallback
        ({}, ["model fails", "answer"], "ok", "fallback"), ({}, ["is full", "answer"], "ok", "fallback"),
        ({}, ["not an answer", "answer"], "ok", "fallback"), ({}, ["wrong outputs", "answer"], "ok", "fallback"),
        ({}, ["request is refused"], "input_refused", "canary"), ({}, ["unreadable answer"], "input_refused", "canary"),
        ({}, ["too long"], "context_length_exceeded", "canary"), ({}, ["bug"], "internal", "canary"),
        ({"stable": InputRefused("not JSON")}, ["version fails"], "backend_unavailable", "canary"),
        ({"canary": InputRefused("no")}, [], "input_refused", "canary"),
    ],
)  # fmt: skip
async def test_a_failed_canary_has_one_fallback_to_the_stable_version(
    refuses: dict[str, Exception], actions: list[str], outcome: str, route: str
) -> None:
    """If the version is at fault, and stable accepts the request; else the canary's error is the answer."""
    case = Case(call=Echo(refuses=refuses))
    for action in actions:
        await case.act(action)
        case.check_what_is_held()
    assert ([outcome], route) == (case.outcomes, case.ask.route)
    assert [b"('stable', 'yes')"] * (outcome == "ok") == case.ask.replies
    assert not any("ours" in str(error) for error in case.ask.refusals)
    assert (1, 1, 1, 1) == (case.canary.leased, case.canary.released, case.stable.leased, case.stable.released)


async def test_a_request_ends_even_if_its_answer_or_its_record_cannot_be_written() -> None:
    """Other requests of the same call or with the same deadline end as well, and nothing is raised."""

    class Broken(Told):
        def respond(self, reply: Any) -> None:
            raise RuntimeError("the transport is broken")

    def breaks(_trace: Trace) -> None:
        raise RuntimeError("the exporter is broken")

    made = Plane("e")
    made.start(Broken(Echo()))
    made.job("e").answered("yes")
    made.plane.subscribe(breaks)
    asks = [made.ask(Echo()) for _ in range(2)]
    for ask in asks:
        ask.expire()
    assert [True, True] == [ask.is_over for ask in asks]
    assert ["internal", "deadline_exceeded", "deadline_exceeded"] == [one.outcome for one in made.ended]
    assert (3, 3) == (made.endpoints["e"].leased, made.endpoints["e"].released)


async def test_only_errors_that_need_an_operator_are_logged_as_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Also without an HTTP status: over gRPC, and if a caller leaves while it sends. Want of room is counted."""
    caplog.set_level("INFO")
    made = Plane("e")
    for error in (InputRefused("no"), None, BackendUnavailable("away"), Overloaded("no", because="work_full")):
        ask = made.ask(Echo())
        if error is None:
            ask.leave()
        else:
            made.job("e").failed(error)
    levels = [(one.levelname, vars(one)["code"]) for one in caplog.records if one.name == "triton_gateway.request"]
    assert [("INFO", "input_refused"), ("INFO", "client_gone"), ("WARNING", "backend_unavailable")] == levels
    counted = {of.labels: n for of, n in made.observer.snapshot().items() if of.metric == catalog.REFUSED.name}
    assert {("work_full", "default"): 1} == counted


@pytest.mark.looptime
async def test_the_deadline_also_ends_a_fallback() -> None:
    """It is that of the request, whatever versions it tries."""
    case = Case()  # with a time-out of 30 s
    await asyncio.sleep(20)
    await case.act("version fails")
    await asyncio.sleep(10.2)
    assert ["deadline_exceeded"] == case.outcomes
    assert [1, 1, 1, 1] == [case.canary.leased, case.canary.released, case.stable.leased, case.stable.released]


async def test_a_fallback_starts_with_empty_counts_and_the_requests_own_trace_context() -> None:
    """The canary's counts are dropped. Its failure may arrive in the context of another request."""
    parents: list[str] = []
    made = Plane("canary", "stable")
    made.publish(c=weighted([("canary", 1), ("stable", 0)], "stable"))
    for endpoint in made.endpoints.values():
        endpoint.handler._begin = lambda job: parents.append(job.ask.traceparent)  # type: ignore[attr-defined]
    ask = made.ask(Echo("c"), parent="mine")
    ask.rows, ask.tokens, ask.truncated, ask.infer_ns = 3, 40, 1, 5
    ask.collect({"score": 0.5})
    TRACEPARENT.set("another's")
    made.job("canary").failed(BackendUnavailable("away"))
    assert (["mine", "mine"], "another's") == (parents, TRACEPARENT.get())
    assert (0, 0, 0, None, 5) == (ask.rows, ask.tokens, ask.truncated, ask.custom, ask.infer_ns)


class Streamed(Told):
    """A request whose pieces are sent at once."""

    async def send(self, event: Event) -> None:
        del event
        self.has_begun = True


async def test_a_stream_that_has_begun_has_no_fallback() -> None:
    """Another version's pieces cannot follow: the error ends it. Before the first piece the stable version answers."""
    for pieces, outcome in ((1, "model_failed"), (0, "ok")):

        async def stream(_question: object, _ask: object, pieces: int = pieces) -> Any:
            for number in range(pieces):
                yield Event("x", (), None, 1, number)
            raise ModelFailed("no memory")

        made = Plane("new", "old")
        made.publish(c=weighted([("new", 1), ("old", 0)], "old"))
        made.endpoints["new"].stream = stream
        made.endpoints["old"].handler._begin = lambda job: job.answered("saved")  # type: ignore[attr-defined]
        call = Echo("c")
        call.streams = True
        ask = made.start(Streamed(call))
        await soon(lambda ask=ask: ask.is_over)
        assert [outcome] == [trace.outcome for trace in made.ended]


async def test_a_call_by_a_hook_is_answered_in_the_process_or_raises_the_error() -> None:
    """It is counted like any other request. It needs no permit, because the hook's own request has one. Cancelling the
    task that waits for it leaves nothing.
    """
    made = Plane("e", max_requests=1)
    made.permits.take()
    asking, leaving = (asyncio.create_task(made.plane.call(InternalCall("e", {"text": "x"}))) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    jobs: list[Job] = made.endpoints["e"].handler.jobs  # type: ignore[attr-defined]
    assert {"text": "x"} == jobs[0].question
    jobs[0].answered([1])
    assert [1] == await asking
    with pytest.raises(asyncio.CancelledError):
        await leaving
    with pytest.raises(EndpointNotFound):
        await made.plane.call(InternalCall("none", {}))
    assert {"ok", "client_gone", "endpoint_not_found"} == {trace.outcome for trace in made.ended}
    assert 2 == made.endpoints["e"].released


async def test_a_handler_that_needs_a_task_is_cancelled_with_its_request() -> None:
    """Its exceptions, foreign ones too, become answers."""
    seen: list[str] = []

    class Tasked(Obedient):
        needs_task = True

        async def answer(self, question: Any, ask: Trace) -> object:
            try:
                await super().answer(question, ask)
                raise KeyError("ours")
            finally:
                seen.append(question["text"])

    made = Plane()
    made.endpoints = {url: Counted(Tasked(), url) for url in ("left", "breaks")}
    made.publish()
    left, broken = made.ask(Echo("left")), made.ask(Echo("breaks"))
    await asyncio.sleep(0)
    left.leave()
    made.job("breaks").answered("yes")
    await soon(lambda: broken.is_over and {"left", "breaks"} == {*seen})
    assert ["internal"] == [error.kind for error in broken.refusals]


async def test_a_version_that_is_not_served_can_be_called() -> None:
    """For trials and shadows. Nothing is recorded, a bug is an error like others, and what hangs has a deadline."""
    endpoint = Counted(Obedient(lambda job: job.question == "hang" or job.answered(job.question * 2)))
    assert "abab" == (await ask_version(endpoint, "ab", LIMIT_S)).answer
    with pytest.raises(InternalError):
        await ask_version(endpoint, None, LIMIT_S)
    with pytest.raises(DeadlineExceeded):
        await ask_version(endpoint, "hang", 0.02)
    assert (3, 3) == (endpoint.leased, endpoint.released)
