"""The composition root of one worker: names the concrete classes, wires them, starts and stops them.

``gateway.__main__`` serves what ``create_app`` returns; tests call ``Gateway`` with fakes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway import logs, workers
from gateway.admin.feedback import FeedbackRoute
from gateway.admin.models import ModelRoutes
from gateway.admin.ops import build_ops, product_version
from gateway.batching.entries import BatchLimits
from gateway.batching.pressure import Pressure
from gateway.callers.access import Access
from gateway.callers.following import Following as FollowingCallers
from gateway.callers.siblings import follow_siblings
from gateway.callers.sources import shared_quotas_of, sources_of
from gateway.control.assemble import Assembler
from gateway.control.hooks import HookBuilder
from gateway.control.load_requests import LoadRequests
from gateway.control.reconcile import Reconciler
from gateway.control.reports import Reports
from gateway.control.threads import ControlThreads, run_in
from gateway.control.tritons import Tritons
from gateway.errors import EndpointNotFound, GatewayError, VersionNotFound
from gateway.grpc.server import RpcServer, credentials
from gateway.handlers.endpoint import Endpoint
from gateway.handlers.shadow import Mirror
from gateway.health import Health, listed
from gateway.http.addresses import LARGEST_BYTES, Addresses
from gateway.http.bridge import run
from gateway.http.connections import Connections, room_for_connections
from gateway.http.exchange import Exchange
from gateway.http.gate import Gate, refusal
from gateway.http.problems import FAILURES
from gateway.metrics import catalog
from gateway.metrics.drift import References
from gateway.metrics.observer import Observer
from gateway.metrics.publisher import Publisher
from gateway.metrics.views import Views
from gateway.metrics.workers import Parent
from gateway.outcome import Serving, in_task
from gateway.parent_death import end_with_parent
from gateway.path.admission import Permits
from gateway.path.call import InternalCall
from gateway.path.rights import FEEDBACK_PATH, redacted_for
from gateway.path.routing import RoutingTable
from gateway.path.serve import DataPlane, serve
from gateway.payloads.log import payload_log
from gateway.registry.cache import ArtifactCache, SpecStore
from gateway.registry.clearml import ClearMLRegistry
from gateway.registry.port import Registry
from gateway.settings import LOCAL_NAMES, Settings, grpc_options, trace_protocol
from gateway.spec import normalize_url
from gateway.triton.addresses import http_beside
from gateway.triton.backend import TritonBackend
from gateway.triton.port import Backend
from gateway.triton.tls import in_folder

if TYPE_CHECKING:
    from gateway.spans import Spans

_log = logging.getLogger("triton_gateway")

_SETTLE_S: Final = 5.0
"""How long a starting worker waits for what it can serve soon, before it takes requests."""
_JOIN_S: Final = 60.0
"""The same of a worker that is started while others serve."""
_COLD_S: Final = 30.0
_SAMPLE_S: Final = 0.05
_SHADOW_S: Final = 10.0
_WORK_S: Final = 1.0
_END_S: Final = 5.0
_SWITCH_S: Final = 0.0005

MakeBackend = Callable[[str], Backend]


class Gateway:
    """One worker: it serves inference itself and leaves the rest to FastAPI.

    ``registry`` and ``make_backend(address)`` are its two dependencies; with fakes of both, a test runs a
    complete gateway. ``records_period``: seconds between reads of the model records. ``is_whole_process``: nothing else
    runs in this process, so its garbage collector may be tuned. ``settle``: seconds that it waits, before it takes
    requests, for what was served before.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        registry: Registry,
        make_backend: MakeBackend,
        link: workers.Link | None = None,
        records_period: float = 30.0,
        is_whole_process: bool = False,
        settle: float = _SETTLE_S,
        spans: Spans | None = None,
        local_names: Collection[str] | None = None,
    ) -> None:
        self._settings = settings
        self._settle_s = settle
        self._parent = 0 if link is None else link.parent_pid
        self._registry = registry
        self._records_period = records_period
        self._is_whole_process = is_whole_process
        self._tritons = Tritons(make_backend)
        self.observer = Observer(failures=FAILURES)
        self.publisher = Publisher(
            self.observer, None if link is None else Parent(link.parent)
        )  # fmt: skip
        self.health = Health(has_been_ready=link is not None and link.joins)
        self.table = RoutingTable()
        self._prefix = f"/{settings.serve_path.strip('/')}/"
        self._spans = spans
        self.permits = Permits(
            settings.max_in_flight, settings.max_bytes_in_flight, Pressure(settings.work_limit)
        )  # fmt: skip
        self._callers = self._known_callers()
        access = None if self._callers is None else self._callers.access
        self.plane = DataPlane(
            self.table, self.permits, self.observer, self.health, timeout=settings.request_timeout, spans=spans,
            access_log=settings.access_log, access=access, key_header=settings.routing_key,
        )  # fmt: skip
        self._mirror = Mirror(self.observer, self.permits.mirror, timeout=min(settings.request_timeout, _SHADOW_S))
        self.plane.subscribe(self._mirror.answered)
        self._payloads = payload_log(
            settings, lambda outcome, records: self.observer.count(catalog.PAYLOADS, outcome, by=records)
        )
        self._gate = Gate(access, local_names)
        self._addresses = Addresses(self.table, prefix=self._prefix, max_body_bytes=settings.max_body_bytes)
        statistics = self._statistics = partial(self.publisher.ask, Views.statistics)
        self._models = ModelRoutes(
            self.table, statistics, started=int(time.time()), version=product_version(),
            most=settings.max_in_flight, access=access,
        )  # fmt: skip
        self._feedback = FeedbackRoute(self.table, self.permits, self.observer.feedback.add, access)
        self.connections = Connections(
            keep_alive=settings.keep_alive, age=settings.connection_age,
            # Routes that read a body answer 408 themselves, in their own form: this is for what nobody reads.
            body_timeout=settings.request_timeout + 1,
            max_open=settings.max_connections or room_for_connections(2 if settings.grpc_port else 1),
            count=partial(self.observer.count, catalog.ENDED_CONNECTIONS),
        )  # fmt: skip
        self.permits.retry_after = lambda: math.ceil(self.connections.retry_after())
        self._rpc: RpcServer | None = None
        self._rpc_leaving: asyncio.Task[None] | None = None
        self._reconciler: Reconciler | None = None
        self._control: ControlThreads  # while it runs
        self._reports: Reports  # while it runs
        self._ops = build_ops(
            health=self.health, status=self._status, lately=self._lately,
            metrics=lambda accept: self.publisher.ask(Views.metrics, accept),
            lineage=self._lineage, learned=self._learned,
            serve_prefix=self._prefix,
        )  # fmt: skip

    def answer(self, exchange: Exchange) -> Serving:
        """Answer one request: see ``http.core.Answer``."""
        reading = self._addresses.at(exchange.path, exchange.query)
        if reading is not None and self._gate.is_for_us(exchange.headers):
            return serve(exchange, reading, self.plane)
        return self._in_task(exchange)

    async def _in_task(self, exchange: Exchange) -> None:
        await in_task(self._operate(exchange))

    async def _operate(self, exchange: Exchange) -> None:
        """Answer a request that is not for inference."""
        exchange.open()
        caller = None
        try:
            caller = self._gate.caller_of(exchange)
            if exchange.path == FEEDBACK_PATH:
                reply = await self._feedback.answer(exchange, caller)
            elif self._models.takes(exchange.path):
                reply = await self._models.answer(exchange, caller)
            else:
                await run(self._ops, exchange)
                return
        except GatewayError as error:
            reply = refusal(exchange, redacted_for(caller, error))
        own = (b"x-request-id", exchange.request_id.encode())
        exchange.reply(reply.status, [*reply.headers, own], reply.content)

    def _known_callers(self) -> FollowingCallers | None:
        """Return the known callers; None if callers need not authenticate."""
        settings = self._settings
        if not settings.knows_callers:
            return None
        access = Access(
            allows_anonymous=settings.allow_anonymous, count=partial(self.observer.count, catalog.REFUSED_CALLERS),
            over=self.observer.over_quota, used=self.observer.used,
        )  # fmt: skip
        return FollowingCallers(
            access, sources_of(settings),
            lambda name, is_good: self.observer.publish(catalog.CALLERS_SOURCE, is_good, name),
        )  # fmt: skip

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the serving Task while the context is open."""
        settings = self._settings
        self.observer.publish(catalog.BUILD_INFO, 1, product_version())
        self.health.waits_for_tritons = settings.cold_start_timeout > 0
        state_dir = settings.state_dir
        threads = ThreadPoolExecutor(8, thread_name_prefix="work")
        control = self._control = ControlThreads()
        self._reports = Reports(self._registry.reports, control.registry)
        cache = ArtifactCache(state_dir / "cache", self._registry)
        assembler = Assembler(
            reports=self._reports,
            cache=cache,
            backend_for=self._tritons.get,
            observer=self.observer,
            keep_place=self.permits.keep,
            limits=BatchLimits(
                settings.max_batch_rows,
                settings.max_batch_tokens,
                settings.max_batches_in_flight,
                self.permits.pressure,
            ),
            word_cache_words=settings.word_cache_words,
            hooks=HookBuilder(
                self._send_request,
                threads,
                processes=settings.max_hook_processes,
                start=settings.ready_timeout,
            ),
            ready_timeout=settings.ready_timeout,
            threads=threads,
            control=control,
        )
        self._reconciler = reconciler = Reconciler(
            settings,
            records_period=self._records_period,
            registry=self._registry,
            store=SpecStore(state_dir / "gateway"),
            cache=cache,
            assembler=assembler,
            table=self.table,
            health=self.health,
            observer=self.observer,
            tritons=self._tritons,
            references=References(state_dir / "references"),
            mirror=self._mirror,
            threads=control,
            learn=self._callers.learn if self._callers is not None else None,
        )
        background = [
            asyncio.create_task(work)
            for work in (
                follow_siblings(settings.replicas, self._are_gateways), self.publisher.run(), self._sample_waits(),
                self._publish_work(),
            )
        ]  # fmt: skip
        if self._callers is not None:
            await self._callers.look()
            background.append(asyncio.create_task(self._callers.run()))
            self.plane.subscribe(self._callers.access.ended)
            shared = self._callers.access.shared_quotas = shared_quotas_of(
                settings, lambda address, is_good: self.observer.publish(catalog.QUOTA_STORE, is_good, address)
            )
            if shared is not None:
                background.append(asyncio.create_task(shared.run()))
        if self._payloads is not None:
            background.append(asyncio.create_task(self._payloads.run()))
            self.plane.keeps_pieces = True
            self.plane.subscribe(self._payloads.answered)
        loop = asyncio.create_task(reconciler.run(), name="reconcile")
        rpc: RpcServer | None = None
        try:
            await self._settle(reconciler)
            if not self.health.is_leaving:
                rpc = self._rpc = await self._start_rpc()
            if self._is_whole_process:
                _calm_garbage_collection()
                _share_the_interpreter()
            yield
        finally:
            if rpc is not None:
                await rpc.stop(settings.drain_timeout)
            self.health.is_draining = True
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
            await self._mirror.close()
            await reconciler.close()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            self.publisher.close()
            if self._payloads is not None:
                await self._payloads.close()
            await self._tritons.close()
            threads.shutdown(wait=False, cancel_futures=True)
            control.close()
            if self._spans is not None:
                await asyncio.to_thread(self._spans.close)
            if self._is_whole_process:
                # Python waits for threads at exit, and user code may hang in one.
                threading.Thread(target=_end_process, daemon=True).start()

    async def _start_rpc(self) -> RpcServer | None:
        settings = self._settings
        if not settings.grpc_port:
            return None
        rpc = RpcServer(
            self.plane, self.table, self.health, self._statistics, version=product_version(),
            max_message_bytes=settings.max_body_bytes or LARGEST_BYTES, connection_age=settings.connection_age,
            max_connections=self.connections.max_open,
        )  # fmt: skip
        tls = credentials(*settings.tls_files) if settings.tls else None
        await rpc.start(settings.host, settings.grpc_port, tls)
        return rpc

    async def _settle(self, reconciler: Reconciler) -> None:
        """Wait for the endpoints that are ready soon, so that a worker that joins others refuses no requests for them.

        The wait is bounded: health and metrics must answer even if the registry is away or a model takes minutes. If
        other workers serve, they answer these meanwhile, so the wait is longer.
        """
        loop = asyncio.get_running_loop()
        told_at, until = loop.time() + _SETTLE_S, loop.time() + self._settle_s
        while not (self.health.is_leaving or self._is_orphan()):
            missing = reconciler.versions.coming() if self.health.first_sync_done else ["the serving Task"]
            if not missing:
                return
            if loop.time() >= until:
                _log.warning("takes requests from now on, and still lacks %s", listed(missing))
                return
            if loop.time() >= told_at:
                told_at = until
                _log.info("leaves requests to the other workers, because it still lacks %s", listed(missing))
            await asyncio.sleep(0.02)

    def _status(self) -> dict[str, Any]:
        assert self._reconciler is not None  # noqa: S101 - routes exist only while `running` is open
        found = self._reconciler.status()
        if self._callers is not None:
            found |= {"callers": self._callers.status()}
        return found if self._payloads is None else {**found, "payload_log": self._payloads.status()}

    async def _lately(self, curves_of: Sequence[str]) -> dict[str, Any]:
        found = await self.publisher.ask(Views.lately, curves_of)
        return {**found, **await self._reports.judged()}

    def _learned(self, url: str) -> dict[str, Any] | None:
        if url not in self.table.current.endpoints:
            return None
        words, mean = self.observer.watch.learned(url)
        return {"url": url, "words": words, "mean": mean}

    async def _lineage(self, url: str) -> dict[str, Any] | None:
        endpoint = self.table.current.endpoints.get(url)
        if endpoint is None:
            return None
        model_id = endpoint.identity.model_id
        answer = {"url": url, "revision": self.table.current.revision}
        if not model_id:
            return {**answer, "model": None, "notes": ["the endpoint has no model of the registry"]}
        return {**answer, **await run_in(self._control.lineage, self._registry.lineage, model_id)}

    def _are_gateways(self, number: int) -> None:
        """Take over how many gateways there are, this one included: each with as many workers as this one."""
        if self._callers is not None:
            share = 1.0 / (number * self._settings.workers)
            self._callers.access.quotas.configure(share=share)

    async def _sample_waits(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _SAMPLE_S
            await asyncio.sleep(_SAMPLE_S)
            self.observer.waited(loop.time() - due)

    def leave(self) -> float:
        """Send callers elsewhere, by readiness and by a header of every reply. All requests are still answered.

        Returns for how many seconds: 0 if the parent has died, as another gateway may be waiting for the port.
        """
        self.health.is_leaving = True
        self.connections.leave()
        if self._rpc is not None:
            # gRPC has a message for that: clients make the next call elsewhere, and running calls end.
            self._rpc_leaving = asyncio.create_task(self._rpc.stop(self._settings.drain_timeout))
        return 0.0 if self._is_orphan() else self._settings.drain_delay

    def _is_orphan(self) -> bool:
        return self._parent not in (0, os.getppid())

    async def _publish_work(self) -> None:
        """Publish the work in hand of each endpoint that has or had some."""
        busy: dict[str, Endpoint] = {}
        while True:
            await asyncio.sleep(_WORK_S)
            endpoints = self.table.current.endpoints
            now = {url: one for url, one in endpoints.items() if one.batcher is not None and not one.batcher.is_idle}
            for one in {**busy, **now}.values():
                if (batcher := one.batcher) is not None:
                    version = one.identity.endpoint, one.identity.version
                    self.observer.publish(catalog.WORK, batcher.work, *version)
                    for priority, waiting in batcher.queued().items():
                        self.observer.publish(catalog.QUEUED, waiting, *version, priority)
            busy = now

    async def _send_request(self, endpoint: str, version: str | None, data: Any) -> Any:
        """Answer a hook's ``send_request``, in process if the endpoint is here, else over HTTP. None: refused."""
        path = normalize_url(endpoint, version)
        try:
            answer = await self.plane.call(InternalCall(path, data))
            # The hook gets plain JSON values, as over HTTP.
            return orjson.loads(orjson.dumps(answer, default=str, option=orjson.OPT_SERIALIZE_NUMPY))
        except (EndpointNotFound, VersionNotFound):
            # The serving Task's setting overrides that of this process, as in clearml-serving.
            task = self._reconciler.task_settings() if self._reconciler is not None else {}
            base = task.get("serving_base_url") or self._settings.serving_base_url
            if not base:
                return None
            return await asyncio.to_thread(_post, f"{base.rstrip('/')}/{path}", data, self._settings.request_timeout)
        except GatewayError as error:
            _log.info("send_request to %s was refused: %s", path, error.message)
            return None


def _end_process() -> None:
    time.sleep(_END_S)
    os._exit(0)


def _calm_garbage_collection() -> None:
    # The imported modules (a large heap) live as long as the process, so they are frozen and never scanned again. A
    # request makes a few dozen objects, so the default of one collection per 700 allocations is far too often. A
    # collection stops every thread, and a change of a thousand endpoints leaves some ten thousand objects. So young
    # objects are collected in small portions (1 or 2 ms), older ones in larger ones, and the whole heap as rarely as by
    # default.
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 4, 2_500)


def _share_the_interpreter() -> None:
    # A computing thread (loading a tokenizer, reading a configuration) keeps the interpreter's lock for this long when
    # another thread asks for it, and a request asks several times. It costs nothing while no thread computes.
    sys.setswitchinterval(_SWITCH_S)


def _post(url: str, data: Any, timeout: float) -> Any:
    if not url.startswith(("http://", "https://")):
        return None
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked
        url, orjson.dumps(data, default=str), {"content-type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as reply:  # noqa: S310 - as above
            return orjson.loads(reply.read())
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        _log.info("send_request to %s failed: %s", url, error)
        return None


def create_app() -> Gateway:
    """Return the application of a real worker, configured from the environment."""
    link = workers.link
    if link is not None:  # without the parent, nobody would stop this process, and it would hold the port
        end_with_parent(link.parent_pid, signal.SIGTERM)
    settings = Settings()
    logs.configure(settings.log_format)
    options = grpc_options(os.environ)
    registry = ClearMLRegistry(settings.serving_task_id, files_rewrite=settings.files_rewrites())
    load_requests = LoadRequests(registry.ledger)
    return Gateway(
        settings,
        registry=registry,
        make_backend=lambda address: TritonBackend(
            address,
            options=options,
            http_of=http_beside(settings.triton_http),
            tls=in_folder(settings.triton_tls, settings.triton_tls_name),
            away_s=settings.cold_start_timeout,
            cold_s=settings.cold_start_timeout or _COLD_S,
            ask_to_load=load_requests.make,
        ),
        link=link,
        local_names=_local_names(settings, os.environ),
        is_whole_process=True,
        settle=_JOIN_S if link is not None and link.joins else _SETTLE_S,
        spans=_spans(os.environ),
    )


def _local_names(settings: Settings, environ: Mapping[str, str]) -> Collection[str] | None:
    """Return the names that a gateway started by `up` answers to; None: to every name.

    What needs credentials is not readable by a web page, and whoever allows strangers has a proxy in front.
    """
    if LOCAL_NAMES not in environ or settings.knows_callers or settings.allow_anonymous:
        return None
    return environ[LOCAL_NAMES].lower().split()


def _spans(environ: Mapping[str, str]) -> Spans | None:
    protocol = trace_protocol(environ)
    if not protocol:
        return None
    # Imported here, because OpenTelemetry is an extra, and its import takes time.
    from gateway.spans import exporting

    return exporting(protocol, version=product_version(), instance=f"{socket.gethostname()}-{os.getpid()}")
