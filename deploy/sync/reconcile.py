"""Model sync's loop: makes one Triton hold the models that ``follow`` reads from the serving Task.

It observes, plans (``plan``, pure), fetches models, writes them aside, loads them, and unloads models that nobody
needs. Models are independent: a failure is recorded with Triton's own reason, retried with
back-off, and affects no other model. The loop never blocks: the registry and every model have their own threads, so
neither a dead registry nor a slow download delays Triton. It never acts on a desired state that it could not read.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from deploy.sync.client import AdminClient, ModelState
from deploy.sync.daemon_threads import DaemonPool
from deploy.sync.errors import EndedWhileLoading, verdict_of
from deploy.sync.follow import Desired, Follower, Target
from deploy.sync.model_folder.build import Builder
from deploy.sync.plan import Action, Observed, Situation, dispensable, plan
from deploy.sync.repository import ModelRepository, OnDisk
from deploy.sync.settings import Retry, SyncSettings
from deploy.sync.status import Reporter, StatusBoard, iso
from deploy.sync.stubs import count_stubs
from gateway import errors, registry

log = logging.getLogger("triton_gateway.sync")

_Report = registry.reports.ModelReport

_AWAY_S = 0.2
"""Seconds between looks at a Triton that does not answer: it may come back empty."""


class ModelSync:
    """The reconciler. ``step`` is one round; ``run`` repeats it until it is stopped."""

    def __init__(self, settings: SyncSettings, source: registry.Registry, *, cache: registry.ArtifactCache,
                 store: registry.SpecStore, triton: AdminClient, repository: ModelRepository,
                 clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
                 pool: Executor | None = None, me: str = "",
                 stubs: Callable[[Path], Mapping[str, int]] = count_stubs) -> None:  # fmt: skip
        self._settings = settings
        self._stubs = stubs
        self._sees_stubs = False
        self._short_of_stubs: set[str] = set()
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
        self._registry_failures = 0
        self._last_contact: float | None = None
        self._jobs: dict[str, Future[None]] = {}
        self._doing: dict[str, str] = {}
        """What the jobs of models are doing now."""
        self._retries: dict[str, Retry] = {}
        self._hashes: dict[str, Mapping[str, str]] = {}
        """Hashes of the file of each wanted model, as it was downloaded last."""
        self._dispensable_since: dict[str, float] = {}
        self._ready_since: dict[str, float] = {}
        self._loaded: frozenset[str] = frozenset()
        """Models that Triton can run now."""
        self._cold: dict[str, object] = {}
        """Models that were unloaded because they got no requests, with the gateways' last load request at that time."""
        self._board = StatusBoard(wall)
        self._reporter = Reporter(
            lambda told: source.reports.write([registry.reports.record(me or settings.triton_grpc, told, at=wall())]),
            clock=clock,
        )
        self._triton_answers = False
        self._triton_error = ""
        self._is_refused = False
        self.last_round = clock()
        """When the last round ended, in ``clock()`` seconds. Probes use it: a loop that stands still is not alive."""

    @property
    def sees_stubs(self) -> bool:
        """Return True once a stub process of this repository was seen. Only then can a missing one be noticed."""
        return self._sees_stubs

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

    def step(self) -> tuple[Action, ...]:
        """Do one round: take the registry's last answer, observe, plan, start the steps, publish the status."""
        self._follow()
        self._finish_jobs()
        desired = self._desired or Desired(is_readable=False)
        observed = self._observe(desired)
        wanted = {name: target.wanted for name, target in desired.targets.items()}
        requests = desired.load_requests
        self._cold = {n: at for n, at in self._cold.items() if n in wanted and requests.get(n, at) == at}
        now = self._clock()
        situation = Situation(
            triton_answers=self._triton_answers,
            holds_all=not desired.is_readable,
            held_urls=desired.held_urls,
            elsewhere=desired.elsewhere,
            cold=frozenset(self._cold),
            busy=frozenset(self._jobs),
            retry_in={name: retry.at - now for name, retry in self._retries.items()},
            grace=self._settings.grace,
        )
        gone = dispensable(wanted, observed, situation)
        self._dispensable_since = {name: self._dispensable_since.get(name, now) for name in gone}
        situation = replace(situation, unwanted_for={n: now - at for n, at in self._dispensable_since.items()})
        actions = plan(wanted, observed, situation)
        self._board.replace(self._accounts(desired, observed, actions))
        for name in dict.fromkeys(a.name for a in actions if a.kind != "keep"):
            if self._may_start(name):
                if name in wanted and any(a.name == name and a.kind == "unload" for a in actions):
                    self._cold[name] = requests.get(name)
                self._start(name, [a for a in actions if a.name == name], desired.targets.get(name))
        told = self._told()
        if self._desired is not None and self._reporter.is_due(told):
            # An unexpected failure is logged by the callback that raises it.
            self._registry_pool.submit(self._reporter.write, told).add_done_callback(lambda done: done.result())
        return actions

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
                "last_contact": iso(self._last_contact) if self._last_contact else None,
                "error": self._registry_error,
            },
            # Triton has it, though perhaps in an earlier build.
            "models": [{**model, "is_loaded": model["name"] in self._loaded} for model in self._board.shown()],
        }  # fmt: skip

    def _told(self) -> list[registry.reports.ModelReport]:
        """Return what is reported of each model, with the hashes of its file."""
        targets = self._desired.targets if self._desired is not None else {}
        self._hashes = {name: hashes for name, hashes in self._hashes.items() if name in targets}
        for name, target in targets.items():
            if not self._hashes.get(name):
                self._hashes[name] = self._cache.hashes(target.record)
        known = [(model, self._hashes.get(model.name, {})) for model in self._board.models()]
        return [replace(m, sha256=of.get("sha256", ""), parts=of.get("parts", "")) for m, of in known]

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
        self._registry_failures += 1
        try:
            desired = following.result()
        except errors.GatewayError as error:
            text = f"{error.message}; {error.hint}" if error.hint else error.message
            self._next_poll = now + min(self._settings.poll_s, self._settings.delay(self._registry_failures))
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
        self._registry_error, self._registry_failures, self._last_contact = "", 0, self._wall()
        if desired is None:
            return
        if self._desired is None or desired.revision != self._desired.revision:
            log.info("serving Task changed revision=%s models=%d", desired.revision, len(desired.targets))
            self._retries.clear()  # the change may be the repair: everything is tried again at once
        self._desired = desired
        if desired.is_readable:
            self._model_pool.submit(self._cache.keep, [target.record for target in desired.targets.values()])

    # --- observation --------------------------------------------------------------------------------------------

    def _observe(self, desired: Desired) -> dict[str, Observed]:
        on_disk = self._repository.models()
        index: dict[str, ModelState] = {}
        called: dict[str, float] = {}
        try:
            index = self._triton.index()
            if set(on_disk) - set(desired.targets) or any(t.wanted.unload_after for t in desired.targets.values()):
                called = self._triton.last_inference()
            self._is_refused = False
            self._set_triton(answers=True)
        except errors.GatewayError as error:
            self._is_refused = isinstance(error, errors.BackendRefused)
            self._set_triton(answers=False, why=f"{error.message}{f' ({error.hint})' if error.hint else ''}")
            if self._is_refused:
                # Triton answers but refuses our key, so nothing can be changed. Its index can be read without a key.
                index = {name: "ready" for name in desired.targets if self._is_held(name)}
        now = self._clock()
        ready = {name for name, state in index.items() if state == "ready" and name not in self._jobs}
        self._ready_since = {name: self._ready_since.get(name, now) for name in ready}
        damaged = self._damaged(on_disk, index)
        self._loaded = frozenset(name for name, state in index.items() if state == "ready") - damaged
        seen: dict[str, Observed] = {}
        for name in set(on_disk) | set(desired.targets):
            disk, last = on_disk.get(name), called.get(name, 0.0)
            seen[name] = Observed(
                name=name,
                url=disk.url if disk else desired.targets[name].wanted.url,
                recipe=disk.recipe if disk else None,
                state=index.get(name, "absent"),
                idle_s=self._wall() - last if last else None,
                quiet_s=min(now - self._ready_since.get(name, now), self._wall() - last),
                is_damaged=name in damaged,
            )
        return {n: o for n, o in seen.items() if o.recipe is not None or o.state != "absent"}

    def _is_held(self, name: str) -> bool:
        with contextlib.suppress(errors.GatewayError):
            return self._triton.is_ready(name)
        return False

    def _damaged(self, on_disk: Mapping[str, OnDisk], index: Mapping[str, ModelState]) -> set[str]:
        """Return models that Triton calls ready although fewer processes than configured run them, twice in a row."""
        if self._settings.engine != "python":
            return set()
        running = self._stubs(self._repository.root)
        self._sees_stubs = self._sees_stubs or bool(running)
        short = {
            name for name, model in on_disk.items()
            if index.get(name) == "ready" and name not in self._jobs
            and running.get(name, 0) < model.instances
        } if self._sees_stubs else set()  # fmt: skip
        both, self._short_of_stubs = short & self._short_of_stubs, short
        return both

    def _set_triton(self, *, answers: bool, why: str = "") -> None:
        if answers and not self._triton_answers:
            log.info("Triton answers at %s", self._settings.triton_grpc)
            # A restarted Triton is empty: models that failed before are due at once.
            for retry in self._retries.values():
                if not retry.is_suspect:
                    retry.at = min(retry.at, self._clock())
        elif not answers and why != self._triton_error:
            log.warning("Triton accepts no load requests: %s", why)
        self._triton_answers, self._triton_error = answers, why

    # --- steps --------------------------------------------------------------------------------------------------

    def _may_start(self, name: str) -> bool:
        """Return True if this model may start its steps now.

        A model that may have ended Triton is loaded alone, so that no other model is suspected or delayed with it.
        """
        suspects = {other for other, retry in self._retries.items() if retry.is_suspect}
        return not self._jobs if name in suspects else suspects.isdisjoint(self._jobs)

    def _start(self, name: str, actions: list[Action], target: Target | None) -> None:
        log.info("model %s: %s (%s)", name, " → ".join(a.kind for a in actions), actions[0].reason)
        job = self._model_pool.submit(self._take, name, actions, target)
        self._jobs[name] = job
        job.add_done_callback(lambda _: self._wake.set())

    def _take(self, name: str, actions: list[Action], target: Target | None) -> None:
        for action in actions:
            if self._stopping.is_set():
                return
            if action.kind == "write" and target is not None:
                self._say(name, "downloading")
                folder = self._cache.model(target.record)
                files = self._builder.build(name, target.endpoint, target.record, folder)
                marker = OnDisk(name, target.wanted.url, target.record.id, target.wanted.recipe, files.instances)
                self._repository.write(marker, files.config, folder, files.linked, files.texts)
            elif action.kind == "load":
                self._say(name, "loading")
                self._load(name)
            elif action.kind == "unload":
                self._triton.unload(name)
            elif action.kind == "remove":
                self._repository.remove(name)

    def _load(self, name: str) -> None:
        self._triton.index()  # raises if Triton is away already, which is not this model's fault
        try:
            self._triton.load(name)
        except errors.BackendUnavailable as error:
            raise EndedWhileLoading(f"Triton exited while loading this model ({error.message})") from error

    def _say(self, name: str, doing: str) -> None:
        self._doing[name] = doing
        self._wake.set()

    def _finish_jobs(self) -> None:
        for name, job in list(self._jobs.items()):
            if not job.done():
                continue
            del self._jobs[name]
            self._doing.pop(name, None)
            error = job.exception()
            if error is None:
                self._retries.pop(name, None)
                self._hashes.pop(name, None)
                continue
            is_suspect = isinstance(error, EndedWhileLoading)
            if is_suspect or isinstance(error, errors.BackendUnavailable):
                self._triton_answers = False
            if isinstance(error, errors.BackendUnavailable):
                continue  # Triton is away, which is not this model's fault: no back-off once Triton is back
            if isinstance(error, errors.ContentChanged):
                self._hashes[name] = {"sha256": error.found}
            elif not isinstance(error, errors.GatewayError) and not is_suspect:
                log.error("model %s: a step failed unexpectedly", name, exc_info=error)
            count = self._retries[name].count + 1 if name in self._retries else 1
            delay, verdict = self._settings.delay(count), verdict_of(error)
            self._retries[name] = Retry(count, self._clock() + delay, verdict, is_suspect)
            log.warning("model %s failed, next try in %.0f s: %s", name, delay, verdict.reason)

    # --- status -------------------------------------------------------------------------------------------------

    def _accounts(
        self, desired: Desired, observed: Mapping[str, Observed], actions: tuple[Action, ...]
    ) -> Iterator[tuple[_Report, str]]:
        """Yield what is known of each model, and what is being done about it."""
        away = self._triton_error if self._is_refused else "Triton does not answer"
        for name, target in desired.targets.items():
            seen = observed.get(name)
            is_current = seen is not None and seen.recipe == target.wanted.recipe and not seen.is_damaged
            report = _Report(target.wanted.url, target.record.id, name, "loaded")
            if seen is not None and seen.state == "ready" and is_current:
                yield report, ""
            elif name in self._cold:
                yield report, "idle; the next request loads it"
            elif name in self._retries:
                # It stays failed, with its reason, until a retry succeeds: readers need that reason.
                why = self._retries[name].verdict
                yield replace(report, phase="pending", reason=why.reason, is_final=why.is_final), ""
            else:
                doing = self._doing.get(name, "" if self._triton_answers else away)
                yield replace(report, phase="pending"), doing
        for url, (model_id, why) in desired.unresolved.items():
            yield _Report(url, model_id, "", "pending", why.reason, why.is_final), ""
        for name, reason in {a.name: a.reason for a in actions if a.name not in desired.targets}.items():
            yield _Report(observed[name].url, "", name, "retiring"), reason

    def _pause(self) -> float:
        soonest = [self._settings.poll_s, self._settings.observe_s if self._triton_answers else _AWAY_S]
        now = self._clock()
        soonest.extend(max(0.05, retry.at - now) for retry in self._retries.values())
        return min(soonest)
