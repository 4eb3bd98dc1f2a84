"""Model sync: keeps one Triton at the serving Task. One per model repository, beside its Triton.

Follows the registry, fetches models, writes them aside, loads them, waits until they are ready, unloads what nobody
needs. Every model goes its own way: its failure is recorded with Triton's own reason, retried with growing delays and
harms no other. The loop itself never blocks: the registry and every model have threads of their own, so neither a
dead registry nor a slow download delays what Triton needs. It must never act on a desired state it could not read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from deploy.modelsync.build import Builder
from deploy.modelsync.client import AdminClient, IndexEntry, TritonAdmin, first_line
from deploy.modelsync.cores import available_cores, tuning_for
from deploy.modelsync.layout import Engine
from deploy.modelsync.model_config import Tuning
from deploy.modelsync.plan import Action, Grace, Observed, Situation, Wanted, dispensable, plan
from deploy.modelsync.pool import DaemonPool
from deploy.modelsync.repository import ModelRepository, OnDisk
from deploy.modelsync.stubs import count_stubs
from gateway.errors import (
    BackendRefused,
    BackendUnavailable,
    DeadlineExceeded,
    GatewayError,
    ModelNotReady,
    RegistryRefused,
    RegistryUnavailable,
    SpecFault,
)
from gateway.registry import ArtifactCache, Registry, SpecStore
from gateway.spec import EndpointSpec, ModelRecord, ServingSpec, decode, decode_model, triton_model_name
from gateway.triton.verdicts import Verdict
from gateway.triton.verdicts import config as verdict_config
from gateway.triton.verdicts import decode as decode_verdict

log = logging.getLogger("triton_gateway.sync")

State = Literal["pending", "downloading", "loading", "ready", "failed", "leaving"]

_AWAY_S = 0.2
"""How often a Triton that does not answer is looked at: it may be back, and empty."""
_SECTIONS = ("section endpoints", "section model_monitoring", "section model_monitoring_eps")


class ModelCache(Protocol):
    """Where model files come from; ``gateway.registry.cache.ArtifactCache`` is the real one."""

    def model(self, record: ModelRecord) -> Path:
        """Return an immutable folder with the model's files."""
        ...

    def learn(self, task: Mapping[str, Any]) -> None:
        """Take over what was just read from the registry about models' files."""
        ...

    def keep(self, models: Iterable[ModelRecord]) -> None:
        """Forget the files of all models but these."""
        ...


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Everything a model sync needs to know; times in seconds."""

    state_dir: Path
    repository: Path
    triton_grpc: str
    engine: Engine = "native"
    triton_key_file: Path | None = None
    """Holds the key of Triton's control APIs, where it was started with one."""
    cache_bytes: int = 20 << 30
    """Size above which downloads that nobody needs are deleted; 0: never."""
    unpacked_bytes: int = 64 << 30
    """Most that one model's archive may hold unpacked."""
    cache_dir: Path | None = None
    """Shared by all processes of this machine; ``state_dir/cache`` when not given."""
    poll_s: float = 2.0
    """How often the serving Task is looked at."""
    observe_s: float = 1.0
    """How often Triton is looked at, whatever ``poll_s``: a restarted Triton is empty and must not wait."""
    records_s: float = 30.0
    """How often model records are read again although the serving Task did not change."""
    retry_first_s: float = 2.0
    retry_most_s: float = 300.0
    load_timeout_s: float = 300.0
    downloads: int = 4
    grace: Grace = field(default_factory=Grace)
    tuning: Tuning = field(default_factory=lambda: tuning_for(available_cores()))

    @property
    def status_path(self) -> Path:
        """The file that tells what sync did: read by the gateway's status page and by ``doctor``."""
        return self.state_dir / "sync-status.json"


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One endpoint's model as published: ``since`` is when this state began."""

    url: str
    name: str
    model_id: str
    state: State
    reason: str = ""
    since: str = ""
    is_final: bool = False
    """Of one that failed: it would fail everywhere, whatever is tried; not so what could not be fetched."""


@dataclass(frozen=True, slots=True)
class Target:
    """A wanted model with what it takes to build it."""

    wanted: Wanted
    endpoint: EndpointSpec
    record: ModelRecord


@dataclass(frozen=True, slots=True)
class Desired:
    """What the serving Task asks for, as far as it could be read."""

    revision: str = ""
    targets: Mapping[str, Target] = field(default_factory=dict)
    unresolved: Mapping[str, tuple[str, Verdict]] = field(default_factory=dict)
    """Endpoint url → (model id, why no model can be named for it)."""
    held_urls: frozenset[str] = frozenset()
    is_readable: bool = True


AutoUpdate = Callable[[Mapping[str, Any]], bool]
"""Looks at the serving Task, brings the versions of auto-update rules up to date, says whether the Task changed."""


@dataclass(slots=True)
class _Retry:
    """Failures in a row of one thing, and when it may be tried again."""

    count: int = 0
    at: float = 0.0
    is_suspect: bool = False
    """Triton ended while it loaded this model: perhaps because of it."""


class _EndedWhileLoading(Exception):
    """Triton answered, was told to load a model, and is away."""


class Follower:
    """Reads the registry and keeps the last answers: the desired state's source. Runs in one thread at a time."""

    def __init__(self, registry: Registry, store: SpecStore, settings: SyncSettings, recipe: Callable[[], str],
                 clock: Callable[[], float], auto_update: AutoUpdate | None = None,
                 learn: Callable[[Mapping[str, Any]], None] = lambda _task: None) -> None:  # fmt: skip
        self._learn = learn
        self._registry = registry
        self._auto_update = auto_update
        self._store = store
        self._settings = settings
        self._recipe = recipe
        self._clock = clock
        self._marker: str | None = None
        self._task: Mapping[str, Any] | None = None
        self._spec = ServingSpec("", "")
        self._records: dict[str, Mapping[str, Any]] = {}
        self._problems: dict[str, Verdict] = {}
        self._retries: dict[str, _Retry] = {}
        self._records_read_at = 0.0

    def remembered(self) -> Desired | None:
        """Return the last desired state stored on disk, for a start without the registry."""
        stored = self._store.load()
        if stored is None:
            return None
        self._task, models = stored
        self._spec = decode(self._task)
        self._records = dict(models)
        return self._desired()

    def poll(self) -> Desired | None:
        """Return the desired state when something may have changed, else None. Raises the registry's errors."""
        marker = self._registry.marker()
        now = self._clock()
        has_changed = marker != self._marker
        if has_changed:
            self._task = self._registry.task()
            self._spec = decode(self._task)
            self._retries.clear()
        if self._task is None:
            return None
        if self._auto_update is not None and self._auto_update(self._task):
            marker, has_changed = self._registry.marker(), True
            self._task = self._registry.task()
            self._spec = decode(self._task)
        if has_changed:
            self._learn(self._task)
        ids = sorted({e.model_id for e in self._spec.endpoints.values() if e.engine == "triton" and e.model_id})
        read_all = has_changed or now - self._records_read_at >= self._settings.records_s
        due = [i for i in ids if read_all or (i in self._problems and now >= self._retries.get(i, _Retry()).at)]
        if not due and not has_changed:
            return None
        found: Mapping[str, Mapping[str, Any]] = {}
        with contextlib.suppress(RegistryUnavailable, RegistryRefused):  # each is asked for alone, which says why
            found = self._registry.records(due)
        for model_id in due:
            self._read(model_id, now, found.get(model_id))
        if read_all:
            self._records_read_at = now
        self._records = {i: r for i, r in self._records.items() if i in ids}
        self._problems = {i: p for i, p in self._problems.items() if i in ids}
        self._retries = {i: r for i, r in self._retries.items() if i in ids}
        self._marker = marker
        with contextlib.suppress(OSError):
            self._store.save(self._task, self._records)
        return self._desired()

    def next_retry(self) -> float:
        """Return when the next unusable record is due to be read again."""
        return min((r.at for r in self._retries.values()), default=math.inf)

    def _read(self, model_id: str, now: float, record: Mapping[str, Any] | None) -> None:
        try:
            record = self._registry.model(model_id) if record is None else record
            model = decode_model(record)
            problem: Verdict | None = None
            if not model.has_data:
                problem = Verdict(f"model {model_id} ({model.name}) has no data: its upload did not finish; upload it "
                                  "again: clearml-serving model upload …", is_final=True)  # fmt: skip
            else:
                self._records[model_id] = record
        except RegistryUnavailable as error:
            # The record known from before stays valid: models do not disappear because the registry does.
            problem = None if model_id in self._records else Verdict(str(error), is_final=False)
        except (RegistryRefused, KeyError, TypeError, ValueError) as error:
            problem = Verdict(f"model {model_id}: {first_line(str(error))}", is_final=True)
            self._records.pop(model_id, None)
        if problem is not None:
            retry = self._retries.setdefault(model_id, _Retry())
            retry.count += 1
            retry.at = now + _delay(retry.count, self._settings)
            self._problems[model_id] = problem
        else:
            self._problems.pop(model_id, None)
            self._retries.pop(model_id, None)

    def _desired(self) -> Desired:
        spec = self._spec
        targets: dict[str, Target] = {}
        unresolved: dict[str, tuple[str, Verdict]] = {}
        for url, endpoint in spec.endpoints.items():
            if endpoint.engine != "triton":
                continue
            if not endpoint.model_id:
                why = "the endpoint names no model: add it with --model-id or --name/--project"
                unresolved[url] = ("", Verdict(why, is_final=True))
            elif endpoint.model_id in self._problems:
                unresolved[url] = (endpoint.model_id, self._problems[endpoint.model_id])
            elif endpoint.model_id not in self._records:
                why = f"the record of model {endpoint.model_id} was not read yet"
                unresolved[url] = (endpoint.model_id, Verdict(why, is_final=False))
            else:
                record = decode_model(self._records[endpoint.model_id])
                name = triton_model_name(endpoint, record)
                targets[name] = Target(Wanted(name, url, self._recipe()), endpoint, record)
        return Desired(
            revision=spec.revision,
            targets=targets,
            unresolved=unresolved,
            held_urls=frozenset(unresolved) | _faulty_urls(spec),
            is_readable=not any(f.subject in _SECTIONS for f in spec.faults),
        )


class ModelSync:
    """The reconciler. ``step`` is one round; ``run`` repeats it until it is told to stop."""

    def __init__(self, settings: SyncSettings, registry: Registry, *, cache: ModelCache, store: SpecStore,
                 triton: TritonAdmin, repository: ModelRepository, clock: Callable[[], float] = time.monotonic,
                 wall: Callable[[], float] = time.time, pool: Executor | None = None,
                 auto_update: AutoUpdate | None = None,
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
        self._follower = Follower(
            registry, store, settings, lambda: self._builder.recipe, clock, auto_update, cache.learn
        )
        # The registry is read in a thread of its own: waiting for a dead one must not keep models from being loaded.
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
        self._retries: dict[str, _Retry] = {}
        self._dispensable_since: dict[str, float] = {}
        self._status: dict[tuple[str, str], ModelStatus] = {}
        self._status_lock = threading.Lock()
        self._published = ""
        self._triton_answers = False
        self._triton_error = ""
        self._is_refused = False
        self.last_round = clock()
        """When the last round ended, by the clock that was given: a loop that stands still is not alive."""

    @property
    def sees_stubs(self) -> bool:
        """True once a stub process of this repository was seen: only then can a missing one be noticed."""
        return self._sees_stubs

    def loaded(self) -> frozenset[tuple[str, str]]:
        """Return url and model id of every version that Triton has ready. Safe from any thread."""
        with self._status_lock:
            return frozenset((one.url, one.model_id) for one in self._status.values() if one.state == "ready")

    def open(self) -> None:
        """Take the repository and what was known before; a start needs no registry. Raises ``ControlError``."""
        self._repository.open()
        self._desired = self._follower.remembered()
        if self._desired is not None:
            log.info("sync starts from the last good state on disk revision=%s", self._desired.revision)

    def wake(self) -> None:
        """Run a round at once, for instance because Triton was restarted. Safe from any thread."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Keep Triton at the serving Task until ``stop`` is set; running steps are given up cleanly."""
        self.open()
        try:
            while not stop.is_set():
                try:
                    self.step()
                except Exception:
                    log.exception("a round of model sync failed; the next one starts anew")
                self.last_round = self._clock()
                with contextlib.suppress(OSError):  # a sign of life for who has no port to ask
                    os.utime(self._settings.status_path)
                # A set stop event is seen within this; a finished job or a restarted Triton wakes the loop at once.
                for _ in range(10):
                    if stop.is_set() or self._wake.wait(self._pause() / 10):
                        break
                self._wake.clear()
        finally:
            self.close()

    def close(self) -> None:
        """Give up running steps within seconds, and the repository back."""
        self._stopping.set()
        self._triton.close()  # ends a load that may take minutes
        self._registry_pool.shutdown(wait=False, cancel_futures=True)
        self._model_pool.shutdown(wait=True, cancel_futures=True)
        self._repository.close()

    def step(self) -> tuple[Action, ...]:
        """Do one round: take what was read, observe, plan, start the steps, publish the status."""
        self._follow()
        self._finish_jobs()
        desired = self._desired or Desired(is_readable=False)
        observed = self._observe(desired)
        wanted = {name: target.wanted for name, target in desired.targets.items()}
        now = self._clock()
        situation = Situation(
            triton_answers=self._triton_answers,
            holds_all=not desired.is_readable,
            held_urls=desired.held_urls,
            busy=frozenset(self._jobs),
            retry_in={name: retry.at - now for name, retry in self._retries.items()},
            grace=self._settings.grace,
        )
        gone = dispensable(wanted, observed, situation)
        self._dispensable_since = {name: self._dispensable_since.get(name, now) for name in gone}
        situation = replace(situation, unwanted_for={n: now - at for n, at in self._dispensable_since.items()})
        actions = plan(wanted, observed, situation)
        self._note(desired, observed, actions)
        for name in dict.fromkeys(a.name for a in actions if a.kind != "keep"):
            if self._may_start(name):
                self._start(name, [a for a in actions if a.name == name], desired.targets.get(name))
        self._publish(desired)
        return actions

    def status(self) -> dict[str, Any]:
        """Return what ``sync-status.json`` holds."""
        desired = self._desired or Desired()
        with self._status_lock:
            models = sorted(self._status.values(), key=lambda s: (s.url, s.name))
        return {
            "revision": desired.revision,
            "triton": {
                "address": self._settings.triton_grpc, "answers": self._triton_answers or self._is_refused,
                "error": self._triton_error,
            },
            "registry": {
                "last_contact": _iso(self._last_contact) if self._last_contact else None,
                "error": self._registry_error,
            },
            "models": [
                {"name": m.name, "endpoint": m.url, "model_id": m.model_id, "state": m.state, "reason": m.reason,
                 "is_final": m.is_final, "since": m.since} for m in models
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
        self._next_poll = min(now + self._settings.poll_s, self._follower.next_retry())
        self._registry_failures += 1
        try:
            desired = following.result()
        except GatewayError as error:
            text = str(error)
            self._next_poll = now + min(self._settings.poll_s, _delay(self._registry_failures, self._settings))
            if text != self._registry_error:
                log.warning("registry not readable, what is loaded stays: %s", text)
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
            self._retries.clear()  # a change may be the repair: everything is tried again at once
        self._desired = desired
        self._model_pool.submit(self._cache.keep, [target.record for target in desired.targets.values()])

    # --- observation --------------------------------------------------------------------------------------------

    def _observe(self, desired: Desired) -> dict[str, Observed]:
        on_disk = self._repository.models()
        index: dict[str, IndexEntry] = {}
        called: dict[str, float] = {}
        try:
            index = self._triton.index()
            if set(on_disk) - set(desired.targets):
                called = self._triton.last_inference()
            self._is_refused = False
            self._set_triton(answers=True)
        except GatewayError as error:
            self._is_refused = isinstance(error, BackendRefused)
            self._set_triton(answers=False, why=f"{error.message}{f' ({error.hint})' if error.hint else ''}")
            if self._is_refused:
                # It answers, but not to us: nothing can be changed. What it holds anybody may ask.
                index = {name: IndexEntry(name, "ready") for name in desired.targets if self._is_held(name)}
        damaged = self._damaged(on_disk, index)
        seen: dict[str, Observed] = {}
        for name in set(on_disk) | set(desired.targets):
            disk, entry, last = on_disk.get(name), index.get(name), called.get(name, 0.0)
            seen[name] = Observed(
                name=name,
                url=disk.url if disk else desired.targets[name].wanted.url,
                recipe=disk.recipe if disk else None,
                state=entry.state if entry else "absent",
                idle_s=self._wall() - last if last else None,
                is_damaged=name in damaged,
            )
        return {n: o for n, o in seen.items() if o.recipe is not None or o.state != "absent"}

    def _is_held(self, name: str) -> bool:
        with contextlib.suppress(GatewayError):
            return self._triton.is_ready(name)
        return False

    def _damaged(self, on_disk: Mapping[str, OnDisk], index: Mapping[str, IndexEntry]) -> set[str]:
        """Return the models Triton calls ready although fewer processes run them than should, twice in a row."""
        if self._settings.engine != "python":
            return set()
        running = self._stubs(self._repository.root)
        self._sees_stubs = self._sees_stubs or bool(running)
        short = {
            name for name, model in on_disk.items()
            if name in index and index[name].state == "ready" and name not in self._jobs
            and running.get(name, 0) < model.instances
        } if self._sees_stubs else set()  # fmt: skip
        both, self._short_of_stubs = short & self._short_of_stubs, short
        return both

    def _set_triton(self, *, answers: bool, why: str = "") -> None:
        if answers and not self._triton_answers:
            log.info("Triton answers at %s", self._settings.triton_grpc)
            # A new one does not know why models are missing.
            for retry in self._retries.values():
                if not retry.is_suspect:
                    retry.at = min(retry.at, self._clock())
        elif not answers and why != self._triton_error:
            log.warning("Triton cannot be told what to load: %s", why)
        self._triton_answers, self._triton_error = answers, why

    # --- steps --------------------------------------------------------------------------------------------------

    def _may_start(self, name: str) -> bool:
        """Whether it is this model's turn: one that Triton may have ended of is loaded alone, so that no other model is
        suspected with it, nor waits for its next time.
        """
        suspects = {other for other, retry in self._retries.items() if retry.is_suspect}
        return not self._jobs if name in suspects else suspects.isdisjoint(self._jobs)

    def _start(self, name: str, actions: list[Action], target: Target | None) -> None:
        log.info("model %s: %s (%s)", name, " → ".join(a.kind for a in actions), actions[0].reason)
        job = self._model_pool.submit(self._perform, name, actions, target)
        self._jobs[name] = job
        job.add_done_callback(lambda _: self._wake.set())

    def _perform(self, name: str, actions: list[Action], target: Target | None) -> None:
        try:
            self._take(name, actions, target)
        except (BackendUnavailable, _EndedWhileLoading):
            raise
        except Exception as error:
            if target is not None:
                self._tell(name, target, _verdict(error))
            raise

    def _tell(self, name: str, target: Target, verdict: Verdict) -> None:
        """Let gateways read in Triton why it does not have the model; what is loaded under the name stays."""
        with contextlib.suppress(GatewayError):
            entry = self._triton.index().get(name, IndexEntry(name, "absent"))
            told = decode_verdict(entry.reason)
            # What Triton refuses itself it tells itself, unless it never got so far as to remember it.
            if entry.state not in ("absent", "failed") or (entry.state == "failed" and told in (None, verdict)):
                return
            disk = self._repository.models().get(name)
            if disk is not None and disk.recipe and not verdict.is_final:
                return  # an earlier build that may be all there is
            files = {"1/reason.txt": str(verdict)}
            marker = OnDisk(name, target.wanted.url, target.record.id, recipe="")
            self._repository.write(marker, verdict_config(name, verdict), self._repository.root, {}, files)
            self._triton.load(name)

    def _take(self, name: str, actions: list[Action], target: Target | None) -> None:
        for action in actions:
            if self._stopping.is_set():
                return
            if action.kind == "write" and target is not None:
                self._progress(target, "downloading")
                folder = self._cache.model(target.record)
                files = self._builder.build(name, target.endpoint, target.record, folder)
                self._repository.write(
                    OnDisk(name, target.wanted.url, target.record.id, target.wanted.recipe, files.instances),
                    files.config, folder, files.linked, files.texts,
                )  # fmt: skip
            elif action.kind == "load":
                if target is not None:
                    self._progress(target, "loading")
                self._load(name)
            elif action.kind == "wait_ready":
                self._wait(lambda: self._triton.is_ready(name), f"{name} was loaded but does not become ready")
            elif action.kind == "unload":
                self._triton.unload(name)
                self._wait(lambda: self._is_unloaded(name), f"{name} does not unload: it still answers requests")
            elif action.kind == "remove":
                self._repository.remove(name)

    def _load(self, name: str) -> None:
        self._triton.index()  # if it is away already, that says nothing about this model
        try:
            self._triton.load(name)
        except BackendUnavailable as error:
            raise _EndedWhileLoading(f"Triton ended while it loaded this model ({error.message})") from error

    def _is_unloaded(self, name: str) -> bool:
        entry = self._triton.index().get(name)
        return entry is None or entry.state in ("absent", "failed")

    def _wait(self, holds: Callable[[], bool], otherwise: str) -> None:
        until = self._clock() + min(60.0, self._settings.load_timeout_s)
        while not holds():
            if self._clock() >= until:
                raise ModelNotReady(otherwise)
            if self._stopping.wait(0.05):
                return

    def _finish_jobs(self) -> None:
        for name, job in list(self._jobs.items()):
            if not job.done():
                continue
            del self._jobs[name]
            target = self._desired.targets.get(name) if self._desired else None
            try:
                job.result()
            except _EndedWhileLoading as error:
                self._triton_answers = False
                self._failed(name, target, Verdict(str(error), is_final=False), is_suspect=True)
                continue
            except BackendUnavailable as error:
                # Triton is away, which says nothing about this model: no delay once it is back.
                self._triton_answers = False
                if target is not None:
                    self._set(target, "pending", str(error))
                continue
            except GatewayError as error:
                self._failed(name, target, _verdict(error))
                continue
            except Exception as error:
                log.exception("model %s: a step failed unexpectedly", name)
                self._failed(name, target, _verdict(error))
                continue
            self._retries.pop(name, None)

    def _failed(self, name: str, target: Target | None, verdict: Verdict, *, is_suspect: bool = False) -> None:
        retry = self._retries.setdefault(name, _Retry())
        retry.count += 1
        retry.is_suspect = is_suspect
        delay = _delay(retry.count, self._settings)
        retry.at = self._clock() + delay
        log.warning("model %s failed, next try in %.0f s: %s", name, delay, verdict.reason)
        if target is not None:
            self._set(target, "failed", verdict.reason, is_final=verdict.is_final)

    # --- status -------------------------------------------------------------------------------------------------

    def _note(self, desired: Desired, observed: Mapping[str, Observed], actions: tuple[Action, ...]) -> None:
        for name, target in desired.targets.items():
            seen = observed.get(name)
            if name in self._jobs:
                continue
            if (
                seen is not None
                and seen.state == "ready"
                and seen.recipe == target.wanted.recipe
                and not seen.is_damaged
            ):
                self._set(target, "ready")
            elif name not in self._retries:
                why = self._triton_error if self._is_refused else "Triton does not answer"
                self._set(target, "pending", "" if self._triton_answers else why)
        for url, (model_id, verdict) in desired.unresolved.items():
            self._set_entry(ModelStatus(url, "", model_id, "failed", verdict.reason, is_final=verdict.is_final))
        leaving = {a.name: a.reason for a in actions if a.name not in desired.targets and observed[a.name].recipe != ""}
        for name, reason in leaving.items():
            self._set_entry(ModelStatus(observed[name].url, name, "", "leaving", reason))
        current = {(t.wanted.url, n) for n, t in desired.targets.items()}
        current |= {(url, "") for url in desired.unresolved} | {(observed[n].url, n) for n in leaving}
        with self._status_lock:
            self._status = {key: status for key, status in self._status.items() if key in current}

    def _progress(self, target: Target, state: State) -> None:
        # A model that failed stays failed, with its reason, until a retry succeeds: that is what a reader needs.
        if target.wanted.name not in self._retries:
            self._set(target, state)

    def _set(self, target: Target, state: State, reason: str = "", *, is_final: bool = False) -> None:
        wanted = target.wanted
        self._set_entry(ModelStatus(wanted.url, wanted.name, target.record.id, state, reason, is_final=is_final))

    def _set_entry(self, status: ModelStatus) -> None:
        key = (status.url, status.name)
        with self._status_lock:
            old = self._status.get(key)
            if old is not None and replace(old, since="") == status:
                return
            self._status[key] = replace(status, since=_iso(self._wall()))
        if status.state in ("ready", "failed") and (old is None or old.state != status.state):
            log.info("endpoint %s model %s is %s%s", status.url, status.name or status.model_id, status.state,
                     f": {status.reason}" if status.reason else "")  # fmt: skip
        self._wake.set()

    def _publish(self, desired: Desired) -> None:
        del desired
        text = json.dumps(self.status(), indent=1)
        if text == self._published:
            return
        path = self._settings.status_path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            with os.fdopen(handle, "w") as out:
                out.write(text)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except OSError as error:
            log.warning("cannot write %s: %s", path, error)
            return
        self._published = text

    def _pause(self) -> float:
        soonest = [self._settings.poll_s, self._settings.observe_s if self._triton_answers else _AWAY_S]
        now = self._clock()
        soonest.extend(max(0.05, retry.at - now) for retry in self._retries.values())
        return min(soonest)


def run_sync(settings: SyncSettings, registry: Registry, stop: threading.Event, *,
             started: Callable[[ModelSync], None] | None = None,
             auto_update: AutoUpdate | None = None) -> None:  # fmt: skip
    """Run model sync until ``stop`` is set: the composition root of ``triton-gateway sync`` and of ``up``.

    ``started`` receives the ModelSync, whose ``wake`` belongs into the launcher's ``on_restart``. Without
    ``auto_update`` the versions of auto-update rules are only read.
    """
    client = AdminClient(
        settings.triton_grpc, key_file=settings.triton_key_file, load_timeout_s=settings.load_timeout_s
    )
    try:
        sync = ModelSync(
            settings,
            registry,
            cache=ArtifactCache(
                settings.cache_dir or settings.state_dir / "cache",
                registry,
                max_bytes=settings.cache_bytes,
                max_unpacked=settings.unpacked_bytes,
                name="sync",
            ),
            store=SpecStore(settings.state_dir / "sync"),
            triton=client,
            repository=ModelRepository(settings.repository),
            auto_update=auto_update,
        )
        if started is not None:
            started(sync)
        sync.run(stop)
    finally:
        client.close()


def read_status(path: Path) -> dict[str, Any] | None:
    """Return the published status, or None when there is none yet."""
    try:
        status: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return status


def _verdict(error: Exception) -> Verdict:
    """Say why a model failed. What Triton refused, or cannot be built, would fail everywhere; what could not be fetched
    (the file store is away, a file is damaged, the disk is full) is loaded where it was fetched before.
    """
    if not isinstance(error, GatewayError):
        return Verdict(f"internal error: {error!r}", is_final=True)
    reason = f"{error}" + (f" ({error.hint})" if error.hint else "")
    return Verdict(reason, is_final=isinstance(error, (SpecFault, ModelNotReady, DeadlineExceeded)))


def _faulty_urls(spec: ServingSpec) -> frozenset[str]:
    return frozenset(_urls_of_faults(spec))


def _urls_of_faults(spec: ServingSpec) -> Iterator[str]:
    for fault in spec.faults:
        if fault.subject.startswith("endpoint "):
            yield fault.subject.removeprefix("endpoint ").strip("/")


def _delay(failures: int, settings: SyncSettings) -> float:
    return float(min(settings.retry_most_s, settings.retry_first_s * 2 ** min(failures - 1, 30)))


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
