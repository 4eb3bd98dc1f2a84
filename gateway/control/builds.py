"""The work on versions: a task for each that is built or restored, begun in turn and repeated until it works.

A version that takes minutes (or fails for ever) delays nobody. A change that concerns a thousand endpoints begins a few
builds at a time, so that the event loop has its turn between them. What a task comes to is told to ``Versions``; an
endpoint that is ready goes to ``publish``, which swaps the routes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from gateway.control.assemble import Assembler
from gateway.control.compile import EndpointPlan
from gateway.control.last_good import LastGood
from gateway.control.records import ModelRecords
from gateway.control.version import State, Version, Versions
from gateway.endpoints.endpoint import Endpoint
from gateway.errors import (
    AnswersDisagree,
    ContentChanged,
    ControlError,
    FailsOnRequests,
    GatewayError,
    RegistryRefused,
)
from gateway.metrics.observer import Observer
from gateway.spec import decode_model

_log = logging.getLogger("triton_gateway.control")

_RETRY_FIRST_S: Final = 1.0
_RETRY_MAX_S: Final = 30.0
_RETRY_TRIED_S: Final = 300.0
"""For a version that was tried and found wrong: trying is work, and little speaks for another outcome."""
_TRIED: Final = (AnswersDisagree.kind, FailsOnRequests.kind, ContentChanged.kind)
_BEGUN_AT_ONCE: Final = 4
_BEGUN_APART_S: Final = 0.005

Finished = Callable[[Version, Endpoint, LastGood], None]


class Builds:
    """Works on versions until they serve or nobody wants them. ``finished`` is called with each endpoint that is ready,
    ``learned`` when something has to be remembered over a restart.
    """

    def __init__(
        self,
        assembler: Assembler,
        records: ModelRecords,
        observer: Observer,
        versions: Versions,
        finished: Finished,
        learned: Callable[[], None],
    ) -> None:
        self._assembler = assembler
        self._records = records
        self._observer = observer
        self._versions = versions
        self._finished = finished
        self._learned = learned
        self._tasks: dict[Version, asyncio.Task[None]] = {}
        self._waiting: deque[Version] = deque()
        self._next: asyncio.TimerHandle | None = None

    def begin(self, versions: Iterable[Version]) -> None:
        """Work on these, each when it is its turn."""
        self._waiting.extend(versions)
        if self._next is None:
            self._begin_some()

    def _begin_some(self) -> None:
        self._next = None
        begun = 0
        while self._waiting and begun < _BEGUN_AT_ONCE:
            version = self._waiting.popleft()
            if version.state is State.GONE:
                continue
            task = asyncio.create_task(self._work(version), name=f"build {version.url}")
            self._tasks[version] = task
            begun += 1
        if self._waiting:
            self._next = asyncio.get_running_loop().call_later(_BEGUN_APART_S, self._begin_some)

    def give_up(self, version: Version) -> None:
        """Nobody wants it any more."""
        task = self._tasks.pop(version, None)
        if task is not None:
            task.cancel()
        if version.plan is not None:
            self._assembler.give_up(version.plan)

    async def stop(self) -> None:
        """End everything."""
        if self._next is not None:
            self._next.cancel()
        self._waiting.clear()
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, version: Version) -> None:
        plan, versions, said = version.plan, self._versions, ""
        assert plan is not None  # noqa: S101 - what is refused is not worked on
        is_restored = version.state is State.RESTORING
        while True:
            versions.building(version)
            try:
                endpoint = await (self._restored(version, plan) if is_restored else self._built(version, plan))
            except GatewayError as error:
                reason, outcome, is_final = _reason(error), error.kind, _is_final(error)
                if isinstance(error, FailsOnRequests):
                    versions.successor_failed(version, error.message)
                    self._learned()
            except Exception as error:  # noqa: BLE001 - one endpoint's bug of ours must not end its retries
                reason, outcome, is_final = f"unexpected {type(error).__name__}: {error}", "internal", False
                _log.exception("building %s failed unexpectedly", version.url)
            else:
                break
            if version.state is State.GONE:
                return  # given up, and what it was doing answered with an error of its own
            versions.failed(version, reason, is_final=is_final)
            if not is_restored:
                self._observer.built(outcome)
            if reason != said:
                what = ": the version served before cannot be restored" if is_restored else ""
                _log.warning("endpoint %s%s: %s", version.url, what, reason)
                said = reason
            await asyncio.sleep(pause(version.failures, outcome))
        self._tasks.pop(version, None)
        if is_restored and version.last_good is not None:
            self._finished(version, endpoint, version.last_good)
        else:
            self._observer.built("ok")
            self._finished(version, endpoint, LastGood(plan, self._records.raw(plan.spec.model_id)))

    async def _built(self, version: Version, plan: EndpointPlan) -> Endpoint:
        versions = self._versions
        seen = seen_by(versions, version)
        former = versions.former_of(version)
        if former is not None and former.last_good is not None and not seen and former.may_come:
            known = former.last_good
            if known.refused == plan.fingerprint:
                raise FailsOnRequests(known.reason, hint="it is tried again with the next request that is answered")
        return await self._assembler.build(
            plan, lambda step: versions.step(version, step), validating=lambda: versions.validating(version), seen=seen
        )

    async def _restored(self, version: Version, plan: EndpointPlan) -> Endpoint:
        stored = version.last_good.record if version.last_good is not None else None
        record = decode_model(stored) if stored is not None else None
        return await self._assembler.build(plan, lambda step: self._versions.step(version, step), record=record)


def seen_by(versions: Versions, version: Version) -> list[bytes]:
    """Return a body that this url, or else another version of the same endpoint, has answered lately."""
    assert version.plan is not None  # noqa: S101 - as in `_work`
    family = sorted(versions.family(version.plan.spec.endpoint), key=lambda other: other.url != version.url)
    bodies = (other.endpoint.last_body for other in family if other.endpoint is not None)
    return [body for body in bodies if body is not None][:1]


def pause(failures: int, outcome: str) -> float:
    """Return how many seconds to wait after so many failures in a row, of which the last one was ``outcome``."""
    most = _RETRY_TRIED_S if outcome in _TRIED else _RETRY_MAX_S
    return min(_RETRY_FIRST_S * 2.0 ** min(failures - 1, 30), most)


def _is_final(error: GatewayError) -> bool:
    """Whether another attempt would end alike everywhere; what cannot be fetched here may be served elsewhere."""
    return not error.retryable and not isinstance(error, RegistryRefused | ContentChanged)


def _reason(error: GatewayError) -> str:
    text = f"{error.message}; {error.hint}" if error.hint else error.message
    return text if not isinstance(error, ControlError) else text[:500]
