"""Builds versions: one task per version, started one after the other, repeated until the version serves.

A build that takes minutes or always fails delays no other build. A pause between their starts leaves the event loop its
turn during a change of a thousand endpoints. The tasks report progress and failures to ``Versions``; ``reconcile`` puts
a finished endpoint into the routes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from gateway.control.assemble import Assembler
from gateway.control.version import Phase, Version, Versions
from gateway.errors import (
    AnswersDisagree,
    ContentChanged,
    ControlError,
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
_TRIED: Final = (AnswersDisagree.kind, ContentChanged.kind)
_BEGUN_APART_S: Final = 0.001
"""Pause between the starts of two builds, in which the event loop answers requests."""


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
        self._starting = asyncio.Lock()

    def begin(self, versions: Iterable[Version]) -> None:
        """Build these versions until they serve."""
        for version in versions:
            self._tasks[version] = asyncio.create_task(self._work(version), name=f"build {version.url}")

    def give_up(self, version: Version) -> None:
        """Stop the work on a version that is no longer wanted."""
        task = self._tasks.pop(version, None)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        """Cancel all builds and wait for their end."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, version: Version) -> None:
        plan, versions, said = version.plan, self._versions, ""
        assert plan is not None  # noqa: S101 - a refused version is never built
        async with self._starting:
            await asyncio.sleep(_BEGUN_APART_S)
        while True:
            versions.building(version)
            try:
                endpoint = await self._assembler.build(
                    plan, partial(versions.step, version), validating=lambda: versions.loaded(version)
                )
            except GatewayError as error:
                reason, outcome, is_final = _reason(error), error.kind, _is_final(error)
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
            await asyncio.sleep(pause(version.attempts, outcome))
        self._tasks.pop(version, None)
        self._observer.count(catalog.BUILDS, "ok")
        self._finished(version, endpoint)


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
