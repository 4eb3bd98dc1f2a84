"""The trace of one request: filled along the hot path, and read once at its end by metrics, logs and spans.

A plain mutable object with slots and integer nanoseconds, because one is created for every request. Only the stage-time
headers of the reply read it before the request has ended.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from itertools import count
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:  # it needs numpy, which commands that only name routes do not have to wait for
    from preprocessing.types import Encoded, Prepared

TRACEPARENT: ContextVar[str] = ContextVar("traceparent", default="")
"""The W3C ``traceparent`` of the current request, which calls to other services pass on."""

DIRECT: Final = "direct"
"""The route of a request that named its version, or an endpoint with only one version."""
STABLE: Final = "stable"
"""The route of a request that a canary's weights sent to the stable version."""
CANARY: Final = "canary"
"""The route of a request that a canary's weights sent to the new version."""
FALLBACK: Final = "fallback"
"""The route of a request that the stable version answered after the canary had failed."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class _Ids:
    """Ids of requests: a random prefix for each process, and a number."""

    def __init__(self) -> None:
        self.prefix = f"{random.getrandbits(32):08x}"
        self.numbers = count()


_ids = _Ids()
os.register_at_fork(after_in_child=_ids.__init__)  # type: ignore[misc]


def new_id() -> str:
    """Return an id of 16 hexadecimal digits, for a request without one."""
    return f"{_ids.prefix}{next(_ids.numbers) & 0xFFFFFFFF:08x}"


def clean_id(value: bytes) -> str:
    """Return a caller's request id, or an empty text if it cannot be used."""
    # The id is repeated in headers and logs, so it must be printable and short.
    if 0 < len(value) <= 128 and value.isascii():
        text = value.decode("ascii")
        if text.isprintable():
            return text
    return ""


def parse_traceparent(header: bytes) -> str:
    """Return a caller's ``traceparent`` if it is valid, else an empty string."""
    text = header.decode("latin-1").strip()[:55]
    return text if _TRACEPARENT.fullmatch(text) and not text.startswith("ff") else ""


class Flow(NamedTuple):
    """The requests that are served in order of arrival: those of one class of priority and one tenant.

    ``rank`` 0 is the most important class. Classes go one before the other; tenants of one class share fairly.
    """

    rank: int
    tenant: str


STAGES: Final = ("prepare", "queue", "infer", "finish")
"""What the time of a request is spent on; see ``Trace``."""
CLASSES: Final = ("critical", "default", "batch")
"""The classes of priority by rank, the most important first."""
CRITICAL, DEFAULT, BATCH = range(3)
DEFAULT_FLOW: Final = Flow(DEFAULT, "")
"""The flow of a request that names neither a class nor a tenant."""


class Trace:
    """What is known of one request: labels, stage timings (ns), counts, outcome. Handlers fill it, metrics read it.

    Stages: ``prepare`` (parse, tokenize or hook), ``queue`` (waiting for a call to Triton), ``infer`` (the call),
    ``finish`` (decode or hook). They do not overlap, so together they are at most ``total_ns``.
    """

    __slots__ = (
        "__dict__", "answer", "body", "body_bytes", "deadline", "encoded", "endpoint", "finish_ns", "finishes_ns",
        "flow", "infer_ns", "model_id", "outcome", "outputs", "prepare_ns", "prepared", "queue_ns", "ready_ns",
        "request_id", "route", "rows", "started_ns", "status", "tokens", "total_ns", "trace_id", "traceparent",
        "truncated", "url", "version",
    )  # fmt: skip

    # What most requests leave as it is costs them nothing here.
    is_recorded = True
    """Whether its spans are exported, so that somebody can look them up."""
    error: BaseException | None = None
    caller: Any = None
    """The caller (``callers.rights.Caller``), if callers must authenticate."""
    quota: Any = None
    """The quota of its tenant (``callers.quotas.Quota``), if there is one."""
    charged = 0
    """Tokens charged in advance, until the used ones are known."""
    generated_tokens = 0
    """Tokens generated for a streamed answer."""
    custom: dict[str, object] | None = None
    """What a hook reported through ``collect_custom_statistics_fn``."""
    pieces: list[Any] | None = None
    """The pieces of a streamed answer (``handlers.endpoint.Event``), if they are kept."""
    needs_outputs = False
    """Whether ``outputs`` must be set by who answers it."""
    span: Any = None
    """Its span, if requests have spans (``spans``)."""

    def __init__(self, request_id: str, parent: str = "") -> None:
        self.request_id = request_id
        self.started_ns = self.ready_ns = perf_counter_ns()
        """When it began, and when all of it was here."""
        self.finishes_ns = 0
        """When its outputs were there, if the stage ``finish`` lasts until its end."""
        self.total_ns = self.prepare_ns = self.queue_ns = self.infer_ns = self.finish_ns = 0
        self.endpoint = self.version = self.url = self.model_id = ""
        self.route = ""
        self.rows = self.tokens = self.truncated = 0
        self.status = 0
        self.outcome = "ok"
        self.traceparent = parent
        """The W3C ``traceparent`` that its calls to other services carry."""
        self.trace_id = parent and parent[3:35]
        """The id of the caller's trace, or of the one that began here."""
        self.flow = DEFAULT_FLOW
        self.deadline = 0.0
        """Loop time at which it ends, answered or not."""
        self.encoded: Sequence[Encoded] | None = None
        """The encoded texts of a text task."""
        self.prepared: Prepared | None = None
        """The prepared request of a text task, after its head has finished."""
        self.outputs: Mapping[str, Any] | None = None
        """The model's own outputs (name → array, rows first), if its handler has them."""
        self.body_bytes = 0
        """The bytes of the request body, if it was read."""
        self.body: Any = None
        self.answer: Any = None
        """The body and the answer, for variables that are counted after the answer."""

    def render(self, answer: object) -> object:
        """Write the reply to ``answer`` already, and return ``answer``. Raises ``GatewayError``.

        For answers that take long to write: this may run in a thread.
        """
        return answer

    def collect(self, values: object) -> None:
        """Add a hook's report (``collect_custom_statistics_fn``); anything but a mapping is ignored."""
        if isinstance(values, Mapping):
            self.custom = {**(self.custom or {}), **values}

    def forget_content(self) -> None:
        """Forget what a version recorded of the request, before another version gets it. Times add up."""
        self.rows = self.tokens = self.truncated = 0
        self.custom = self.encoded = self.prepared = self.outputs = None

    def close(self) -> None:
        """Stop the clock."""
        now = perf_counter_ns()
        self.total_ns = now - self.started_ns
        if self.finishes_ns:
            self.finish_ns = now - self.finishes_ns
