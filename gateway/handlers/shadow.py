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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.errors import OF_CALLERS, ClientGone, DeadlineExceeded, GatewayError, Overloaded, Unavailable
from gateway.handlers.endpoint import Endpoint, Lookup, ask_version
from gateway.handlers.neighbours import Neighbours
from gateway.handlers.tensors import RawTensors
from gateway.hooks.json_form import plain
from gateway.metrics import catalog
from gateway.metrics.embeddings import vectors_of
from gateway.metrics.mirrored import groups_of, renamed, with_names
from gateway.metrics.observer import Observer
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


class _Pair(NamedTuple):
    """The version whose requests are mirrored, and the one that gets them."""

    shadow: _Shadow
    source: Endpoint
    target: Endpoint


class Mirror:
    """Sends a share of the finished requests to shadows. One per event loop.

    ``place(size)`` gives a request of so many bytes a place until its result is called, or raises ``Overloaded``.
    ``timeout``: seconds that one request may take.
    """

    def __init__(self, observer: Observer, place: Callable[[int], Callable[[], object]], *, timeout: float) -> None:
        self._observer = observer
        self._place = place
        self._timeout = timeout
        self._random = random.random
        self._shadows: dict[str, _Shadow] = {}
        self._by_url: dict[str, _Pair] = {}
        """What is mirrored, by the versions whose requests are."""
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
            url: _Pair(shadow, endpoint, endpoints[shadow.spec.to])
            for name, shadow in self._shadows.items()
            if shadow.spec.to in endpoints
            for url, endpoint in endpoints.items()
            if url != shadow.spec.to and name in (url, endpoint.identity.endpoint)
        }

    def answered(self, trace: Trace) -> None:
        """Send a finished request to its shadow, or ignore it. Never waits, never raises."""
        pair = self._by_url.get(trace.url)
        if pair is None or trace.outcome != "ok" or trace.body is None or trace.route == FALLBACK:
            return
        if self._random() * 100 >= pair.shadow.spec.percent or isinstance(trace.body, _NO_BODY):
            return
        if len(self._tasks) >= _MOST:
            self._count(pair, "dropped")
            return
        task = asyncio.get_running_loop().create_task(self._mirror(pair, trace), name="shadow")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def status(self) -> dict[str, Any]:
        """Return the shadows. How many of their answers agree is in the metrics."""
        return {
            name: {
                "to": shadow.spec.to, "percent": shadow.spec.percent, "tolerance": shadow.spec.tolerance,
                "is_on": any(pair.shadow is shadow for pair in self._by_url.values()),
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

    async def _mirror(self, pair: _Pair, one: Trace) -> None:
        shadow = pair.shadow
        try:
            agrees = await self._agrees(pair, one)
        except Exception as error:  # noqa: BLE001 - users' objects are compared, and may raise anything
            reason = str(error) if isinstance(error, GatewayError) else f"{type(error).__name__}: {error}"
            if reason != shadow.reason:
                _log.info("%s fails as a shadow of %s: %s", shadow.spec.to, shadow.spec.endpoint, reason[:300])
                shadow.reason = reason[:300]
            if not isinstance(error, GatewayError) or isinstance(error, _NOBODY):
                self._count(pair, "dropped")
            else:
                self._count(pair, "differed" if error.kind in OF_CALLERS else "failed", one)
            return
        if agrees is not None:
            self._count(pair, "agreed" if agrees else "differed", one)

    async def _agrees(self, pair: _Pair, one: Trace) -> bool | None:
        """Return whether the shadow gives the same answer; None: it is kept, to compare the next ones with.

        Raises ``GatewayError``, or whatever the comparison of users' objects raises.
        """
        (shadow, source, target), tolerance = pair, pair.shadow.spec.tolerance
        TRACEPARENT.set("")  # not a part of the caller's trace, which has ended
        leave = self._place(one.body_bytes)
        try:
            answer = (await ask_version(target, one.body, self._timeout, _FLOW)).answer
        finally:
            leave()
        if target.task == _EMBEDDINGS and tolerance >= _ANY_NUMBERS:
            return shadow.neighbours.compare(_vectors(one.answer), _vectors(answer))
        names = renamed(source.identity.labels, target.identity.labels)
        return await asyncio.to_thread(agree, one.answer, answer, names, tolerance)  # of long answers: milliseconds

    def _count(self, pair: _Pair, outcome: str, one: Trace | None = None) -> None:
        """Count an outcome; with the request, also in its groups."""
        version = (pair.target.identity.endpoint, pair.target.identity.version)
        self._observer.count(catalog.SHADOWS, *version, outcome)
        if one is not None:
            compared = "agreed" if outcome == "agreed" else "differed"
            for group in groups_of(one, pair.source.identity.labels):
                self._observer.count(catalog.SHADOW_GROUPS, *version, group, compared)


def _vectors(answer: object) -> NDArray[Any]:
    """Return the vectors of the first texts of an answer, as an array [texts, size]."""
    return np.asarray(vectors_of(answer)[:_MOST_TEXTS])


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
