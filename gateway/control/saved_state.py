"""Saves the last-good state for a start without the registry, and deletes cached files that nothing needs any more.

Both grow with the number of endpoints, and a computing thread holds the interpreter lock, which delays requests. So a
save that takes longer is followed by a longer pause: with few endpoints every change is saved at once, with a thousand
about every two seconds. ``reconcile`` says what has changed, and supplies the current Task and plan.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from gateway.control.compile import Plan
from gateway.control.records import ModelRecords
from gateway.control.threads import ControlThreads, run_in
from gateway.control.version import LastGood, Versions
from gateway.registry.cache import ArtifactCache, SpecStore
from gateway.spec import ServingTask

_log = logging.getLogger("triton_gateway.control")

REST: Final = 20
"""The pause after a save, as a multiple of the time that the save took."""
MAX_REST_S: Final = 3.0
"""Longest pause between two saves."""
_LAST_SAVE_S: Final = 5.0
"""How long ``save_now`` waits for a save."""
_PRUNE_S: Final = 600.0
"""Cached files that are no longer needed are deleted this often, and after every change of the configuration."""


class SavedState:
    """What this process leaves on disk. ``task`` and ``plan`` return the current ones, or None."""

    def __init__(
        self, store: SpecStore, records: ModelRecords, cache: ArtifactCache, threads: ControlThreads,
        versions: Versions, *, task: Callable[[], ServingTask | None],
        plan: Callable[[], Plan | None],
    ) -> None:  # fmt: skip
        self._store = store
        self._records = records
        self._cache = cache
        self._threads = threads
        self._versions = versions
        self._task = task
        self._plan = plan
        self._is_unsaved = False
        self._saving = asyncio.Lock()
        self._worker: asyncio.Task[None] | None = None
        self._urgent: asyncio.Task[None] | None = None
        self._pruner: asyncio.Task[None] | None = None
        self._prune_due, self._pruned_revision = 0.0, ""

    def save_soon(self) -> None:
        """Save after the pause since the last save."""
        self._is_unsaved = True
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), name="saved state")

    async def save_now(self) -> None:
        """Save what is not saved yet without a pause, and wait at most 5 s for it."""
        self._urgent = asyncio.create_task(self._save(), name="saved state")
        await asyncio.wait({self._urgent}, timeout=_LAST_SAVE_S)

    async def close(self) -> None:
        """Save what is not saved yet, then stop."""
        await self.save_now()
        for task in (self._worker, self._pruner):
            if task is not None:
                task.cancel()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._is_unsaved:
            began = loop.time()
            await self._save()
            await asyncio.sleep(min(REST * (loop.time() - began), MAX_REST_S))

    async def _save(self) -> None:
        """Save the Task, model records, former versions and served urls if they have changed. Failures are logged."""
        async with self._saving:
            task = self._task() if self._is_unsaved else None
            self._is_unsaved = False
            if task is None:
                return
            served = sorted({*(self._versions.previously_served or ()), *self._versions.served()})
            former = self._versions.last_good()
            try:
                await run_in(self._threads.local, self._store.save, task, self._records.known(), former, served)
            except OSError as error:
                _log.warning("the last-good state cannot be stored: %s", error)
            except Exception:  # noqa: BLE001 - a bug here must not prevent an orderly shutdown
                _log.exception("storing the last-good state failed unexpectedly")
        self.prune_soon()

    def prune_soon(self) -> None:
        """Begin to delete unneeded files if that is due and everything is saved.

        Wanted, serving and last-good versions need theirs.
        """
        now, plan = asyncio.get_running_loop().time(), self._plan()
        if plan is None or (now < self._prune_due and self._pruned_revision == plan.revision):
            return
        if self._is_unsaved or self._saving.locked() or (self._pruner is not None and not self._pruner.done()):
            return
        self._prune_due, self._pruned_revision = now + _PRUNE_S, plan.revision
        known = [version.last_good for version in self._versions if version.last_good is not None]
        # Deleting may take long: it does not delay the next save.
        work = run_in(self._threads.downloads, self._keep_files, plan, known)
        self._pruner = asyncio.create_task(work, name="prune")

    def _keep_files(self, plan: Plan, served: Sequence[LastGood]) -> None:
        known = self._records.known()
        needed = [(one.spec, known.get(one.spec.model_id or "")) for one in plan.endpoints.values()]
        needed += [(one.plan.spec, one.record) for one in served]
        models = [record for _, record in needed if record is not None and record.has_data]
        self._cache.keep(models, [spec.preprocess for spec, _ in needed if spec.preprocess is not None])
