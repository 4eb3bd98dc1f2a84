"""Shadow traffic: sends a share of an endpoint's requests to another version as well, after the caller has its answer.

The shadow's answer is compared with the caller's, counted, and discarded. A failure of the shadow is counted apart; if
nobody could have answered (no capacity, no time), the request counts as dropped, because that says nothing about the
version. The mirror listens to finished requests only while a shadow is configured. A mirrored request is one of class
batch: it has a permit only while half of the places and bytes are free, and its rows go last. Few run at a time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.errors import OF_CALLERS, ClientGone, DeadlineExceeded, GatewayError, Overloaded, Unavailable
from gateway.handlers.endpoint import Endpoint, Lookup
from gateway.handlers.tensors import RawTensors
from gateway.metrics import catalog
from gateway.metrics.mirrored import renamed, with_names
from gateway.metrics.observer import Observer
from gateway.path.admission import Permits
from gateway.path.ask import InternalAsk
from gateway.path.call import InternalCall
from gateway.path.neighbours import Neighbours
from gateway.path.routing import RoutingTable
from gateway.path.serve import OneVersion
from gateway.spec import ShadowSpec
from gateway.trace import BATCH, FALLBACK, TRACEPARENT, Flow, Trace
from preprocessing.types import Prepared

_log = logging.getLogger("triton_gateway.shadow")

_MOST: Final = 16
"""Mirrored requests that run at a time in a worker."""
_FLOW: Final = Flow(BATCH, "")
_LARGE_ROWS: Final = 16
"""Answers of more rows are compared in a thread."""
_ANY_NUMBERS: Final = 1.0
"""From this tolerance on, numbers between 0 and 1 do not matter, so embeddings are compared by their neighbours."""
_EMBEDDINGS: Final = "sentence-embeddings"
_NO_BODY: Final = (RawTensors, Prepared, Lookup)
"""Requests without a body that could be sent to another version."""
_COUNTS: Final = frozenset({"tokens", "truncated", "windows"})
"""Fields that describe the text, not the model's answer: versions with different tokenizers differ in them."""
_NOBODY: Final = (Overloaded, Unavailable, DeadlineExceeded, ClientGone)
"""Errors that say nothing about the version: it had no capacity, no server or no time."""


@dataclass(slots=True, eq=False)
class _Shadow:
    """A configured shadow, and the reason of its last failure in this process."""

    spec: ShadowSpec
    reason: str = ""
    neighbours: Neighbours = field(default_factory=Neighbours)


class Mirror:
    """Sends a share of the finished requests to shadows. One per event loop.

    ``timeout``: seconds that one request may take.
    """

    def __init__(
        self,
        table: RoutingTable,
        observer: Observer,
        permits: Permits,
        *,
        timeout: float,
    ) -> None:
        self._table = table
        self._observer = observer
        self._permits = permits
        self._timeout = timeout
        self._random = random.random
        self._shadows: dict[str, _Shadow] = {}
        self._by_url: dict[str, _Shadow] = {}
        """The shadows by the versions whose requests are mirrored."""
        self._tasks: set[asyncio.Task[None]] = set()

    def configure(self, shadows: Mapping[str, ShadowSpec], endpoints: Mapping[str, Endpoint]) -> None:
        """Mirror to ``shadows`` from now on, as far as their versions are among the served ``endpoints``.

        A shadow that stays keeps the texts that its embeddings are compared by, even if its share changes.
        """
        before, self._shadows = self._shadows, {}
        for name, spec in shadows.items():
            known = before.get(name)
            if known is None or replace(known.spec, percent=spec.percent) != spec:
                known = _Shadow(spec)
            known.spec = spec
            self._shadows[name] = known
        self._by_url = {}
        for name, shadow in self._shadows.items():
            if shadow.spec.to in endpoints:
                for url, endpoint in endpoints.items():
                    if url != shadow.spec.to and name in (url, endpoint.identity.endpoint):
                        self._by_url[url] = shadow

    def answered(self, trace: Trace) -> None:
        """Send a finished request to its shadow, or ignore it. Never waits, never raises."""
        shadow = self._by_url.get(trace.url)
        if shadow is None or trace.outcome != "ok" or trace.body is None or trace.route == FALLBACK:
            return
        if self._random() * 100 >= shadow.spec.percent or isinstance(trace.body, _NO_BODY):
            return
        if len(self._tasks) >= _MOST:
            self._drop(shadow)
            return
        task = asyncio.get_running_loop().create_task(self._mirror(shadow, trace), name="shadow")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def status(self) -> dict[str, Any]:
        """Return the shadows. How many of their answers agree is in the metrics."""
        return {
            name: {
                "to": shadow.spec.to, "percent": shadow.spec.percent, "tolerance": shadow.spec.tolerance,
                "is_on": shadow in self._by_url.values(),
                "last_failure": shadow.reason or None,
            }
            for name, shadow in self._shadows.items()
        }  # fmt: skip

    async def close(self) -> None:
        """Cancel what runs."""
        self._by_url = {}
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _mirror(self, shadow: _Shadow, one: Trace) -> None:
        permits, endpoints = self._permits, self._table.current.endpoints
        source, target = endpoints.get(one.url), endpoints.get(shadow.spec.to)
        if source is None or target is None or 2 * permits.held_bytes > permits.max_bytes:
            self._drop(shadow)
            return
        TRACEPARENT.set("")  # not a part of the caller's trace, which has ended
        ask = InternalAsk(InternalCall(shadow.spec.to, one.body))
        ask.flow = _FLOW
        try:
            permits.admit(ask, BATCH)
            ask.hold(one.body_bytes)
            await OneVersion(target, self._timeout).answer_to(ask)
        except GatewayError as error:
            ask.release()
            self._note(shadow, str(error))
            if isinstance(error, _NOBODY):
                self._drop(shadow)
            else:
                self._count(target, "differed" if error.kind in OF_CALLERS else "failed")
            return
        try:
            answer = with_names(ask.reply, renamed(_labels(source), _labels(target)))
            if target.task == _EMBEDDINGS and shadow.spec.tolerance >= _ANY_NUMBERS:
                same = _agree_on_neighbours(shadow.neighbours, one.answer, answer)
                if same is None:
                    return  # kept, to compare the next ones with
            else:
                compared = partial(compare, one.answer, answer)
                is_large = max(one.rows, ask.rows) > _LARGE_ROWS
                same, off = await asyncio.to_thread(compared) if is_large else compared()
                same = same and off <= shadow.spec.tolerance
        except Exception as error:  # noqa: BLE001 - users' objects are compared, and may raise anything
            self._note(shadow, f"{type(error).__name__}: {error}")
            self._drop(shadow)
            return
        self._count(target, "agreed" if same else "differed")

    def _count(self, target: Endpoint, outcome: str) -> None:
        self._observer.count(catalog.SHADOWS, target.identity.endpoint, target.identity.version, outcome)

    def _note(self, shadow: _Shadow, reason: str) -> None:
        if reason != shadow.reason:
            _log.info("%s fails as a shadow of %s: %s", shadow.spec.to, shadow.spec.endpoint, reason[:300])
            shadow.reason = reason[:300]

    def _drop(self, shadow: _Shadow) -> None:
        target = self._table.current.endpoints.get(shadow.spec.to)
        if target is not None:
            self._count(target, "dropped")


def _labels(endpoint: Endpoint) -> tuple[str, ...]:
    labels = endpoint.identity.details.get("labels")
    return tuple(map(str, labels)) if isinstance(labels, list | tuple) else ()


def _agree_on_neighbours(neighbours: Neighbours, one: object, other: object) -> bool | None:
    """Compare two answers of an embedding model by their neighbours, for the first texts of a long request."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False  # user code changed the form of the answer
    return neighbours.compare(_vectors(one), _vectors(other))


def _vectors(answer: Mapping[Any, Any]) -> NDArray[Any]:
    """Return the vectors of the first texts of an answer, as an array [texts, size]."""
    if "embedding" in answer:
        return np.asarray(answer["embedding"])[None]
    return np.asarray(answer.get("embeddings", ()))[:_LARGE_ROWS]


def compare(one: object, other: object) -> tuple[bool, float]:
    """Return whether two answers are equal apart from numbers, and the largest difference of their numbers.

    Differences are absolute up to 1 and relative above. A number that only one answer has is compared with 0. Counts of
    tokens are ignored.
    """
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return _arrays(np.asarray(one), np.asarray(other))
    if _is_number(one) and _is_number(other):
        return True, _distance(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        found = [
            compare(one.get(key, 0.0 if _is_number(other.get(key)) else None),
                    other.get(key, 0.0 if _is_number(one.get(key)) else None))
            for key in {**one, **other} if key not in _COUNTS
        ]  # fmt: skip
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return False, 0.0
        found = [compare(a, b) for a, b in zip(one, other, strict=True)]
    else:
        return bool(one == other), 0.0
    return all(same for same, _ in found), max((off for _, off in found), default=0.0)


def _arrays(one: NDArray[Any], other: NDArray[Any]) -> tuple[bool, float]:
    if one.shape != other.shape:
        return False, 0.0
    if one.dtype.kind not in "iufb" or other.dtype.kind not in "iufb":
        return bool((one == other).all()), 0.0
    if not one.size:
        return True, 0.0
    first, second = one.astype(np.float64), other.astype(np.float64)
    off = np.abs(first - second) / np.maximum(1.0, np.abs(first))
    return True, float(off.max())


def _distance(one: Any, other: Any) -> float:
    return float(abs(one - other) / max(1.0, abs(one)))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
