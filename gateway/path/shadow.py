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
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.errors import OF_CALLERS, ClientGone, DeadlineExceeded, GatewayError, Overloaded, Unavailable
from gateway.handlers.endpoint import Endpoint, Lookup
from gateway.handlers.tensors import RawTensors
from gateway.hooks.json_form import plain
from gateway.metrics import catalog
from gateway.metrics.mirrored import groups_of, renamed, with_names
from gateway.metrics.observer import Observer
from gateway.path.admission import Permits
from gateway.path.neighbours import Neighbours
from gateway.path.routing import RoutingTable
from gateway.path.serve import ask_version
from gateway.samples import difference
from gateway.spec import ShadowSpec
from gateway.trace import BATCH, FALLBACK, TRACEPARENT, Flow, Trace
from preprocessing.types import Prepared

_log = logging.getLogger("triton_gateway.shadow")

_MOST: Final = 16
"""Mirrored requests that run at a time in a worker."""
_MOST_TEXTS: Final = 16
"""So many texts of a request are compared by their neighbours."""
_FLOW: Final = Flow(BATCH, "")
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

    def __init__(self, table: RoutingTable, observer: Observer, permits: Permits, *, timeout: float) -> None:
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
        self._by_url = {
            url: shadow
            for name, shadow in self._shadows.items()
            if shadow.spec.to in endpoints
            for url, endpoint in endpoints.items()
            if url != shadow.spec.to and name in (url, endpoint.identity.endpoint)
        }

    def answered(self, trace: Trace) -> None:
        """Send a finished request to its shadow, or ignore it. Never waits, never raises."""
        shadow = self._by_url.get(trace.url)
        if shadow is None or trace.outcome != "ok" or trace.body is None or trace.route == FALLBACK:
            return
        if self._random() * 100 >= shadow.spec.percent or isinstance(trace.body, _NO_BODY):
            return
        if len(self._tasks) >= _MOST:
            self._count(shadow, "dropped")
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
        try:
            agrees = await self._agrees(shadow, one)
        except Exception as error:  # noqa: BLE001 - users' objects are compared, and may raise anything
            is_known = isinstance(error, GatewayError)
            reason = str(error) if is_known else f"{type(error).__name__}: {error}"
            if reason != shadow.reason:
                _log.info("%s fails as a shadow of %s: %s", shadow.spec.to, shadow.spec.endpoint, reason[:300])
                shadow.reason = reason[:300]
            if not isinstance(error, GatewayError) or isinstance(error, _NOBODY):
                self._count(shadow, "dropped")
            else:
                self._count(shadow, "differed" if error.kind in OF_CALLERS else "failed", one)
            return
        if agrees is not None:
            self._count(shadow, "agreed" if agrees else "differed", one)

    async def _agrees(self, shadow: _Shadow, one: Trace) -> bool | None:
        """Return whether the shadow gives the same answer; None: it is kept, to compare the next ones with.

        Raises ``GatewayError``, or whatever the comparison of users' objects raises.
        """
        permits, endpoints, tolerance = self._permits, self._table.current.endpoints, shadow.spec.tolerance
        source, target = endpoints.get(one.url), endpoints.get(shadow.spec.to)
        if source is None or target is None or 2 * permits.held_bytes > permits.max_bytes:
            raise Overloaded("there is no room for mirrored requests")
        TRACEPARENT.set("")  # not a part of the caller's trace, which has ended
        permit = permits.take(BATCH)
        try:
            permit.hold(one.body_bytes)
            answer = (await ask_version(target, one.body, self._timeout, _FLOW)).answer
        finally:
            permit.release()
        if target.task == _EMBEDDINGS and tolerance >= _ANY_NUMBERS:
            return shadow.neighbours.compare(_vectors(one.answer), _vectors(answer))
        names = renamed(_labels(source), _labels(target))
        return await asyncio.to_thread(agree, one.answer, answer, names, tolerance)  # of long answers: milliseconds

    def _count(self, shadow: _Shadow, outcome: str, one: Trace | None = None) -> None:
        """Count an outcome; with the request, also in its groups."""
        endpoints = self._table.current.endpoints
        target, source = endpoints.get(shadow.spec.to), endpoints.get(one.url) if one is not None else None
        if target is None:
            return
        version = (target.identity.endpoint, target.identity.version)
        self._observer.count(catalog.SHADOWS, *version, outcome)
        if one is not None and source is not None:
            compared = "agreed" if outcome == "agreed" else "differed"
            for group in groups_of(one, _labels(source)):
                self._observer.count(catalog.SHADOW_GROUPS, *version, group, compared)


def _labels(endpoint: Endpoint) -> tuple[str, ...]:
    labels = endpoint.identity.details.get("labels")
    return tuple(map(str, labels)) if isinstance(labels, list | tuple) else ()


def _vectors(answer: object) -> NDArray[Any]:
    """Return the vectors of the first texts of an answer, as an array [texts, size]."""
    if not isinstance(answer, Mapping):
        return np.zeros(0)  # user code changed the form of the answer
    if "embedding" in answer:
        return np.asarray(answer["embedding"])[None]
    return np.asarray(answer.get("embeddings", ()))[:_MOST_TEXTS]


def agree(one: object, other: object, names: Mapping[str, str], tolerance: float) -> bool:
    """Return whether two answers are equal as those of samples are (``samples.difference``), but for counts of tokens.

    ``names``: which label of the other answer means which of the first.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        arrays = {key for key, value in one.items() if isinstance(value, np.ndarray)}  # long ones, as lists: seconds
        if not all(_are_close(one[key], np.asarray(other.get(key)), tolerance) for key in arrays):
            return False
        one, other = ({key: answer[key] for key in answer.keys() - arrays} for answer in (one, other))
    return not difference(_values(one), with_names(_values(other), names), tolerance, ignored=_COUNTS)


def _are_close(one: NDArray[Any], other: NDArray[Any], tolerance: float) -> bool:
    if one.shape != other.shape or {one.dtype.kind, other.dtype.kind} - {*"iuf"}:
        return np.array_equal(one, other)
    first, second = one.astype(np.float64), other.astype(np.float64)
    return bool((np.abs(first - second) <= tolerance * np.maximum(1.0, np.abs(first))).all())


def _values(answer: object) -> object:
    try:
        return plain(answer)
    except ValueError:  # bytes that are not JSON
        return answer
