"""CloudEvents: their form, batches and retries."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from gateway.payloads.events import Address
from gateway.payloads.sink import REFUSED, UNREACHABLE, WRITTEN

RECORD = {
    "time": "2026-11-23T08:00:00.000000Z", "request_id": "r1", "trace_id": "", "url": "e/1", "endpoint": "e",
    "version": "1", "request": {"text": "t"}, "answer": {"label": "GOOD"},
}  # fmt: skip


class Receiver:
    """A session whose server gives the answers that the test defines."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.posted: list[tuple[str, Any]] = []

    def post(self, url: str, *, data: bytes, headers: dict[str, str], **options: Any) -> requests.Response:
        assert options["timeout"]
        assert options["allow_redirects"] is False
        self.posted.append((headers["content-type"], json.loads(data)))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        reply = requests.Response()
        reply.status_code = answer
        return reply

    def close(self) -> None:
        """End the session."""


def sent(receiver: Receiver, max_records: int = 100, records: int = 2) -> tuple[str, str]:
    """Write records to the receiver."""
    sink = Address(
        "https://user:secret@collector:8443/events?key=1", max_records=max_records, source="/triton-gateway/pod",
        pauses=(0, 0), session=receiver,  # type: ignore[arg-type]
    )  # fmt: skip
    return sink.write([sink.encode(RECORD) for _ in range(records)])


def test_a_batch_is_a_list_of_events() -> None:
    """With all attributes that CloudEvents 1.0 requires, unique ids, and extension names in lower case."""
    receiver = Receiver(202)
    assert (WRITTEN, "") == sent(receiver)
    [(kind, events)] = receiver.posted
    assert "application/cloudevents-batch+json" == kind
    assert 2 == len({event.pop("id") for event in events})
    assert {
        "specversion": "1.0", "type": "triton-gateway.inference.answered", "source": "/triton-gateway/pod",
        "subject": "e/1", "time": RECORD["time"], "datacontenttype": "application/json", "requestid": "r1",
        "endpoint": "e", "endpointversion": "1", "data": RECORD,
    } == events[0]  # fmt: skip
    assert all(name.isalnum() and name.islower() for name in events[0])


def test_a_receiver_without_batches_gets_one_event_at_a_time() -> None:
    """In structured mode, as Knative's brokers accept it."""
    receiver = Receiver(200)
    assert WRITTEN == sent(receiver, max_records=1, records=1)[0]
    [(kind, event)] = receiver.posted
    assert ("application/cloudevents+json", "1.0") == (kind, event["specversion"])


@pytest.mark.parametrize("first", [503, 429, requests.ConnectionError(), requests.Timeout()])
def test_temporary_failures_are_retried(first: int | Exception) -> None:
    """A receiver that restarts loses nothing."""
    receiver = Receiver(first, 200)
    assert WRITTEN == sent(receiver)[0]
    assert 2 == len(receiver.posted)


def test_records_are_dropped_after_three_attempts() -> None:
    """The reason contains no secret."""
    receiver = Receiver(500, 500, requests.ConnectionError("user:secret"))
    outcome, reason = sent(receiver)
    assert UNREACHABLE == outcome
    assert "https://collector:8443/events" in reason
    assert "secret" not in reason
    assert 3 == len(receiver.posted)


@pytest.mark.parametrize("status", [400, 404, 415, 302])
def test_refused_records_are_not_sent_again(status: int) -> None:
    """They would be refused again. A redirect is a wrong address."""
    receiver = Receiver(status)
    assert (REFUSED, f"https://collector:8443/events answered {status}") == sent(receiver)


def test_stopping_ends_the_attempts() -> None:
    """A gateway that stops does not wait for a failed receiver."""
    receiver = Receiver(500, 500, 500)
    sink = Address("http://c", max_records=1, source="s", pauses=(60, 60), session=receiver)  # type: ignore[arg-type]
    sink.stop()
    assert UNREACHABLE == sink.write([sink.encode(RECORD)])[0]
    assert 1 == len(receiver.posted)
