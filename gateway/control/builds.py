"""Builds versions: one task per version, started a few at a time, repeated until the version serves.

A build that takes minutes or always fails delays no other build. Builds start a few at a time, so that a change of a
thousand endpoints leaves the event loop its turn. The tasks report progress and failures to ``Versions``; a finished
endpoint goes to ``publish``, which swaps the routes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from gateway.control.assemble import Assembler
from gateway.control.version import Phase, Version, Versions
from gateway.errors import (
    AnswersDisagree,
    ContentChanged,
    ControlError,
    FailsOnRequests,
    GatewayError,
    RegistryRefused,
)
from gateway.handlers.endpoint import Endpoint
from gateway.metrics import catalog
from gateway.metrics.observer import Observer

_log = logging.getLogger("triton_gateway.control")

_RETRY_FIRST_S: Final = 1.0
"""Pause after the first failure; each further failure doubles it."""
_RETRY_MAX_S: Final = 30.0
_RETRY_TRIED_S: Final = 300.0
"""Longest pause after a failed validation: validating is expensive, and the next attempt will probably fail too."""
_TRIED: Final = (AnswersDisagree.kind, FailsOnRequests.kind, ContentChanged.kind)
_BEGUN_AT_ONCE: Final = 4
_BEGUN_APART_S: Final = 0.005
"""Four builds start every 5 ms: a thousand take 1.25 s, and the event loop answers requests in between."""


class Builds:
    """Works on versions until they serve or are no longer wanted.

    ``finished`` is called with each endpoint that is ready.
    """

    def __init__(
        self, assembler: Assembler, observer: Observer, versions: Versions,
        finished: Callable[[Version, Endpoint], None],
    ) -> None:  # fmt: skip
        self._assembler = assembler
        self._observer = observer
        self._versions = versions
        self._finished = finished
        self._tasks: dict[Version, asyncio.Task[None]] = {}
        self._waiting: deque[Version] = deque()
        self._next: asyncio.TimerHandle | None = None

    def begin(self, versions: Iterable[Version]) -> None:
        """Queue these versions for building."""
        self._waiting.extend(versions)
        if self._next is None:
            self._begin_some()

    def _begin_some(self) -> None:
        self._next = None
        begun = 0
        while self._waiting and begun < _BEGUN_AT_ONCE:
            version = self._waiting.popleft()
            if version.phase is Phase.GONE:
                continue
            task = asyncio.create_task(self._work(version), name=f"build {version.url}")
            self._tasks[version] = task
            begun += 1
        if self._waiting:
            self._next = asyncio.get_running_loop().call_later(_BEGUN_APART_S, self._begin_some)

    def give_up(self, version: Version) -> None:
        """Stop the work on a version that is no longer wanted."""
        task = self._tasks.pop(version, None)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        """Cancel all builds and wait for their end."""
        if self._next is not None:
            self._next.cancel()
        self._waiting.clear()
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, version: Version) -> None:
        plan, versions, said = version.plan, self._versions, ""
        assert plan is not None  # noqa: S101 - a refused version is never built
        while True:
            versions.building(version)
            try:
                recent = recent_bodies(versions, version)
                if not recent and (refusal := versions.known_refusal(version)):
                    raise FailsOnRequests(refusal, hint="it is tried again with the next request that is answered")
                endpoint = await self._assembler.build(
                    plan, partial(versions.step, version), validating=lambda: versions.loaded(version), recent=recent
                )
            except GatewayError as error:
                reason, outcome, is_final = _reason(error), error.kind, _is_final(error)
                if isinstance(error, FailsOnRequests):  # a restart knows no request that would show it
                    versions.refused[version.url] = version.fingerprint, error.message
            except Exception as error:  # noqa: BLE001 - a bug in one build must not end its retries
                reason, outcome, is_final = f"unexpected {type(error).__name__}: {error}", "internal", False
                _log.exception("building %s failed unexpectedly", version.url)
            else:
                break
            if version.phase is Phase.GONE:
                return  # the version was given up, and the cancelled work raised an error of its own
            versions.failed(version, reason, is_final=is_final)
            self._observer.count(catalog.BUILDS, outcome)
            if reason != said:
                _log.warning("endpoint %s: %s", version.url, reason)
                said = reason
            await asyncio.sleep(pause(version.failures, outcome))
        self._tasks.pop(version, None)
        self._observer.count(catalog.BUILDS, "ok")
        self._finished(version, endpoint)


def recent_bodies(versions: Versions, version: Version) -> list[bytes]:
    """Return the last body that this url, or else another version of the endpoint, answered; empty if there is none."""
    assert version.plan is not None  # noqa: S101 - as in `_work`
    family = sorted(versions.family(version.plan.spec.endpoint), key=lambda other: other.url != version.url)
    bodies = (other.endpoint.last_body for other in family if other.endpoint is not None)
    return [body for body in bodies if body is not None][:1]


def pause(failures: int, outcome: str) -> float:
    """Return the pause in seconds after ``failures`` failures in a row; ``outcome`` is the kind of the last one."""
    most = _RETRY_TRIED_S if outcome in _TRIED else _RETRY_MAX_S
    return min(_RETRY_FIRST_S * 2.0 ** min(failures - 1, 30), most)


def _is_final(error: GatewayError) -> bool:
    """Whether every gateway would fail alike. What cannot be fetched here may be available to another gateway."""
    return not error.retryable and not isinstance(error, RegistryRefused)


def _reason(error: GatewayError) -> str:
    text = f"{error.message}; {error.hint}" if error.hint else error.message
    return text if not isinstance(error, ControlError) else text[:500]
