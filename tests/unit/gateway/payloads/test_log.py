"""The payload log of a whole gateway: which requests of each protocol it keeps, without delaying any."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from gateway.callers.rights import Caller
from gateway.handlers.endpoint import Lookup
from gateway.metrics import catalog
from gateway.payloads import log as log_module
from gateway.payloads.files import NOT_JSON, NOT_WRITABLE, QUEUE_FULL, TOO_LARGE, WRITTEN
from gateway.payloads.log import PayloadLog, payload_log, shares
from gateway.settings import Settings
from gateway.trace import Trace


class MemorySink:
    """A sink in memory."""

    path = Path("memory")

    def __init__(self, outcome: str = WRITTEN) -> None:
        self.records: list[dict[str, Any]] = []
        self.outcome = outcome

    def write(self, lines: bytes) -> tuple[str, str]:
        if self.outcome == WRITTEN:
            self.records += [orjson.loads(line) for line in lines.splitlines()]
        return self.outcome, "" if self.outcome == WRITTEN else "it is away"

    def sweep(self) -> None:
        """Do nothing: there is no periodic work."""


def kept_by(stack: Any) -> MemorySink:
    """Keep what a gateway answers in memory."""
    sink, count = MemorySink(), stack.gateway.observer.count
    stack.gateway._payloads = PayloadLog(sink, shares("*=1"), count=lambda one, n: count(catalog.PAYLOADS, one, by=n))
    return sink


def log(sink: MemorySink, rules: str = "*=1", counts: Counter[str] | None = None, **fields: Any) -> PayloadLog:
    """A log that the test writes to directly."""
    found: Counter[str] = Counter() if counts is None else counts
    return PayloadLog(sink, shares(rules), count=lambda outcome, n: found.update({outcome: n}), **fields)


def trace(url: str = "e/1", **fields: Any) -> Trace:
    """A request that was answered."""
    made = Trace("r1")
    made.url, made.endpoint, made.version, made.route = url, "e", "1", "direct"
    made.body, made.answer = {"text": "hello"}, {"label": "GOOD", "score": 0.9}
    for name, value in fields.items():
        setattr(made, name, value)
    return made


async def test_a_record_has_caller_request_answer_and_version() -> None:
    """And the request id that the caller got, so that both sides can refer to it."""
    sink = MemorySink()
    kept = log(sink, clock=lambda: 1_800_000_000.25)
    kept.answered(trace(model_id="m1", caller=Caller("key-1", "acme"), total_ns=2_500_000, tokens=3))
    await kept.write()
    assert [{
        "time": "2027-01-15T08:00:00.250000Z", "request_id": "r1", "trace_id": "", "url": "e/1", "endpoint": "e",
        "version": "1", "model_id": "m1", "route": "direct", "tenant": "acme", "caller": "key-1", "total_ms": 2.5,
        "tokens": 3, "request": {"text": "hello"}, "answer": {"label": "GOOD", "score": 0.9},
    }] == sink.records  # fmt: skip


async def test_a_share_of_the_answers_is_kept() -> None:
    """That of the first pattern that matches the endpoint: exceptions come first."""
    sink = MemorySink()
    draws = iter([i / 100 for i in range(100) for _ in range(2)])
    kept = log(sink, "e/2=0.5, e=0.25 other=0", random_number=lambda: next(draws))
    for _ in range(100):
        kept.answered(trace())
        kept.answered(trace("other/1"))
        kept.answered(trace("e/2"))
    await kept.write()
    assert {"e/1": 25, "e/2": 50} == Counter(record["url"] for record in sink.records)


def test_the_log_is_off_unless_a_share_is_kept(tmp_path: Path) -> None:
    """It writes to the state folder. Invalid shares and a folder that cannot be written are refused at the start."""

    def made(rules: str, folder: Path = tmp_path) -> PayloadLog | None:
        return payload_log(Settings(payload_log=rules, state_dir=folder), lambda _outcome, _records: None)

    assert made("") is made("*=0") is None
    kept = made("*=1")
    assert kept is not None
    assert str(tmp_path / "payloads") == kept.status()["to"]
    (tmp_path / "file").write_text("")
    for wrong in (("*=1", tmp_path / "file"), *((text,) for text in ("e", "e=2", "e=-1", "=1", "/=0.5", "e=nan"))):
        with pytest.raises(ValueError, match="TRITON_GATEWAY_PAYLOAD_LOG: "):
            made(*wrong)


@pytest.mark.parametrize(
    ("fields", "outcome", "kept"),
    [
        # Refusals and failures are in the log and the metrics; a tokenizer's answers are not a model's.
        ({"outcome": "overloaded"}, None, None), ({"url": ""}, None, None),
        ({"body": Lookup(lambda _processor: None)}, None, None),
        ({"answer": object()}, NOT_JSON, None), ({"body_bytes": 2 << 20}, TOO_LARGE, None),
        ({"answer": {"text": "\x00" * 300_000}}, TOO_LARGE, None),  # six characters each as JSON
        ({"answer": b"plain"}, WRITTEN, "plain"), ({"answer": b"\xff\x00"}, WRITTEN, {"base64": "/wA="}),
        ({"answer": None}, WRITTEN, None), ({"answer": {1: {2}}}, WRITTEN, {"1": [2]}),
        ({"answer": {"vector": np.array([1.0, 2.0], np.float32), "tenant": 1}, "caller": Caller("c", "acme")}, WRITTEN,
         {"vector": [1.0, 2.0]}),
    ],
    ids=["refused", "no version", "tokens", "no JSON", "large", "large as JSON", "text", "bytes", "nothing", "hook's",
         "array"],
)  # fmt: skip
async def test_what_is_kept_and_how(fields: dict[str, Any], outcome: str | None, kept: object) -> None:
    """Only answers of models, as JSON; what cannot be written is dropped alone. Fields are dropped at any depth."""
    counts, sink = Counter[str](), MemorySink()
    writer = log(sink, counts=counts, dropped=frozenset({"user", "tenant"}))
    writer.answered(trace(**{"body": {"users": [{"user": {}, "text": "t"}], "user": "u"}, **fields}))
    writer.answered(trace(url="other"))
    await writer.write()
    *found, last = sink.records
    assert ("other", {WRITTEN: 1} if outcome is None else Counter([WRITTEN, outcome])) == (last["url"], counts)
    assert [({"users": [{"text": "t"}]}, kept, False)] * (outcome == WRITTEN) == [
        (record["request"], record["answer"], "tenant" in record) for record in found
    ]


@pytest.mark.parametrize(("limit", "most"), [("_MAX_QUEUED", 5), ("_MAX_QUEUED_BYTES", 3000)])
async def test_a_slow_sink_drops_records_and_delays_no_request(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    """The queue has limits on number and bytes. The status says why records are lost, until one is written."""
    monkeypatch.setattr(log_module, limit, most)
    counts, sink = Counter[str](), MemorySink(NOT_WRITABLE)
    kept = log(sink, counts=counts)
    for outcome in (NOT_WRITABLE, WRITTEN):
        sink.outcome = outcome
        for _ in range(8):
            kept.answered(trace(body_bytes=500))
        assert "the queue is full: memory takes fewer records than come" == kept.status()["problem"]
        await kept.write()
        assert kept.status()["problem"] == ("it is away" if outcome == NOT_WRITABLE else None)
        assert counts[QUEUE_FULL] >= 3
        assert 8 == counts.pop(QUEUE_FULL) + counts.pop(outcome)


async def test_waiting_records_are_written_when_the_gateway_stops(make_stack: Callable[..., Any]) -> None:
    """Metrics and status count them; refused requests are none."""
    stack = make_stack(payload_log="*=1")
    sink = kept_by(stack)
    async with stack.gateway.running():
        stack.deploy("e", "m1", version="1")
        await stack.served("e/1")
        await stack.client.post("/serve/e/1", json={"text": "good"}, headers={"x-request-id": "mine"})
        await stack.client.post("/v2/models/e/versions/1/infer", json={"inputs": [
            {"name": "input_ids", "shape": [1, 2], "datatype": "INT64", "data": [4, 5]},
            {"name": "attention_mask", "shape": [1, 2], "datatype": "INT64", "data": [1, 1]}]})  # fmt: skip
        await stack.client.post("/serve/e/1", json={"wrong": 1})
        while 'records_total{outcome="written"} 2.0' not in (await stack.client.get("/metrics")).text:
            await asyncio.sleep(0.01)
        assert "memory" == (await stack.client.get("/v1/status")).json()["payload_log"]["to"]
        await stack.client.post("/serve/e/1", json={"text": "last"})
    first, tensors, last = sink.records
    assert ("mine", {"text": "good"}, "GOOD") == (first["request_id"], first["request"], first["answer"]["label"])
    assert {"inputs": {"input_ids": [[4, 5]], "attention_mask": [[1, 1]]}} == tensors["request"]
    assert {"text": "last"} == last["request"]


async def test_an_answer_in_pieces_is_kept_whole(make_stack: Callable[..., Any]) -> None:
    """As one that is not streamed."""
    from tests.unit.gateway.story import serve

    stack = make_stack(payload_log="*=1")
    sink = kept_by(stack)
    async with stack.gateway.running():
        await serve(stack)
        url = next(iter(stack.gateway.table.current.endpoints))
        await stack.client.post(f"/serve/{url}", json={"text": "once upon", "stream": True})
    [record] = sink.records
    assert {"text", "finish_reason", "generated_tokens"} == set(record["answer"])
    assert record["answer"]["text"]
