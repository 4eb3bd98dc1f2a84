"""Saves the last-good state for a start without the registry, and deletes cached files that nothing needs any more.

``Housekeeping`` decides when; ``reconcile`` supplies the current Task and plan.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gateway.control import last_good
from gateway.control.assemble import Assembler
from gateway.control.compile import Plan
from gateway.control.last_good import LastGood
from gateway.control.records import ModelRecords
from gateway.control.served_urls import ServedUrls
from gateway.control.threads import ControlThreads, run_in
from gateway.control.version import Versions
from gateway.pace import Pace
from gateway.registry.cache import SpecStore
from gateway.spec import ModelRecord, ServingTask

_log = logging.getLogger("triton_gateway.control")

_PRUNE_S: Final = 600.0
"""Cached files that are no longer needed are deleted this often, and after every change of the configuration."""
MANY_NEW: Final = 200
"""``settled`` is called after this many new endpoints have begun to serve."""


class SavedState:
    """What this process leaves on disk. ``task`` and ``plan`` return the current ones, or None.

    ``settled`` is called after many endpoints have begun to serve and their state is saved.
    """

    def __init__(
        self, store: SpecStore, records: ModelRecords, assembler: Assembler, threads: ControlThreads,
        served_urls: ServedUrls, versions: Versions, *, task: Callable[[], ServingTask | None],
        plan: Callable[[], Plan | None], settled: Callable[[], None],
    ) -> None:  # fmt: skip
        self._store = store
        self._records = records
        self._assembler = assembler
        self._threads = threads
        self._served_urls = served_urls
        self._versions = versions
        self._task = task
        self._plan = plan
        self._settled = settled
        self.new_endpoints = 0
        """Endpoints that began to serve since ``settled`` was last called."""
        self._prune_due, self._pruned_revision = 0.0, ""

    async def save(self) -> None:
        """Save the Task, model records, former versions and served urls. Failures are logged."""
        task = self._task()
        if task is None:
            return
        served = sorted({*(self._served_urls.previously_served or ()), *self._versions.served()})
        former = self._versions.last_good()
        try:
            await run_in(self._threads.local, self._store_all, task, self._records.known(), former, served)
        except OSError as error:
            _log.warning("the last-good state cannot be stored: %s", error)
        except Exception:  # noqa: BLE001 - a bug here must not prevent an orderly shutdown
            _log.exception("storing the last-good state failed unexpectedly")
        if self.new_endpoints >= MANY_NEW:
            self.new_endpoints = 0
            self._settled()

    def _store_all(
        self,
        task: ServingTask,
        models: Mapping[str, ModelRecord],
        former: Mapping[str, LastGood],
        served: Sequence[str],
    ) -> None:
        self._store.save(task, models, last_good.encode(former, Pace()), served)

    def is_prune_due(self) -> bool:
        """Whether unneeded files should be deleted now; a second call returns False until the next time."""
        now, plan = asyncio.get_running_loop().time(), self._plan()
        if plan is None or (now < self._prune_due and self._pruned_revision == plan.revision):
            return False
        self._prune_due, self._pruned_revision = now + _PRUNE_S, plan.revision
        return True

    async def prune(self) -> None:
        """Delete unneeded files; wanted, serving and last-good versions need theirs."""
        plan = self._plan()
        if plan is None:
            return
        known = [version.last_good for version in self._versions if version.last_good is not None]
        # This may write missing hashes to the registry, which can be slow: it belongs to the threads of downloads.
        await run_in(self._threads.downloads, self._keep_files, plan, known)

    def _keep_files(self, plan: Plan, served: Sequence[LastGood]) -> None:
        pause, known = Pace(), self._records.known()
        needed = [(one.spec, known.get(one.spec.model_id or "")) for one in plan.endpoints.values()]
        for one in served:
            needed.append((one.plan.spec, one.record))
            pause()
        self._assembler.keep(needed)
