"""Queues a sample of answered requests; a thread of its own writes their requests and answers.

``answered`` is called by the data plane: it draws the sample and appends to a bounded queue. The thread converts
records to JSON, redacts them and passes them to a sink. If the queue is full, records are dropped and counted. Only
answered requests are logged, no shadow requests and no validation requests.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson

from gateway.callers.rights import Caller
from gateway.endpoints.cache import size_of
from gateway.endpoints.endpoint import Event, Lookup
from gateway.endpoints.tensors import RawTensors
from gateway.hooks.answers import HookResponse
from gateway.payloads.rules import Redact, Share, share_of
from gateway.payloads.sink import NOT_JSON, QUEUE_FULL, TOO_LARGE, WRITTEN, Record, Sink, dumps
from gateway.trace import Trace
from preprocessing.types import Prepared

_log = logging.getLogger("triton_gateway.payloads")

PRIVATE: Final = ("request_id", "trace_id", "caller", "tenant", "request", "answer")
"""Fields of a record that may be dropped by name, like the fields inside request and answer."""

_MAX_WAITING: Final = 2000
_MAX_WAITING_BYTES: Final = 16 << 20
"""Size of all queued requests and answers."""
_MAX_RECORD: Final = 1 << 20
_MAX_WRITE: Final = 4 << 20
_EVERY_S: Final = 0.5
_END_S: Final = 5.0
_COMPLAIN_EVERY_S: Final = 60.0

Count = Callable[[str, int], None]
"""``count(outcome, records)``, called on the event loop."""


class _Waiting(NamedTuple):
    at: float
    trace: Trace
    size: int


class PayloadLog:
    """Writes samples of answered requests to ``sink``. The event loop calls it; ``begin`` starts its thread.

    ``redact`` is applied to request and answer. ``dropped`` are fields of ``PRIVATE`` to leave out.
    """

    def __init__(
        self,
        sink: Sink,
        shares: Sequence[Share],
        *,
        count: Count,
        redact: Redact | None = None,
        dropped: frozenset[str] = frozenset(),
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sink = sink
        self._shares = tuple(shares)
        self._count = count
        self._redact = redact
        self._dropped = dropped.intersection(PRIVATE)
        self._draw = draw
        self._clock = clock
        self._tell: Callable[..., object] = lambda call, *arguments: call(*arguments)
        self._by_url: dict[str, float] = {}
        self._waiting: deque[_Waiting] = deque()
        # Each is changed by one thread only: `+=` from two threads would lose updates.
        self._came = self._went = 0
        self._wake = threading.Event()
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._counts: Counter[str] = Counter()
        self._problem = ""
        self._complain_at = 0.0

    # --- on the event loop --------------------------------------------------------------------------------------------

    def begin(self, tell: Callable[..., object]) -> None:
        """Start the thread. ``tell(call, *arguments)`` must run a call on the event loop."""
        self._tell = tell
        self._thread = threading.Thread(target=self._run, name="payload-log", daemon=True)
        self._thread.start()

    def answered(self, trace: Trace) -> None:
        """Queue a finished request if it is drawn; never waits."""
        url = trace.url
        share = self._by_url.get(url)
        if share is None:
            if not url:
                return  # it reached no version, so it has no answer
            share = self._by_url[url] = share_of(url, self._shares)
        if not share or trace.outcome != "ok" or self._draw() >= share or isinstance(trace.body, Lookup):
            return
        size = trace.body_bytes + size_of(trace.answer) + sum([len(piece.text) for piece in trace.pieces or ()])
        if size > _MAX_RECORD:
            self._counted(TOO_LARGE, 1)
        elif len(self._waiting) >= _MAX_WAITING or self._came - self._went + size > _MAX_WAITING_BYTES:
            reason = f"the queue is full: {self._sink.where} takes fewer records than come"
            self._complain(reason)
            self._counted(QUEUE_FULL, 1, reason)
        else:
            self._came += size
            self._waiting.append(_Waiting(self._clock(), trace, size))
            if len(self._waiting) * 2 == _MAX_WAITING:  # otherwise the thread wakes up by itself soon enough
                self._wake.set()

    def status(self) -> dict[str, Any]:
        """Return what is logged and where, and what this process has written and lost."""
        return {
            "to": self._sink.where,
            "shares": {one.pattern: one.share for one in self._shares},
            "is_redacted": self._redact is not None,
            "written": self._counts[WRITTEN],
            "lost": {outcome: n for outcome, n in sorted(self._counts.items()) if outcome != WRITTEN},
            "problem": self._problem or None,
        }

    def close(self) -> None:
        """Write the queue within seconds and stop. Call it from a thread that may wait."""
        if self._thread is None:
            return
        self._is_over = True
        self._sink.stop()
        self._wake.set()
        self._thread.join(_END_S)

    def _counted(self, outcome: str, records: int, problem: str = "") -> None:
        self._counts[outcome] += records
        self._problem = "" if outcome == WRITTEN else problem or self._problem
        self._count(outcome, records)

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_over:
                self._wake.wait(_EVERY_S)
                self._wake.clear()
                self.write()
                self._sink.idle()
            self.write()
        except Exception:  # noqa: BLE001 - the thread's end must be logged: nothing waits for it
            _log.exception("the payload log ended: nothing is written any more")
        finally:
            self._sink.close()

    def write(self) -> None:
        """Write the queued records."""
        while frames := self._frames():
            outcome, reason = self._sink.write(frames)
            if reason:
                self._complain(f"{len(frames)} records were lost: {reason}")
            self._told(outcome, len(frames), reason)

    def _frames(self) -> list[bytes]:
        """Return the next records, framed, enough for one call of the sink."""
        frames: list[bytes] = []
        size = 0
        while self._waiting and len(frames) < self._sink.most and size < _MAX_WRITE:
            one = self._waiting.popleft()
            self._went += one.size
            try:
                frame = self._sink.framed(self._record(one))
            except Exception as error:  # noqa: BLE001 - answers may be users' objects, which may raise anything
                reason = f"an answer of {one.trace.url} cannot be written as JSON: {error}"
                self._complain(reason)
                self._told(NOT_JSON, 1, reason)
                continue
            if len(frame) > _MAX_RECORD:
                self._told(TOO_LARGE, 1)
                continue
            frames.append(frame)
            size += len(frame)
        return frames

    def _record(self, one: _Waiting) -> Record:
        trace, caller = one.trace, one.trace.caller
        record: dict[str, Any] = {
            "time": datetime.fromtimestamp(one.at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "request_id": trace.request_id, "trace_id": trace.trace_id,
            "url": trace.url, "endpoint": trace.endpoint, "version": trace.version, "model_id": trace.model_id,
            "route": trace.route,
            **({"tenant": caller.tenant, "caller": caller.name} if isinstance(caller, Caller) else {}),
            "total_ms": round(trace.total_ns / 1e6, 3), "tokens": trace.tokens,
            "request": _asked(trace.body), "answer": _answer(trace),
        }  # fmt: skip
        for name in self._dropped:
            record.pop(name, None)
        if self._redact is not None:
            for name in ("request", "answer"):
                if name in record:
                    record[name] = self._redact(orjson.loads(dumps(record[name])))
        return record

    def _told(self, outcome: str, records: int, problem: str = "") -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._tell(self._counted, outcome, records, problem)

    def _complain(self, reason: str) -> None:
        now = time.monotonic()
        if now >= self._complain_at:
            self._complain_at = now + _COMPLAIN_EVERY_S
            _log.warning("payload log: %s", reason[:500])


def _asked(question: object) -> object:
    """Return the request as a value with a JSON form."""
    if isinstance(question, bytes | bytearray | memoryview):
        return _text_of(bytes(question))
    if isinstance(question, Prepared):
        return {"token_ids": [row.ids.tolist() for row in question.rows]}
    if isinstance(question, RawTensors):
        return {"inputs": dict(question.inputs)}
    return question


def _answer(trace: Trace) -> object:
    if trace.pieces is not None:
        return dict(_joined(trace.pieces))
    answer = trace.answer
    if isinstance(answer, bytes | bytearray | memoryview):
        return _text_of(bytes(answer))
    if isinstance(answer, HookResponse):
        return {"status": answer.status_code, "body": _text_of(answer.body)}
    return answer


def _joined(pieces: Sequence[Event]) -> Iterator[tuple[str, object]]:
    """Yield the fields of the equivalent unstreamed answer."""
    yield "text", "".join(piece.text for piece in pieces)
    yield "finish_reason", pieces[-1].finish_reason
    yield "generated_tokens", pieces[-1].generated_tokens


def _text_of(content: bytes) -> str | Mapping[str, str]:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
