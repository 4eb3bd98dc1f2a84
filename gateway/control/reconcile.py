"""The control loop: reads the serving Task and moves versions until the gateway serves what the Task asks for.

Each worker process runs one loop. This file reads the Task, compiles it, swaps the routes that requests read, retires
versions that left them, and saves the state for the next start. ``version`` holds the states of versions, ``builds``
the work on them. If the registry does not answer at start-up, the saved state is served. Errors in the loop never stop
requests: they are counted, logged, shown as reasons, and retried. Work that grows with the number of endpoints
(reading, compiling, saving) runs in control's own threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from gateway import pools
from gateway.callers.keys import KEY
from gateway.control.assemble import Assembler, assemble_snapshot, refusals
from gateway.control.builds import Builds
from gateway.control.compile import EndpointPlan, Plan, compile_spec
from gateway.control.threads import ControlThreads, Result, run_in
from gateway.control.tritons import TritonProbe, Tritons
from gateway.control.version import Version, Versions
from gateway.errors import GatewayError, RegistryRefused, RegistryUnavailable
from gateway.handlers.endpoint import Endpoint
from gateway.handlers.shadow import Mirror
from gateway.health import Health
from gateway.metrics import catalog
from gateway.metrics.declared import frequency_of
from gateway.metrics.drift import References
from gateway.metrics.observer import Observer
from gateway.metrics.watch import Served
from gateway.objectives import Objective
from gateway.path.routing import RoutingTable, Snapshot
from gateway.registry.cache import ArtifactCache, Saved, SpecStore
from gateway.registry.port import Registry
from gateway.settings import Settings
from gateway.spec import Fault, ModelRecord, ServingSpec, ServingTask, decode, guarded_until, rollouts

_log = logging.getLogger("triton_gateway.control")

_LOOK_TIMEOUT_S: Final = 90.0
"""Deadline of one look at the registry."""
_FIRST_LOOK_S: Final = 3.0
"""How long start-up waits for the registry before it serves the last-good state from disk."""
STARTUP_WAIT_S: Final = 300.0
"""Longest time that a starting process stays not ready because of endpoints that were served before."""
_MAX_LOGGED: Final = 20
"""Faults logged per change; ``/v1/status`` lists all of them."""
_SWAPS_APART_S: Final = 0.1
"""Shortest time between two swaps: their cost grows with the endpoints, and a thousand builds can end at once."""
_LAST_SAVE_S: Final = 5.0
"""How long a process that ends waits for its state to be saved."""
_TIDY_S: Final = 600.0
"""Pause between two searches for cached files that are no longer needed; what was used within an hour stays."""
_LACKING: Final = "its model is not in Triton"
_PLAN: Final = TypeAdapter(EndpointPlan)


class Reconciler:
    """Keeps the routing table equal to the serving Task.

    What holds after every step of the event loop:

    - ``_plan`` is the compiled form of ``_task``; both change in ``_apply`` only. Until the first one is applied both
      are None, and nothing is served.
    - ``_newest`` and ``_marker`` are what the registry answered last. ``_newest`` differs from ``_task`` only while the
      newest Task has a section that cannot be read.
    - The states of versions are in ``versions`` alone; routes, readiness, status and metrics are derived from it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        records_period: float = 30.0,
        registry: Registry,
        store: SpecStore,
        cache: ArtifactCache,
        assembler: Assembler,
        table: RoutingTable,
        health: Health,
        observer: Observer,
        tritons: Tritons,
        references: References,
        mirror: Mirror,
        threads: ControlThreads,
        learn: Callable[[ServingTask], Awaitable[None]] | None = None,
    ) -> None:
        """``records_period``: seconds between looks at the models' records. ``learn`` is awaited with every Task that
        was read, before what it says is served.
        """
        self.versions = Versions(time.time, lambda version: self._builds.give_up(version))
        self._settings = settings
        self._records_period = records_period
        self._registry = registry
        self._store = store
        self._cache = cache
        self._table = table
        self._health = health
        self._observer = observer
        self._probe = TritonProbe(tritons, self.versions, health, observer)
        self._references = references
        self._mirror = mirror
        health.served_urls = self.versions
        self._threads = threads
        self._learn = learn
        self._builds = Builds(assembler, observer, self.versions, self._finish)
        self._plan: Plan | None = None
        self._task: ServingTask | None = None
        """The serving Task that is being served."""
        self._newest: ServingTask | None = None
        """The serving Task as it was read last."""
        self._marker: str | None = None
        self._models: Mapping[str, ModelRecord] = {}
        """Those that the Task names, by id, as last read; a deleted one stays. Replaced as a whole: threads read it."""
        self._records_due = 0.0
        self._saved: Saved | None = None
        """What a process before this one has saved; None once a configuration was applied."""
        self._finished: list[tuple[Version, Endpoint]] = []
        """Endpoints that are ready and begin to serve with the next swap."""
        self._ending: set[asyncio.Task[None]] = set()
        self._swap: asyncio.TimerHandle | None = None
        self._swapped_at = self._tidied_at = -math.inf
        self._tidying: asyncio.Task[None] | None = None
        self.last_contact = 0.0

    async def run(self) -> None:
        """Follow the Task until cancelled: look at once, then every ``poll_frequency`` seconds."""
        probe = asyncio.create_task(self._probe.run())
        period = self._settings.poll_frequency
        self._observer.publish(catalog.POLL, period)
        saved = self._saved = await self._local(self._store.load)
        if saved is not None:
            if self._learn is not None:
                await self._learn(saved.task)
            # A model that has been deleted from the registry is still served from the cache.
            self._models = saved.models
            self._builds.begin(self.versions.restore(_decode(saved.former), saved.served))
        try:
            await self._first_look()
            while True:
                await asyncio.sleep(min(period, 5.0) if self._health.registry_error else period)
                await self.look()
        finally:
            probe.cancel()
            await self._builds.stop()

    async def _first_look(self) -> None:
        look = asyncio.create_task(self.look())
        try:
            # A registry that hangs would delay start-up until its timeout; what is on disk can be served before that.
            await asyncio.wait({look}, timeout=_FIRST_LOOK_S)
            if self._plan is None:
                self._health.registry_error = self._health.registry_error or "the registry does not answer"
                await self._boot_from_disk(self._health.registry_error)
            await look
        finally:
            look.cancel()

    async def look(self) -> None:
        """Look once at the registry and apply what changed.

        Raises nothing but ``CancelledError``: failures are counted, logged and retried with the next look.
        """
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                outcome = await self._fetch()
        except (GatewayError, TimeoutError) as error:
            outcome = error.kind if isinstance(error, GatewayError) else RegistryUnavailable.kind
            self._report(str(error) or f"the registry did not answer within {_LOOK_TIMEOUT_S:g} s", error)
        except Exception:  # noqa: BLE001 - the loop's top level: logged with traceback, counted, tried again
            outcome = "error"
            self._report("unexpected error while reading the serving Task", None)
            _log.exception("unexpected error while reading the serving Task")
        self._observer.count(catalog.RECONCILES, outcome)
        if outcome in ("changed", "unchanged"):
            if self._health.registry_error:
                _log.info("the registry answers again")
            self._health.registry_error = ""
            self.last_contact = time.time()
            self._observer.publish(catalog.LAST_CONTACT, self.last_contact)
            self._health.note()
            self._tidy()
            if await self._local(self._references.read):
                self._watch()
        await self._save()

    async def _fetch(self) -> str:
        marker = await self._remote(self._registry.marker)
        now = asyncio.get_running_loop().time()
        task = self._newest
        if task is None or marker != self._marker:
            task = await self._remote(self._registry.task)
            if self._learn is not None:
                await self._learn(task)
        elif now < self._records_due:
            return "unchanged"
        spec = await self._local(decode, task)
        # Model sync reads the records by the same rule: a model's name in Triton is derived from its record.
        self._models = {**self._models, **await self._remote(self._registry.records, spec.model_ids)}
        await self._local(self._cache.learn, task)
        self._records_due = now + self._records_period
        plan = await self._local(self._compile, spec)
        if self._plan is None and plan.spec.unreadable:
            await self._boot_from_disk("a section of the serving Task cannot be read")
        await self._show_guards(task, spec)
        is_new = self._apply(task, plan)
        self._marker, self._newest = marker, task
        return "changed" if is_new else "unchanged"

    async def _show_guards(self, task: ServingTask, spec: ServingSpec) -> None:
        found = await self._local(guarded_until, task, spec)
        self._observer.show(catalog.ROLLOUT_GUARDED, {(route,): until for route, until in found.items()})

    async def _boot_from_disk(self, why: str) -> None:
        if self._saved is None:
            return
        task = self._saved.task
        try:
            plan = await self._local(self._compile, await self._local(decode, task))
            await self._show_guards(task, plan.spec)
        except Exception:  # noqa: BLE001 - a damaged file must not end the control loop
            _log.exception("the last configuration that worked cannot be read")
            return
        if self._plan is not None:  # the registry has answered meanwhile
            return
        _log.warning("serving the last configuration that worked: %s", why)
        self._apply(task, plan)

    def _compile(self, spec: ServingSpec) -> Plan:
        return compile_spec(
            spec,
            default_triton=self._settings.triton_grpc,
            pools=pools.addresses(self._settings.pools),
            models=self._models,
        )

    async def _local(self, call: Callable[..., Result], *args: Any) -> Result:
        return await run_in(self._threads.local, call, *args)

    async def _remote(self, call: Callable[..., Result], *args: Any) -> Result:
        return await run_in(self._threads.registry, call, *args)

    def _apply(self, task: ServingTask, plan: Plan) -> bool:
        """Make ``plan`` the wanted configuration; False if its revision is wanted already."""
        if self._plan is not None and plan.revision == self._plan.revision:
            self._task = task
            self._publish_faults(plan.faults, logging.WARNING, "")
            return False
        if self._plan is not None and plan.spec.unreadable:
            # A section that cannot be read does not say what should be served: keep everything unchanged. Only the keys
            # of callers are saved as they are now: one that was revoked must not come back with the next start.
            if self._task is not None and not task.problem:
                self._task = replace(self._task, records={**self._task.records, KEY: task.records.get(KEY, {})})
            return self._publish_faults(plan.faults, logging.ERROR, "; the previous configuration stays")
        _log.info(
            "configuration %s of %s: %d endpoints, %d canaries", plan.revision, plan.spec.name, len(plan.endpoints),
            len(plan.spec.canaries),
        )  # fmt: skip
        _log_faults(plan.faults, logging.WARNING, "")
        self._task, self._plan = task, plan
        self._models = {one: self._models[one] for one in plan.spec.model_ids if one in self._models}
        begun = self.versions.configure(plan.endpoints, refusals(plan.faults))
        self._saved = None
        self._swap_soon()
        self._builds.begin(begun)
        return True

    def _publish_faults(self, faults: tuple[Fault, ...], level: int, but: str) -> bool:
        """Publish ``faults`` for the configuration that is being served; False if they are unchanged."""
        if self._plan is None or faults == self._plan.faults:
            return False
        _log_faults([fault for fault in faults if fault not in self._plan.faults], level, but)
        self._plan = replace(self._plan, faults=faults)
        self._swap_soon()
        return True

    # Routes

    def _finish(self, version: Version, endpoint: Endpoint) -> None:
        """Put an endpoint into service with the next swap."""
        self._finished.append((version, endpoint))
        self._swap_soon()

    def _swap_soon(self) -> None:
        if self._swap is None:
            loop = asyncio.get_running_loop()
            self._swap = loop.call_at(max(self._swapped_at + _SWAPS_APART_S, loop.time()), self._swap_routes)

    def _swap_routes(self) -> None:
        """Make the routes equal to ``versions`` and the plan, and retire what has left them."""
        self._swap = None
        plan, versions = self._plan, self.versions
        if plan is None:
            return
        self._swapped_at = asyncio.get_running_loop().time()
        finished, self._finished = self._finished, []
        for version, endpoint in finished:
            if not versions.serve(version, endpoint):
                self._in_background(endpoint.retire(), version.url)
                continue
            is_former = version.url in versions.pending()
            but = " by the version before, until the new one is ready" if is_former else ""
            _log.info("endpoint %s is served%s", version.url, but)
        self._table.swap(assemble_snapshot(plan, versions.endpoints(), versions.pending(), self._table.current))
        self._retire()
        if not self._health.first_sync_done:
            self._health.first_sync_done = True
            versions.begin_wait(STARTUP_WAIT_S)
        self._health.note()
        self._observer.publish(catalog.CONFIGURATION_FAULTS, len(plan.faults))
        ready: dict[tuple[str, ...], bool] = {
            (one.spec.endpoint, one.spec.version): False for one in plan.endpoints.values()
        }
        served = [
            (one.endpoint.identity, one.plan.record if one.plan is not None else None)
            for one in versions.served().values() if one.endpoint is not None
        ]  # fmt: skip
        self._observer.show(catalog.ENDPOINT_READY, ready | {(one.endpoint, one.version): True for one, _ in served})
        self._observer.show(catalog.MODEL_INFO, {
            (i.endpoint, i.version, i.model_id, i.model_name, record.link if record is not None else "", i.pool): 1
            for i, record in served
        })  # fmt: skip
        self._watch()

    def _retire(self) -> None:
        leaving, self.versions.leaving = self.versions.leaving, []
        for version in leaving:
            self._in_background(self._retired(version), version.url)

    async def _retired(self, version: Version) -> None:
        try:
            if version.endpoint is not None:
                await version.endpoint.retire()
        finally:
            self.versions.closed(version)

    def _in_background(self, end: Coroutine[Any, Any, None], url: str) -> None:
        task = asyncio.create_task(end, name=f"retire {url}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _watch(self) -> None:
        """Update metrics and shadows after a swap, or after a change of the reference distributions."""
        plan = self._plan
        if plan is None:
            return
        self._observer.settle()  # what was answered before counts as it was declared then
        self._observer.watch.configure(
            {url: self._watched_as(endpoint) for url, endpoint in self.versions.endpoints().items()}, plan.spec.metrics,
            frequency_of(plan.spec.settings, self._settings.metric_log_frequency),
        )  # fmt: skip
        self._observer.expect(self._table.current.routes())
        self._observer.promise({"": Objective(), **plan.spec.objectives})
        self._mirror.configure(plan.spec.shadows, self._table.current.endpoints)

    def _watched_as(self, endpoint: Endpoint) -> Served:
        one = endpoint.identity
        reference = self._references.of(one.url) or one.reference
        return Served(one.endpoint, one.version, endpoint.text is not None, one.labels, reference)

    # What is on disk

    async def _save(self) -> None:
        """Save what the next process starts with, if it has changed. Failures are logged."""
        task, versions = self._task, self.versions
        if task is None:
            return
        served = frozenset({*(versions.previously_served or ()), *versions.served()})
        saved = Saved(task, dict(self._models), versions.former(), served)
        try:
            await self._local(self._store.save, saved)
        except OSError as error:
            _log.warning("the last-good state cannot be stored: %s", error)
        except Exception:  # noqa: BLE001 - a bug here must not end the loop, nor prevent an orderly shutdown
            _log.exception("storing the last-good state failed unexpectedly")

    def _tidy(self) -> None:
        """Delete files that no version needs, if that is due. It may take long, so nothing waits for it."""
        now = asyncio.get_running_loop().time()
        if now - self._tidied_at < _TIDY_S or (self._tidying is not None and not self._tidying.done()):
            return
        self._tidied_at = now
        plans = [version.plan for version in self.versions if version.plan is not None]
        self._tidying = asyncio.create_task(run_in(self._threads.downloads, self._keep_files, plans), name="tidy")

    def _keep_files(self, plans: Sequence[EndpointPlan]) -> None:
        models = [one.record for one in plans if one.record is not None and one.record.has_data]
        self._cache.keep(models, [one.spec.preprocess for one in plans if one.spec.preprocess is not None])

    def _report(self, message: str, error: BaseException | None) -> None:
        hint = getattr(error, "hint", "")
        text = f"{message}; {hint}" if hint else message
        if text != self._health.registry_error:
            level = logging.ERROR if isinstance(error, RegistryRefused) else logging.WARNING
            _log.log(level, "%s", text)
        self._health.registry_error = text

    async def close(self) -> None:
        """Save the state and retire every endpoint. Call it after the loop was cancelled."""
        # Before anything retires: the saved state must list what serves now.
        last = asyncio.create_task(self._save(), name="last save")
        await asyncio.wait({last}, timeout=_LAST_SAVE_S)
        self._plan = self._task = None  # from here on nothing is saved and nothing swapped
        for work in (self._swap, self._tidying):
            if work is not None:
                work.cancel()
        for _, endpoint in self._finished:
            self._in_background(endpoint.retire(), endpoint.identity.url)
        self._finished = []
        self.versions.close()
        self._retire()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def task_settings(self) -> Mapping[str, str]:
        """Return the settings of the Task (``clearml-serving config``) as last read."""
        return self._plan.spec.settings if self._plan is not None else {}

    def status(self) -> dict[str, Any]:
        """Return what is served, what is not and why: the content of ``/v1/status`` and the status page."""
        answers = self._health.backend_live
        return {
            **_shown_plan(self._plan, self._table.current),
            "ready": not self._health.reasons(),
            "not_ready_because": self._health.reasons(),
            "degraded": self._health.degraded(),
            **_shown_versions(
                self.versions.served(), self.versions.pending(), self._table.current, self._probe.lacking()
            ),
            "rollouts": [] if self._newest is None else rollouts(self._newest, time.time()),
            "shadows": self._mirror.status(),
            "registry": {"last_contact": self.last_contact or None, "error": self._health.registry_error or None},
            "triton": answers,
            "pools": [
                {"pool": pool, "address": address, "answers": answers.get(address)}
                for address, pool in sorted(self._probe.pools().items())
            ],
        }


def _log_faults(faults: Sequence[Fault], level: int, but: str) -> None:
    for fault in faults[:_MAX_LOGGED]:
        _log.log(level, "%s %s%s", fault.subject, fault.message, but)
    if len(faults) > _MAX_LOGGED:
        _log.log(level, "%d more faults: see /v1/status", len(faults) - _MAX_LOGGED)


def _decode(stored: Mapping[str, Any]) -> dict[str, EndpointPlan]:
    """Return the saved plans by url; one that cannot be read is left out."""
    found = {}
    for url, item in stored.items():
        with contextlib.suppress(ValidationError):
            found[url] = _PLAN.validate_python(item)
    return found


def _shown_versions(
    served: Mapping[str, Version], pending: Mapping[str, Version], snapshot: Snapshot,
    lacking: Collection[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return ``endpoints`` (serving versions, each with its successor) and ``pending``.

    A version whose url is in ``lacking`` has no model in Triton now; its state says so.

    ``pending`` holds the versions that do not serve, and the names that stand for such versions only.
    """
    endpoints = []
    for url, version in sorted(served.items()):
        if version.endpoint is None:
            continue
        identity, successor = version.endpoint.identity, pending.get(url)
        endpoints.append({
            "url": url, "endpoint": identity.endpoint, "version": identity.version,
            "state": _LACKING if url in lacking else "serving",
            "model_id": identity.model_id, "model_name": identity.model_name, "triton_model": identity.triton_name,
            "pool": identity.pool, "details": dict(identity.details), "prices": version.endpoint.prices,
            "successor": successor.shown() if successor else None,
        })  # fmt: skip
    names = {name: one for name, one in snapshot.pending.items() if isinstance(one, Version)}
    waiting = {url: one for url, one in {**names, **pending}.items() if url not in served}
    return {"endpoints": endpoints, "pending": [{"url": url, **one.shown()} for url, one in sorted(waiting.items())]}


def _shown_plan(plan: Plan | None, snapshot: Snapshot) -> dict[str, Any]:
    """Return the configuration that is followed, and its faults."""
    return {
        "revision": snapshot.revision,
        "spec_revision": plan.spec.revision if plan else None,
        "serving_task": {"id": plan.spec.task_id, "name": plan.spec.name} if plan else None,
        "canaries": {name: canary.shares for name, canary in snapshot.canaries.items()},
        "defaults": dict(snapshot.defaults),
        "faults": [{"subject": fault.subject, "message": fault.message} for fault in snapshot.faults],
    }
