"""The loop: look at the serving Task, build what is new beside what runs, swap, retire what is old.

One loop per worker process. Each endpoint version is built by a task of its own, so one that takes minutes (or fails
for ever) delays nobody; after each success the snapshot is swapped. The running version of a url keeps serving until
its successor is ready. Without the registry the last-good state on disk is served. Nothing that happens here can stop
requests: errors become outcomes, reasons and retries. What takes longer the more endpoints there are (reading,
compiling, saving) happens in threads of control's own, which leave the event loop its turn.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

from gateway.control import kept
from gateway.control.assemble import Assembler, ModelRecords, assemble_snapshot, refused
from gateway.control.compile import EndpointPlan, Plan, compile_spec
from gateway.control.kept import Kept
from gateway.control.tritons import Key, Tritons
from gateway.dataplane.routing.snapshot import Pending
from gateway.dataplane.routing.table import RoutingTable
from gateway.dataplane.shadow import Mirror
from gateway.endpoints.endpoint import Endpoint
from gateway.errors import (
    AnswersDisagree,
    ContentChanged,
    ControlError,
    FailsOnRequests,
    GatewayError,
    RegistryRefused,
    RegistryUnavailable,
)
from gateway.health import Health
from gateway.metrics.custom import Served, frequency_of
from gateway.metrics.observer import Observer
from gateway.metrics.references import References
from gateway.pace import Pace
from gateway.registry.base import Registry
from gateway.registry.cache import SpecStore
from gateway.spec import Fault, ServingSpec, decode, decode_model

_log = logging.getLogger("triton_gateway.control")

_RETRY_FIRST_S: Final = 1.0
_RETRY_MOST_S: Final = 30.0
_RETRY_TRIED_S: Final = 300.0
"""For a version that was tried and found wrong: trying is work, and little speaks for another outcome."""
_TRIED: Final = (AnswersDisagree.kind, FailsOnRequests.kind, ContentChanged.kind)
_LOOK_TIMEOUT_S: Final = 90.0
_PROBE_S: Final = 1.0
_PATIENCE_S: Final = 3.0
_TIDY_S: Final = 600.0
_SWAPS_APART_S: Final = 0.1
_LAST_SAVE_S: Final = 5.0


class Reconciler:
    """Keeps the routing table equal to the serving Task, as far as the world allows."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: SpecStore,
        records: ModelRecords,
        assembler: Assembler,
        table: RoutingTable,
        health: Health,
        observer: Observer,
        tritons: Tritons,
        default_triton: str,
        default_compression: bool,
        poll_frequency: float,
        records_frequency: float,
        references: References,
        mirror: Mirror,
        threads: ThreadPoolExecutor,
        metric_log_frequency: float = 1.0,
        pinned: Sequence[str] = (),
        startup_wait: float = 300.0,
    ) -> None:
        self._registry = registry
        self._store = store
        self._records = records
        self._assembler = assembler
        self._table = table
        self._health = health
        self._observer = observer
        self._tritons = tritons
        self._default_triton = default_triton
        self._default_compression = default_compression
        self._poll_frequency = poll_frequency
        self._records_frequency = records_frequency
        self._references = references
        self._mirror = mirror
        self._threads = threads
        self._metric_log_frequency = metric_log_frequency
        self._pinned = tuple(pinned)
        self._startup_wait = startup_wait
        self._marker: str | None = None
        self._records_due = 0.0
        self._task: Mapping[str, Any] | None = None
        """What is served, as it was read."""
        self._newest: Mapping[str, Any] | None = None
        """What was read last: another one than ``_task`` while it has a section that cannot be read."""
        self._plan: Plan | None = None
        self._serving: dict[str, Endpoint] = {}
        self._pending: dict[str, Pending] = {}
        self._builds: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._before: frozenset[str] | None = None
        """Urls that were served before this process started; None: nobody has written them down."""
        self._waits_until = 0.0
        self._plans: dict[str, Kept] = {}
        """How what is served was planned."""
        self._kept: dict[str, Kept] = {}
        """What was served before this process, where the Task wants something else."""
        self._restores: dict[str, asyncio.Task[None]] = {}
        self._lost: set[str] = set()
        """Urls whose version before could not be restored (yet)."""
        self._retiring: set[asyncio.Task[None]] = set()
        self._seen: set[tuple[str, str]] = set()
        self._saver: asyncio.Task[None] | None = None
        self._is_unsaved = False
        self._swap_due: asyncio.TimerHandle | None = None
        self._swapped = -math.inf
        self._leaving: list[Endpoint] = []
        """Not served any more, but still in the snapshot that requests read."""
        self._answered = False
        self._unnoticed = ""
        """Why a model that is replaced may go unnoticed."""
        self._tidy_due, self._tidied = 0.0, ""
        self.last_error = ""
        self.last_contact = 0.0

    async def run(self) -> None:
        """Follow the Task until cancelled. Fetches at once, then every ``poll_frequency`` seconds."""
        probe = asyncio.create_task(self._probe_backends())
        self._observer.polls(self._poll_frequency)
        self._kept = kept.decode(await self._in_thread(self._store.kept))
        # A model that was deleted since goes on being served, from the cache.
        stored = await self._in_thread(self._store.load)
        self._records.learn(stored[1] if stored is not None else {})
        self._before = await self._in_thread(self._store.served)
        try:
            await self._first_look()
            while True:
                await asyncio.sleep(self._poll_frequency if self._answered else min(self._poll_frequency, 5.0))
                await self.look()
        finally:
            probe.cancel()
            await self._stop_builds()

    async def _first_look(self) -> None:
        look = asyncio.create_task(self.look())
        try:
            # A registry that hangs answers no sooner than its timeout: what is on disk need not wait for that.
            await asyncio.wait({look}, timeout=_PATIENCE_S)
            if not look.done():
                self.last_error = "the registry does not answer"
                await self._boot_from_disk(self.last_error)
            await look
        finally:
            look.cancel()

    async def look(self) -> None:
        """Look once at the registry and apply what changed.

        Never raises but ``CancelledError``: this is the loop's top level, failures are counted, logged and retried.
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
        self._observer.reconciled(outcome)
        if outcome in ("changed", "unchanged"):
            if self.last_error:
                _log.info("the registry answers again")
            self.last_error = ""
            self.last_contact = time.time()
            self._observer.contacted(self.last_contact)
            self._answered = True
            self._publish_health()
            await self._tidy()
            if await self._in_thread(self._references.look):
                self._watch()
            return
        self._answered = False
        if self._plan is None:
            await self._boot_from_disk(self.last_error)

    async def _fetch(self) -> str:
        marker = await self._in_thread(self._registry.marker)
        now = asyncio.get_running_loop().time()
        task = self._newest
        if task is None or marker != self._marker:
            task = await self._in_thread(self._registry.task)
        elif now < self._records_due:
            return "unchanged"
        spec = await self._in_thread(decode, task, Pace())
        # Model sync reads records by the same rule: both must name a model alike, and a name is made of its record.
        await self._in_thread(self._records.refresh, spec.model_ids)
        self._unnoticed = await self._in_thread(self._assembler.learn, task)
        self._records_due = now + self._records_frequency
        plan = await self._in_thread(self._compile, spec)
        if self._plan is None and _unreadable(plan):
            await self._boot_from_disk("a section of the serving Task cannot be read")
        is_new = self._apply(task, plan)
        self._marker, self._newest = marker, task
        self._save()
        return "changed" if is_new else "unchanged"

    async def _boot_from_disk(self, why: str) -> None:
        state = await self._in_thread(self._store.load)
        if state is None:
            return
        task, models = state
        self._records.learn(models)
        plan = await self._in_thread(self._compile, await self._in_thread(decode, task, Pace()))
        if self._plan is not None:  # the registry has answered meanwhile
            return
        _log.warning("serving the last configuration that worked: %s", why)
        self._apply(task, plan)

    def _compile(self, spec: ServingSpec) -> Plan:
        plan = compile_spec(
            spec,
            default_triton=self._default_triton,
            default_compression=self._default_compression,
            models=self._records.known(),
            namesakes=self._records.namesakes(),
            pause=Pace(),
        )
        return replace(plan, faults=(*plan.faults, Fault("records", self._unnoticed))) if self._unnoticed else plan

    async def _in_thread(self, call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def _apply(self, task: Mapping[str, Any], plan: Plan) -> bool:
        """Start what ``task`` asks for, as ``plan`` says; False when that is what is being done already."""
        if self._plan is not None and plan.revision == self._plan.revision:
            self._tell(plan.faults)
            self._task = task
            return False
        if self._plan is not None and _unreadable(plan):
            # A section that cannot be read says nothing about what should be served: keep everything as it is.
            return self._keep(plan)
        _log.info(
            "configuration %s of %s: %d endpoints, %d canaries", plan.revision, plan.spec.name, len(plan.endpoints),
            len(plan.spec.canaries),
        )  # fmt: skip
        for fault in plan.faults:
            _log.warning("%s %s", fault.subject, fault.message)
        self._task, self._plan = task, plan
        for url in [
            u for u in self._builds if u not in plan.endpoints or self._builds[u][0] != plan.endpoints[u].fingerprint
        ]:
            self._builds.pop(url)[1].cancel()
        before, self._pending = self._pending, refused(plan.faults)
        for url, wanted in plan.endpoints.items():
            running = self._serving.get(url)
            if running is not None and running.identity.fingerprint == wanted.fingerprint:
                continue
            is_new = url not in self._builds
            self._pending[url] = before[url] if not is_new and url in before else Pending(url, "building", "starting")
            if is_new:
                build = asyncio.create_task(self._build(wanted), name=f"build {url}")
                self._builds[url] = (wanted.fingerprint, build)
        # An endpoint whose new configuration cannot be used keeps the version it had.
        stays = plan.endpoints.keys() | self._pending.keys()
        removed = [self._serving.pop(url) for url in list(self._serving) if url not in stays]
        self._plans = {url: one for url, one in self._plans.items() if url in self._serving}
        for url, former in list(self._kept.items()):
            if url not in stays:
                self._forget(url)
            elif url not in self._serving and url not in self._restores:
                self._restores[url] = asyncio.create_task(self._restore(url, former), name=f"restore {url}")
        self._remember(plan)
        self._swap(removed)
        return True

    def _tell(self, faults: tuple[Fault, ...]) -> None:
        """Publish other faults of the configuration that is being served."""
        if self._plan is None or faults == self._plan.faults:
            return
        for fault in faults:
            if fault not in self._plan.faults:
                _log.warning("%s %s", fault.subject, fault.message)
        self._plan = replace(self._plan, faults=faults)
        self._swap([])

    def _remember(self, plan: Plan) -> None:
        """Take note of what was served before and is still configured: without a memory, everything that is."""
        if not self._health.first_sync_done:
            self._health.first_sync_done = True
            self._waits_until = asyncio.get_running_loop().time() + self._startup_wait
        configured = plan.endpoints.keys() | self._pending.keys()
        self._before = frozenset(configured if self._before is None else self._before & configured)

    def _keep(self, unusable: Plan) -> bool:
        """Go on with the configuration before, and tell why; False when that has been told."""
        if self._plan is None or unusable.faults == self._plan.faults:
            return False
        for fault in unusable.faults:
            _log.error("%s %s; the previous configuration stays", fault.subject, fault.message)
        self._plan = replace(self._plan, faults=unusable.faults)
        self._swap([])
        return True

    async def _build(self, plan: EndpointPlan) -> None:
        url = plan.spec.url
        try:
            endpoint = await self._built(plan)
        except asyncio.CancelledError:
            self._assembler.give_up(plan)
            raise
        self._builds.pop(url, None)
        self._pending.pop(url, None)
        self._forget(url)
        replaced = self._serving.get(url)
        self._serving[url] = endpoint
        self._plans[url] = Kept(plan, self._records.raw(plan.spec.model_id))
        _log.info("endpoint %s is served%s", url, " (replaces the previous one)" if replaced else "")
        self._swap([replaced] if replaced else [])
        self._save()

    async def _built(self, plan: EndpointPlan) -> Endpoint:
        """Try until it works."""
        url, delay, failures, said = plan.spec.url, _RETRY_FIRST_S, 0, ""

        def progress(step: str) -> None:
            # A version that failed stays failed, with its reason, until it is served: that is what a reader needs.
            if not failures:
                self._note(Pending(url, "building", step))

        while True:
            try:
                seen = self._seen_by(url, plan.spec.endpoint)
                self._refuse_again(plan, seen)
                endpoint = await self._assembler.build(plan, progress, seen=seen)
            except GatewayError as error:
                reason, outcome, is_final = _reason(error), error.kind, _is_final(error)
                if isinstance(error, FailsOnRequests) and url in self._plans:
                    refused = replace(self._plans[url], refused=plan.fingerprint, reason=error.message)
                    if refused != self._plans[url]:
                        self._plans[url] = refused
                        self._save()
            except Exception as error:  # noqa: BLE001 - one endpoint's bug of ours must not end its retries
                reason, outcome, is_final = f"unexpected {type(error).__name__}: {error}", "internal", False
                _log.exception("building %s failed unexpectedly", url)
            else:
                self._observer.built("ok")
                return endpoint
            self._observer.built(outcome)
            failures += 1
            if reason != said:
                _log.warning("endpoint %s: %s", url, reason)
                said = reason
            self._note(Pending(url, "failed", reason, is_final=is_final))
            self._publish_health()
            await asyncio.sleep(delay)
            delay = min(delay * 2, _RETRY_TRIED_S if outcome in _TRIED else _RETRY_MOST_S)

    def _refuse_again(self, plan: EndpointPlan, seen: list[bytes]) -> None:
        """Remember over a restart that a version failed on requests, until there is a request to try it with."""
        former = self._kept.get(plan.spec.url)
        if former is None or seen or former.refused != plan.fingerprint or plan.spec.url in self._lost:
            return
        raise FailsOnRequests(former.reason, hint="it is tried again with the next request that is answered")

    def _seen_by(self, url: str, name: str) -> list[bytes]:
        """Return a body that this version, or else another one of the same endpoint, has answered lately."""
        family = sorted(
            (e for e in self._serving.values() if e.identity.endpoint == name and e.last_body is not None),
            key=lambda e: e.identity.url != url,
        )
        return [e.last_body for e in family[:1] if e.last_body is not None]

    async def _restore(self, url: str, former: Kept) -> None:
        """Serve again what was served before this process started, until what the Task wants can be."""
        delay, said = _RETRY_FIRST_S, ""
        while True:
            try:
                record = decode_model(former.record) if former.record is not None else None
                endpoint = await self._assembler.build(former.plan, lambda _step: None, record=record)
            except GatewayError as error:
                reason = _reason(error)
            except Exception as error:  # noqa: BLE001 - as in `_build`
                reason = f"unexpected {type(error).__name__}: {error}"
                _log.exception("restoring %s failed unexpectedly", url)
            else:
                break
            self._lost.add(url)
            if reason != said:
                _log.warning("endpoint %s: the version served before cannot be restored: %s", url, reason)
                said = reason
            await asyncio.sleep(delay)
            delay = min(delay * 2, _RETRY_MOST_S)
        self._restores.pop(url, None)
        if url in self._serving or url not in self._kept:
            await endpoint.retire()
            return
        self._serving[url], self._plans[url] = endpoint, former
        _log.info("endpoint %s is served by the version before, until the new one is ready", url)
        self._swap([])

    def _forget(self, url: str) -> None:
        self._kept.pop(url, None)
        restore = self._restores.pop(url, None)
        if restore is not None:
            restore.cancel()

    def _note(self, pending: Pending) -> None:
        self._pending[pending.url] = pending
        self._swap([])  # the reason is what callers and the page see

    def _swap(self, retired: list[Endpoint]) -> None:
        """Publish what is served now, and retire what is not any more: at once, or with what else changes in a moment.

        A thousand builds at a time end in a thousand changes, and publishing costs more the more endpoints there are.
        """
        self._leaving += retired
        if self._swap_due is None:
            loop = asyncio.get_running_loop()
            wait = self._swapped + _SWAPS_APART_S - loop.time()
            if wait > 0:
                self._swap_due = loop.call_later(wait, self._publish)
            else:
                self._publish()

    def _publish(self) -> None:
        self._swap_due = None
        if self._plan is None:
            return
        self._swapped = asyncio.get_running_loop().time()
        self._table.swap(assemble_snapshot(self._plan, self._serving, self._pending, self._table.current))
        self._observer.faults(fault.subject for fault in self._table.current.faults)
        self._publish_health()
        self._watch()
        leaving, self._leaving = self._leaving, []
        for endpoint in leaving:
            task = asyncio.create_task(endpoint.retire(), name=f"retire {endpoint.identity.url}")
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    def _watch(self) -> None:
        if self._plan is None:
            return
        served = {}
        for url, endpoint in self._serving.items():
            identity = endpoint.identity
            labels = identity.details.get("labels")
            served[url] = Served(
                identity.endpoint, identity.version, is_text=endpoint.is_text,
                labels=tuple(str(label) for label in labels) if isinstance(labels, list) else (),
                reference={**identity.reference, **self._references.of(url)},
            )  # fmt: skip
        spec = self._plan.spec
        self._observer.watch.configure(served, spec.metrics, frequency_of(spec.settings, self._metric_log_frequency))
        self._observer.expect(self._table.current.routes())
        self._mirror.configure(spec.shadows, self._serving)

    async def _tidy(self) -> None:
        """Say now and then which files are needed: what is wanted, what serves, what would serve again."""
        now = asyncio.get_running_loop().time()
        if self._plan is None or (now < self._tidy_due and self._tidied == self._plan.revision):
            return
        self._tidy_due, self._tidied = now + _TIDY_S, self._plan.revision
        kept = [*self._kept.values(), *self._plans.values()]
        await self._in_thread(self._keep_files, self._plan, kept)

    def _keep_files(self, plan: Plan, kept: Sequence[Kept]) -> None:
        pause, known = Pace(), self._records.known()
        needed = [(one.spec, known.get(one.spec.model_id or "")) for one in plan.endpoints.values()]
        for one in kept:
            needed.append((one.plan.spec, decode_model(one.record) if one.record is not None else None))
            pause()
        self._assembler.keep(needed)

    def _publish_health(self) -> None:
        if self._swap_due is not None:
            return  # health never says more than the routes that requests read: both are published together
        health = self._health
        health.needs = {
            url: self._plans[url].plan.triton_address if endpoint.identity.triton_name else ""
            for url, endpoint in self._serving.items()
        }
        health.unserved = {
            url: f"{'has' if p.state == 'failed' else 'is'} {p.state}: {p.reason}"
            for url, p in sorted(self._pending.items()) if url not in self._serving
        }  # fmt: skip
        may_come = tuple(filter(self._may_come, sorted(self._before or ())))
        waits = not health.has_been_ready and asyncio.get_running_loop().time() < self._waits_until
        health.awaited = may_come if waits else ()
        health.is_settling = any(url in self._pending and self._pending[url].state == "building" for url in may_come)
        routes = self._table.current
        health.missing = tuple(p for p in self._pinned if p not in routes.endpoints and p not in routes.canaries)
        health.note()
        ready = {(e.identity.endpoint, e.identity.version): True for e in self._serving.values()}
        if self._plan is not None:
            for plan in self._plan.endpoints.values():
                ready.setdefault((plan.spec.endpoint, plan.spec.version), False)
        gone: dict[tuple[str, str], bool | None] = dict.fromkeys(self._seen - ready.keys())
        self._seen |= ready.keys()
        self._observer.endpoint_states({**gone, **ready})

    def _may_come(self, url: str) -> bool:
        """Whether a url that is not served may still be, without anybody changing anything."""
        if url in self._serving:
            return False
        pending = self._pending.get(url)
        is_refused = pending is not None and (pending.state == "refused" or pending.is_final)
        return not is_refused or (url in self._restores and url not in self._lost)

    def _save(self) -> None:
        """Store the last-good state soon, in a thread; what changes meanwhile is stored afterwards, once."""
        self._is_unsaved = True
        if self._saver is None or self._saver.done():
            self._saver = asyncio.create_task(self._save_all(), name="save")

    async def _save_all(self) -> None:
        while self._is_unsaved and self._task is not None:
            self._is_unsaved = False
            served = sorted({*(self._before or ()), *self._serving})
            try:
                await self._in_thread(self._store_all, self._task, self._records.snapshot(), self._outdated(), served)
            except OSError as error:
                _log.warning("the last-good state cannot be stored: %s", error)
            except Exception:  # noqa: BLE001 - a bug of ours here must not keep the process from stopping in order
                _log.exception("storing the last-good state failed unexpectedly")

    def _store_all(
        self,
        task: Mapping[str, Any],
        models: Mapping[str, Mapping[str, Any]],
        outdated: Mapping[str, Kept],
        served: Sequence[str],
    ) -> None:
        self._store.save(task, models, kept.encode(outdated, Pace()), served)

    def _outdated(self) -> dict[str, Kept]:
        """Return the versions in service, or to be restored, of which the Task wants another one."""
        wanted = self._plan.endpoints if self._plan is not None else {}
        served = {url: self._plans[url] for url in self._serving if url in self._plans}
        return {
            url: one
            for url, one in {**self._kept, **served}.items()
            if url not in wanted or wanted[url].fingerprint != one.plan.fingerprint
        }

    def _report(self, message: str, error: BaseException | None) -> None:
        hint = getattr(error, "hint", "")
        text = f"{message}; {hint}" if hint else message
        if text != self.last_error:
            level = logging.ERROR if isinstance(error, RegistryRefused) else logging.WARNING
            _log.log(level, "%s", text)
        self.last_error = text

    async def _probe_backends(self) -> None:
        while True:
            try:
                await self._probe()
            except Exception:  # noqa: BLE001 - were this loop to end, readiness would stay as it is for ever
                _log.exception("unexpected error while asking the Tritons whether they answer")
            await asyncio.sleep(_PROBE_S)

    async def _probe(self) -> None:
        live = await self._tritons.probe(self._needed())
        for address, answers in live.items():
            if self._health.backend_live.get(address) != answers:
                _log.log(
                    logging.INFO if answers else logging.WARNING,
                    "Triton at %s %s", address, "answers" if answers else "does not answer",
                )  # fmt: skip
        now = {address for address, _ in self._needed()}
        found = {address: answers for address, answers in live.items() if address in now}
        if found != self._health.backend_live or not self._health.has_been_ready:  # or its time to wait is over
            self._health.backend_live = found
            self._observer.backends(found)
            self._publish_health()
        if not self._retiring:  # requests that endpoints still finish need the Triton they were sent to
            await self._tritons.forget(self._needed())

    def _needed(self) -> set[Key]:
        """Return the Tritons that endpoints are served or built on: others are nobody's business any more."""
        wanted = self._plan.endpoints.values() if self._plan is not None else ()
        plans = [*wanted, *(one.plan for one in (*self._plans.values(), *self._kept.values()))]
        return {(p.triton_address, p.triton_compression) for p in plans if p.spec.engine == "triton"}

    async def _stop_builds(self) -> None:
        tasks = [*(task for _, task in self._builds.values()), *self._restores.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Retire every endpoint; the loop has been cancelled before."""
        endpoints, self._serving = [*self._serving.values(), *self._leaving], {}
        if self._swap_due is not None:
            self._swap_due.cancel()
        await asyncio.gather(*(e.retire() for e in endpoints), *self._retiring, return_exceptions=True)
        if self._saver is not None:  # its thread may be waiting behind a registry that hangs
            await asyncio.wait({self._saver}, timeout=_LAST_SAVE_S)

    def task_settings(self) -> Mapping[str, str]:
        """Return what ``clearml-serving config`` has set, as last read."""
        return self._plan.spec.settings if self._plan is not None else {}

    def status(self) -> dict[str, Any]:
        """Return what is served and why not, for ``/v1/status`` and the page."""
        snapshot = self._table.current
        endpoints = []
        for url, endpoint in sorted(snapshot.endpoints.items()):
            identity = endpoint.identity
            successor = snapshot.pending.get(url)
            endpoints.append({
                "url": url, "endpoint": identity.endpoint, "version": identity.version, "state": "serving",
                "model_id": identity.model_id, "model_name": identity.model_name, "triton_model": identity.triton_name,
                "fingerprint": identity.fingerprint, "details": dict(identity.details),
                "successor": _successor(successor) if successor else None,
            })  # fmt: skip
        waiting = [
            {"url": p.url, "state": p.state, "reason": p.reason, "is_final": p.is_final}
            for url, p in sorted(snapshot.pending.items())
            if url not in snapshot.endpoints
        ]
        return {
            "revision": snapshot.revision,
            "spec_revision": self._plan.spec.revision if self._plan else None,
            "serving_task": {"id": self._plan.spec.task_id, "name": self._plan.spec.name} if self._plan else None,
            "ready": not self._health.reasons(),
            "not_ready_because": self._health.reasons(),
            "degraded": self._health.degraded(),
            "endpoints": endpoints,
            "pending": waiting,
            "canaries": {name: c.shares for name, c in snapshot.canaries.items()},
            "shadows": self._mirror.status(),
            "faults": [{"subject": f.subject, "message": f.message} for f in snapshot.faults],
            "registry": {"last_contact": self.last_contact or None, "error": self.last_error or None},
            "triton": dict(self._health.backend_live),
        }


def _unreadable(plan: Plan) -> bool:
    return any(fault.subject.startswith("section ") for fault in plan.faults)


def _is_final(error: GatewayError) -> bool:
    """Whether another attempt would end alike everywhere; what cannot be fetched here may be served elsewhere."""
    return not error.retryable and not isinstance(error, RegistryRefused | ContentChanged)


def _successor(pending: Pending) -> dict[str, Any]:
    return {"state": pending.state, "reason": pending.reason, "is_final": pending.is_final}


def _reason(error: GatewayError) -> str:
    text = f"{error.message}; {error.hint}" if error.hint else error.message
    return text if not isinstance(error, ControlError) else text[:500]
