"""Shadow traffic: a share of an endpoint's requests is answered by another version too, after the caller was answered.

Nobody waits for it and nobody sees its answer: it is compared with the one that was given, and counted. The mirror
listens to finished requests only while a shadow is configured. Whatever happens here stays here: a queue with a bound,
few requests at a time, a deadline, and everything is dropped first when the process or Triton has too much to do.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.dataplane.coroutines import ask_version
from gateway.dataplane.neighbours import Neighbours
from gateway.dataplane.records import Listener
from gateway.dataplane.routing.table import RoutingTable
from gateway.endpoints.endpoint import Endpoint, Lookup
from gateway.endpoints.tensors import RawTensors
from gateway.errors import GatewayError
from gateway.metrics.observer import Observer
from gateway.spec import ShadowSpec
from gateway.trace import FALLBACK, TRACEPARENT, Trace
from preprocessing.types import Prepared

_log = logging.getLogger("triton_gateway.shadow")

_AT_A_TIME: Final = 2
_MAX_WAITING: Final = 64
_MAX_WAITING_BYTES: Final = 16 << 20
"""Of the bodies that wait."""
_STALE_S: Final = 2.0
_LARGE_ROWS: Final = 16
_LATE_S: Final = 0.01
_ANY_NUMBERS: Final = 1.0
"""A tolerance from which on numbers between 0 and 1 do not matter: of embeddings, which texts they place together."""
_EMBEDDINGS: Final = "sentence-embeddings"
_NO_BODY: Final = (RawTensors, Prepared, Lookup)
"""Questions that are no body which another version could be asked."""
_COUNTS: Final = frozenset({"tokens", "truncated", "windows"})
"""What an answer says of the text, not of the model: versions with different tokenizers differ there and agree."""

Outcome = str
"""``agreed``, ``differed``, ``failed`` or ``dropped``."""


@dataclass(slots=True)
class _Shadow:
    """One configured shadow and what this process has seen of it."""

    spec: ShadowSpec
    target: str
    counts: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(("agreed", "differed", "failed"), 0))
    dropped: int = 0
    difference: float = 0.0
    reason: str = ""
    neighbours: Neighbours = field(default_factory=Neighbours)


@dataclass(frozen=True, slots=True)
class _Waiting:
    shadow: _Shadow
    body: object
    answer: object
    at: float
    rows: int
    size: int


class Mirror:
    """Answers a share of finished requests once more. One per event loop.

    ``subscribe(listener)`` has the listener called with every finished request, and returns what ends that.
    ``is_busy()`` says that there is no room for what nobody waits for. ``timeout``: seconds one request may take.
    A request that waited for more than ``late`` seconds before Triton took it, and twice as long as Triton worked, is
    not mirrored; nor is one whose turn comes more than ``stale`` seconds after its answer.
    """

    def __init__(
        self,
        table: RoutingTable,
        observer: Observer,
        subscribe: Callable[[Listener], Callable[[], None]],
        *,
        is_busy: Callable[[], bool],
        timeout: float,
        late: float = _LATE_S,
        stale: float = _STALE_S,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._table = table
        self._observer = observer
        self._subscribe = subscribe
        self._unsubscribe: Callable[[], None] | None = None
        self._is_busy = is_busy
        self._timeout = timeout
        self._late = late
        self._stale = stale
        self._draw = draw
        self._shadows: dict[str, _Shadow] = {}
        self._by_url: dict[str, _Shadow] = {}
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def configure(self, shadows: Mapping[str, ShadowSpec], endpoints: Mapping[str, Endpoint]) -> None:
        """Mirror for ``shadows`` from now on, as far as their versions are among the served ``endpoints``.

        What was counted for a shadow that stays is kept, also if its share changes.
        """
        before, self._shadows = self._shadows, {}
        for name, spec in shadows.items():
            known = before.get(name)
            if known is None or replace(known.spec, percent=spec.percent) != spec:
                known = _Shadow(spec, spec.to)
            known.spec = spec
            self._shadows[name] = known
        self._by_url = {}
        for name, shadow in self._shadows.items():
            if shadow.target in endpoints:
                for url, endpoint in endpoints.items():
                    if url != shadow.target and name in (url, endpoint.identity.endpoint):
                        self._by_url[url] = shadow
        if self._by_url and self._unsubscribe is None:
            self._unsubscribe = self._subscribe(self.answered)
        elif not self._by_url:
            self._leave()

    def answered(self, trace: Trace) -> None:
        """Take a finished request, or leave it: never waits, never raises."""
        shadow = self._by_url.get(trace.url)
        if shadow is None or trace.outcome != "ok" or trace.body is None or trace.route in ("pinned", FALLBACK):
            return
        if self._draw() * 100 >= shadow.spec.percent or isinstance(trace.body, _NO_BODY):
            return
        # A request that waited for longer than Triton took says that Triton has no time for more.
        is_late = trace.queue_ns > max(self._late * 1e9, 2 * trace.infer_ns)
        size = trace.body_bytes
        is_full = len(self._waiting) >= _MAX_WAITING or self._waiting_bytes + size > _MAX_WAITING_BYTES
        if is_late or is_full or self._is_busy():
            self._drop(shadow)
            return
        loop = asyncio.get_running_loop()
        self._waiting.append(_Waiting(shadow, trace.body, trace.answer, loop.time(), trace.rows, size))
        self._waiting_bytes += size
        if len(self._tasks) < _AT_A_TIME:
            task = loop.create_task(self._work(), name="shadow")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def status(self) -> dict[str, Any]:
        """Return what is mirrored and how it compares, in this process."""
        found = {}
        for name, shadow in self._shadows.items():
            compared = shadow.counts["agreed"] + shadow.counts["differed"]
            found[name] = {
                "to": shadow.target, "percent": shadow.spec.percent, "tolerance": shadow.spec.tolerance,
                "mirrored": compared + shadow.counts["failed"], **shadow.counts, "dropped": shadow.dropped,
                "agreement": shadow.counts["agreed"] / compared if compared else None,
                "mean_difference": shadow.difference / compared if compared else None,
                "is_on": shadow in self._by_url.values(), "last_failure": shadow.reason or None,
            }  # fmt: skip
        return found

    async def close(self) -> None:
        """Give up what runs and what waits."""
        self._leave()
        self._waiting.clear()
        self._waiting_bytes = 0
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _leave(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    async def _work(self) -> None:
        TRACEPARENT.set("")  # no part of the caller's trace: the caller has its answer
        while self._waiting:
            one = self._waiting.popleft()
            self._waiting_bytes -= one.size
            await self._mirror(one)

    async def _mirror(self, one: _Waiting) -> None:
        shadow = one.shadow
        loop = asyncio.get_running_loop()
        target = self._table.current.endpoints.get(shadow.target)
        if target is None or loop.time() - one.at > self._stale or self._is_busy():
            self._drop(shadow)
            return
        trace = Trace("shadow")
        try:
            answer = await ask_version(target, one.body, self._timeout, trace)
            if target.task == _EMBEDDINGS and shadow.spec.tolerance >= _ANY_NUMBERS:
                near = _places_alike(shadow.neighbours, one.answer, answer)
                if near is None:
                    return  # kept, to compare the next ones with
                same, off = near, 0.0
            elif max(one.rows, trace.rows) > _LARGE_ROWS:
                same, off = await asyncio.to_thread(compare, one.answer, answer)
            else:
                same, off = compare(one.answer, answer)
        except GatewayError as error:
            self._failed(shadow, str(error))
            return
        except Exception as error:  # noqa: BLE001 - users' objects are compared: whatever they raise stays here
            self._failed(shadow, f"{type(error).__name__}: {error}")
            return
        outcome = "agreed" if same and off <= shadow.spec.tolerance else "differed"
        shadow.counts[outcome] += 1
        shadow.difference += off
        identity = target.identity
        self._observer.mirrored(identity.endpoint, identity.version, outcome, off, trace.total_ns)

    def _failed(self, shadow: _Shadow, reason: str) -> None:
        shadow.counts["failed"] += 1
        if reason != shadow.reason:
            _log.info("%s fails as a shadow of %s: %s", shadow.target, shadow.spec.endpoint, reason[:300])
            shadow.reason = reason[:300]
        self._count(shadow, "failed")

    def _drop(self, shadow: _Shadow) -> None:
        shadow.dropped += 1
        self._count(shadow, "dropped")

    def _count(self, shadow: _Shadow, outcome: Outcome) -> None:
        target = self._table.current.endpoints.get(shadow.target)
        if target is not None:
            self._observer.mirrored(target.identity.endpoint, target.identity.version, outcome)


def _places_alike(neighbours: Neighbours, one: object, other: object) -> bool | None:
    """Compare two answers of an embedding model by what they place together; the first texts of a long request."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False  # users' code made something else of it
    return neighbours.compare(_vectors(one), _vectors(other))


def _vectors(answer: Mapping[Any, Any]) -> NDArray[Any]:
    """Return the vectors of an answer, those of the first texts, as [texts, size]."""
    if "embedding" in answer:
        return np.asarray(answer["embedding"])[None]
    return np.asarray(answer.get("embeddings", ()))[:_LARGE_ROWS]


def compare(one: object, other: object) -> tuple[bool, float]:
    """Return whether two answers say the same apart from numbers, and how far their numbers are apart at most.

    A number's distance is absolute up to 1 and relative above. What only one of them has counts as 0 where it is a
    number. Counts of tokens are left out.
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
