"""Model sync's loop: makes one Triton hold the models that ``follow`` reads from the serving Task.

It observes, plans (``plan``, pure), fetches models, writes them aside, loads them, and unloads models that nobody
needs. Models are independent: a failure is recorded with Triton's own reason, retried with
back-off, and affects no other model. The loop never blocks: the registry and every model have their own threads, so
neither a dead registry nor a slow download delays Triton. It never acts on a desired state that it could not read.
Gateways and the controller read what it reports beside the serving Task (``gateway.registry.reports``).
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.sync.client import AdminClient, ModelState
from deploy.sync.errors import EndedWhileLoading, Verdict, verdict_of
from deploy.sync.follow import Desired, Follower, Target
from deploy.sync.model_folder.build import Builder
from deploy.sync.plan import Model, Plan, plan, why_needed
from deploy.sync.repository import ModelRepository, OnDisk
from deploy.sync.settings import SyncSettings
from deploy.sync.stubs import stubs_of
from gateway import errors, registry
from gateway.own_thread import DaemonPool

log = logging.getLogger("triton_gateway.sync")

_Report = registry.reports.ModelReport

_AWAY_S = 0.2
"""Seconds between looks at a Triton that does not answer: it may come back empty."""
_REPORTS_APART_S = 10.0
_REPORTED_EVERY_S = 3600.0
_FAILURES_EVERY_S = 60.0
"""The report of a model that fails is repeated: an old one does not count."""


@dataclass(slots=True)
class Memory:
    """What is remembered of one model between rounds; times in ``clock()`` seconds."""

    job: Future[None] | None = None
    doing: str = ""
    """What its job is doing now."""
    failures: int = 0
    """In a row; then ``verdict`` says why it failed last, and ``retry_at`` when it may be tried again."""
    verdict: Verdict = Verdict("", is_final=False)  # noqa: RUF009 - immutable
    retry_at: float = 0.0
    is_suspect: bool = False
    """Triton ended while it loaded this model, perhaps because of it."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """Of the model's file as it was downloaded last."""
    unneeded_since: float | None = None
    ready_since: float | None = None
    is_short: bool = False
    """Fewer processes than configured ran it in the last round."""
    earlier: Set[int] = frozenset()
    """Its processes before it was loaded last; some may live on (see ``stubs``), but serve nobody."""
    is_cold: bool = False
    """It was unloaded because it got no requests; ``asked`` was the gateways' last request to load it then."""
    asked: object = None


class ModelSync:
    """The reconciler. ``step`` is one round; ``run`` repeats it until it is stopped."""

    def __init__(self, settings: SyncSettings, source: registry.Registry, *, cache: registry.ArtifactCache,
                 store: registry.SpecStore, triton: AdminClient, repository: ModelRepository,
                 clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
                 pool: Executor | None = None, me: str = "",
                 stubs: Callable[[Path], Mapping[str, Set[int]]] = stubs_of) -> None:  # fmt: skip
        self._settings = settings
        self._stubs = stubs
        self._sees_stubs = False
        self._cache = cache
        self._triton = triton
        self._repository = repository
        self._clock = clock
        self._wall = wall
        self._builder = Builder(settings.engine, settings.tuning)
        self._follower = Follower(source, store, settings, lambda: self._builder.recipe, clock, cache.learn)
        # The registry is read in its own thread: waiting for a dead registry must not keep models from being loaded.
        self._registry_pool = pool or DaemonPool(1, "sync-registry")
        self._model_pool = pool or DaemonPool(settings.downloads, "sync-model")
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._desired: Desired | None = None
        self._following: Future[Desired | None] | None = None
        self._next_poll = 0.0
        self._registry_error = ""
        self._last_contact: float | None = None
        self._memory: dict[str, Memory] = {}
        self._loaded: frozenset[str] = frozenset()
        """Models that Triton can run now."""
        self._accounts: list[tuple[_Report, str]] = []
        """What is known of each model, and what is done about it. Replaced as a whole: other threads read it."""
        self._reports = source.reports
        self._me = me or settings.triton_grpc
        self._reported: list[_Report] | None = None
        self._reported_at = -math.inf
        self._triton_answers = False
        self._triton_error = ""
        self._is_refused = False
        self.last_round = clock()
        """When the last round ended, in ``clock()`` seconds. Probes use it: a loop that stands still is not alive."""

    def open(self) -> None:
        """Take the repository and the state saved on disk; a start needs no registry. Raises ``ControlError``."""
        self._repository.open()
        self._desired = self._follower.remembered()
        if self._desired is not None:
            log.info("sync starts from the last good state on disk revision=%s", self._desired.revision)

    def run(self, stop: threading.Event) -> None:
        """Reconcile until ``stop`` is set, then end running steps cleanly."""
        self.open()
        try:
            while not stop.is_set():
                try:
                    self.step()
                except Exception:
                    log.exception("a round of model sync failed; the next one starts from the beginning")
                self.last_round = self._clock()
                with contextlib.suppress(OSError):
                    self._settings.heartbeat.touch()
                # The loop notices a set stop event within this time. A finished job or a restarted Triton wakes it at
                # once.
                for _ in range(10):
                    if stop.is_set() or self._wake.wait(self._pause() / 10):
                        break
                self._wake.clear()
        finally:
            self.close()

    def close(self) -> None:
        """End running steps within seconds, and release the repository."""
        self._stopping.set()
        self._triton.close()  # ends a load that may take minutes
        self._registry_pool.shutdown(wait=False, cancel_futures=True)
        self._model_pool.shutdown(wait=True, cancel_futures=True)
        self._repository.close()

    def step(self) -> None:
        """Do one round: take the registry's last answer, observe, plan, start the steps, publish the status."""
        self._follow()
        self._finish_jobs()
        models = self._observe(self._desired or Desired(is_readable=False))
        plans = {model.name: plan(model, triton_answers=self._triton_answers, grace=self._settings.grace)
                 for model in models}  # fmt: skip
        desired = self._desired
        if desired is None:
            return
        self._publish(self._account(desired, models, plans))
        for model in models:
            if plans[model.name].steps and self._may_start(model.name):
                if plans[model.name].steps == ("unload",) and model.wanted is not None:
                    memory = self._memory[model.name]
                    memory.is_cold, memory.asked = True, desired.load_requests.get(model.name)
                self._start(model.name, plans[model.name], desired.targets.get(model.name))
        told, since = [report for report, _ in self._accounts], self._clock() - self._reported_at
        most = _FAILURES_EVERY_S if any(one.reason for one in told) else _REPORTED_EVERY_S
        if since >= (most if told == self._reported else _REPORTS_APART_S):
            self._reported_at = self._clock()
            # An unexpected failure is logged by the callback that raises it.
            self._registry_pool.submit(self._report, told).add_done_callback(lambda done: done.result())

    def status(self) -> dict[str, Any]:
        """Return what ``/status`` shows, and probes judge."""
        desired = self._desired or Desired()
        return {
            "revision": desired.revision,
            "pools": sorted(self._settings.pools),
            "triton": {
                "address": self._settings.triton_grpc, "answers": self._triton_answers or self._is_refused,
                "error": self._triton_error,
            },
            "registry": {
                "last_contact": datetime.fromtimestamp(self._last_contact, UTC).isoformat(timespec="seconds")
                if self._last_contact else None,
                "error": self._registry_error,
            },
            "models": [
                {"url": m.url, "name": m.name, "model": m.model, "state": m.state, "reason": m.reason, "doing": doing,
                 "is_loaded": m.name in self._loaded}  # Triton has it, though perhaps in an earlier build
                for m, doing in self._accounts
            ],
        }  # fmt: skip

    # --- registry -----------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        if self._following is None and self._clock() >= self._next_poll:
            self._following = self._registry_pool.submit(self._follower.poll)
            self._following.add_done_callback(lambda _: self._wake.set())
        if self._following is None or not self._following.done():
            return
        following, self._following = self._following, None
        now = self._clock()
        self._next_poll = now + self._settings.poll_s
        try:
            desired = following.result()
        except errors.GatewayError as error:
            text = error.sentence
            self._next_poll = now + min(self._settings.poll_s, self._settings.retry_first_s)
            if text != self._registry_error:
                log.warning("registry not readable, loaded models stay: %s", text)
            self._registry_error = text
            return
        except Exception as error:
            log.exception("reading the serving Task failed")
            self._registry_error = f"internal error: {error!r}"
            return
        if self._registry_error:
            log.info("registry readable again")
        self._registry_error, self._last_contact = "", self._wall()
        if desired is None:
            return
        if self._desired is None or desired.revision != self._desired.revision:
            log.info("serving Task changed revision=%s models=%d", desired.revision, len(desired.targets))
            for memory in self._memory.values():  # the change may be the repair: everything is tried again at once
                memory.failures, memory.is_suspect = 0, False
        self._desired = desired
        if desired.is_readable:
            self._model_pool.submit(self._cache.keep, [target.record for target in desired.targets.values()])

    # --- observation --------------------------------------------------------------------------------------------

    def _observe(self, desired: Desired) -> list[Model]:
        """Return the models that are wanted or on disk, by name."""
        on_disk, targets = self._repository.models(), desired.targets
        names = sorted({*on_disk, *targets})
        self._memory = {name: self._memory.get(name, Memory()) for name in {*names, *self._busy()}}
        index: dict[str, ModelState] = {}
        called: dict[str, float] = {}
        try:
            index = self._triton.index()
            if set(on_disk) - set(targets) or any(target.unload_after for target in targets.values()):
                called = self._triton.last_inference()
            self._is_refused = False
            self._set_triton(answers=True)
        except errors.GatewayError as error:
            self._is_refused = isinstance(error, errors.BackendRefused)
            self._set_triton(answers=False, why=error.sentence)
            if self._is_refused:
                # Triton answers but refuses our key, so nothing can be changed. Its index can be read without a key.
                index = {name: "ready" for name in targets if self._is_held(name)}
        ready = {name for name, state in index.items() if state == "ready"}
        damaged = self._damaged(on_disk, ready)
        self._loaded = frozenset(ready - damaged)
        return [
            self._model(name, on_disk.get(name), desired, index, called.get(name, 0.0), is_damaged=name in damaged)
            for name in names
        ]

    def _model(
        self, name: str, disk: OnDisk | None, desired: Desired, index: Mapping[str, ModelState], called: float, *,
        is_damaged: bool,
    ) -> Model:  # fmt: skip
        memory, target, now = self._memory[name], desired.targets.get(name), self._clock()
        url = target.url if target else disk.url if disk else ""
        state = index.get(name, "absent")
        if state != "ready" or memory.job is not None:
            memory.ready_since = None
        elif memory.ready_since is None:
            memory.ready_since = now
        needed = "" if target else why_needed(url, desired, {name for name, one in index.items() if one == "ready"})
        if target or needed:
            memory.unneeded_since = None
        elif memory.unneeded_since is None:
            memory.unneeded_since = now
        memory.is_cold &= target is not None and desired.load_requests.get(name, memory.asked) == memory.asked
        return Model(
            name=name,
            url=url,
            wanted=target.recipe if target else None,
            recipe=disk.recipe if disk else None,
            state=state,
            is_damaged=is_damaged,
            is_busy=memory.job is not None,
            retry_in=memory.retry_at - now if memory.failures else 0.0,
            quiet_s=min(now - (memory.ready_since or now), self._wall() - called),
            unload_after=target.unload_after if target else 0.0,
            is_cold=memory.is_cold,
            needed=needed,
            unneeded_for=now - memory.unneeded_since if memory.unneeded_since is not None else 0.0,
            has_moved=url in desired.elsewhere,
        )

    def _busy(self) -> set[str]:
        return {name for name, memory in self._memory.items() if memory.job is not None}

    def _is_held(self, name: str) -> bool:
        with contextlib.suppress(errors.GatewayError):
            return self._triton.is_ready(name)
        return False

    def _living(self) -> Mapping[str, Set[int]]:
        """Return the processes of models, by name; none if Triton itself runs the models."""
        return self._stubs(self._repository.root) if self._settings.engine == "python" else {}

    def _damaged(self, on_disk: Mapping[str, OnDisk], ready: set[str]) -> set[str]:
        """Return models that Triton calls ready although fewer processes than configured run them, twice in a row."""
        running = self._living()
        self._sees_stubs = self._sees_stubs or bool(running)
        found = set()
        for name, model in on_disk.items():
            memory = self._memory[name]
            serving = running.get(name, frozenset()) - memory.earlier
            is_short = self._sees_stubs and name in ready and memory.job is None and len(serving) < model.instances
            if is_short and memory.is_short:
                found.add(name)
            memory.is_short = is_short
        return found

    def _set_triton(self, *, answers: bool, why: str = "") -> None:
        if answers and not self._triton_answers:
            log.info("Triton answers at %s", self._settings.triton_grpc)
            # A restarted Triton is empty: models that failed before are due at once.
            for memory in self._memory.values():
                if not memory.is_suspect:
                    memory.retry_at = min(memory.retry_at, self._clock())
        elif not answers and why != self._triton_error:
            log.warning("Triton accepts no load requests: %s", why)
        self._triton_answers, self._triton_error = answers, why

    # --- steps --------------------------------------------------------------------------------------------------

    def _may_start(self, name: str) -> bool:
        """Return True if this model may start its steps now.

        A model that may have ended Triton is loaded alone, so that no other model is suspected or delayed with it.
        """
        suspects = {other for other, memory in self._memory.items() if memory.is_suspect}
        return not self._busy() if name in suspects else suspects.isdisjoint(self._busy())

    def _start(self, name: str, planned: Plan, target: Target | None) -> None:
        log.info("model %s: %s (%s)", name, " → ".join(planned.steps), planned.reason)
        job = self._model_pool.submit(self._take, name, planned, target)
        self._memory[name].job = job
        job.add_done_callback(lambda _: self._wake.set())

    def _take(self, name: str, planned: Plan, target: Target | None) -> None:
        for step in planned.steps:
            if self._stopping.is_set():
                return
            if step == "write" and target is not None:
                self._say(name, "downloading")
                folder = self._cache.model(target.record)
                files = self._builder.build(name, target.endpoint, target.record, folder)
                marker = OnDisk(name, target.url, target.record.id, target.recipe, files.instances)
                self._repository.write(marker, files.config, folder, files.linked, files.texts)
            elif step == "load":
                self._say(name, "loading")
                self._load(name)
            elif step == "unload":
                self._triton.unload(name)
            elif step == "remove":
                self._repository.remove(name)

    def _load(self, name: str) -> None:
        self._triton.index()  # raises if Triton is away already, which is not this model's fault
        earlier = self._living().get(name, frozenset())
        try:
            self._triton.load(name)
            self._memory[name].earlier = earlier
        except errors.BackendUnavailable as error:
            raise EndedWhileLoading(f"Triton exited while loading this model ({error.message})") from error

    def _say(self, name: str, doing: str) -> None:
        self._memory[name].doing = doing
        self._wake.set()

    def _finish_jobs(self) -> None:
        for name, memory in self._memory.items():
            if memory.job is None or not memory.job.done():
                continue
            error = memory.job.exception()
            memory.job, memory.doing = None, ""
            if error is None:
                memory.failures, memory.is_suspect, memory.hashes = 0, False, {}
                continue
            is_suspect = isinstance(error, EndedWhileLoading)
            if is_suspect or isinstance(error, errors.BackendUnavailable):
                self._triton_answers = False
            if isinstance(error, errors.BackendUnavailable):
                continue  # Triton is away, which is not this model's fault: no back-off once Triton is back
            if isinstance(error, errors.ContentChanged):
                memory.hashes = {"sha256": error.found}
            elif not isinstance(error, errors.GatewayError) and not is_suspect:
                log.error("model %s: a step failed unexpectedly", name, exc_info=error)
            memory.failures, memory.verdict, memory.is_suspect = memory.failures + 1, verdict_of(error), is_suspect
            delay = self._settings.delay(memory.failures)
            memory.retry_at = self._clock() + delay
            log.warning("model %s failed, next try in %.0f s: %s", name, delay, memory.verdict.reason)

    # --- status -------------------------------------------------------------------------------------------------

    def _account(
        self, desired: Desired, models: Iterable[Model], plans: Mapping[str, Plan]
    ) -> Iterator[tuple[_Report, str]]:
        """Yield what is known of each model, and what is being done about it."""
        away = self._triton_error if self._is_refused else "Triton does not answer"
        for model in models:
            target, memory = desired.targets.get(model.name), self._memory[model.name]
            if target is None:
                yield _Report(model.url, "", model.name, "retiring"), plans[model.name].reason
                continue
            memory.hashes = memory.hashes or self._cache.hashes(target.record)
            phase: registry.reports.Phase = "pending"
            why, doing = Verdict("", is_final=False), ""
            if model.state == "ready" and model.recipe == model.wanted and not model.is_damaged:
                phase = "loaded"
            elif model.is_cold:
                phase, doing = "loaded", "idle; the next request loads it"
            elif memory.failures:
                why = memory.verdict  # it stays failed until a retry succeeds: readers need the reason
            else:
                doing = memory.doing or ("" if self._triton_answers else away)
            hashes = memory.hashes.get("sha256", ""), memory.hashes.get("parts", "")
            yield _Report(model.url, target.record.id, model.name, phase, why.reason, why.is_final, *hashes), doing
        for url, (model_id, why) in desired.unresolved.items():
            yield _Report(url, model_id, "", "pending", why.reason, why.is_final), ""

    def _publish(self, accounts: Iterable[tuple[_Report, str]]) -> None:
        before = {(report.url, report.name): report.state for report, _ in self._accounts}
        self._accounts = sorted(accounts, key=lambda one: (one[0].url, one[0].name))
        for one, _ in self._accounts:
            if one.state in ("loaded", "failed", "refused") and before.get((one.url, one.name)) != one.state:
                log.info("endpoint %s model %s is %s%s", one.url, one.name or one.model, one.state,
                         f": {one.reason}" if one.reason else "")  # fmt: skip

    def _report(self, told: list[_Report]) -> None:
        try:
            self._reports.write([registry.reports.record(self._me, told, at=self._wall())])
            self._reported = told
        except errors.GatewayError as error:  # written again ten seconds later
            log.warning("the state of this Triton cannot be reported: %s", error.message)

    def _pause(self) -> float:
        soonest = [self._settings.poll_s, self._settings.observe_s if self._triton_answers else _AWAY_S]
        now = self._clock()
        soonest.extend(max(0.05, memory.retry_at - now) for memory in self._memory.values() if memory.failures)
        return min(soonest)
