"""Starts an endpoint's code, with its limits: in threads in front of Triton, in processes for all other engines.

``assemble`` calls it. In front of Triton, tensors go to the code and back without a copy. Other engines load models,
which executes code, or do what Triton would do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from gateway.errors import HookFailed, SpecFault
from gateway.handlers.endpoint import Handler
from gateway.handlers.hook import HookHandler
from gateway.handlers.tensors import TritonCall
from gateway.hooks.bound import ProcessBound
from gateway.hooks.engines import ENGINES
from gateway.hooks.executor import Executor, ThreadExecutor
from gateway.hooks.pool import HookPool, PoolLimits
from gateway.hooks.process import Program
from gateway.own_thread import in_own_thread
from gateway.settings import parse_duration, parse_size
from gateway.spec import EndpointSpec
from preprocessing.errors import UserCodeError
from preprocessing.processor import TextProcessor
from preprocessing.user_code import STAGES, UserCode

_log = logging.getLogger("triton_gateway.control")

_WORKER_THREADS: Final = 8
"""Threads of a worker for one endpoint's code."""


@dataclass(frozen=True, slots=True)
class HookParts:
    """The parts of one endpoint that its code needs."""

    spec: EndpointSpec
    code: Path | None
    model: Path | None
    call: TritonCall | None
    default: TextProcessor | None


class HookBuilder:
    """Makes the handlers of endpoints with code or a Python model. Hooks call ``send_request`` to ask other endpoints.

    Handlers prepare requests in ``threads``.
    """

    def __init__(
        self, send_request: Callable[[str, str | None, Any], Coroutine[Any, Any, Any]], threads: ThreadPoolExecutor,
        *, processes: int = 32, start: float = 300.0,
    ) -> None:  # fmt: skip
        """``processes``: the most of a worker. ``start``: seconds to load code."""
        self._start = start
        self._send_request = send_request
        self._threads = threads
        self._bound = ProcessBound(processes)

    def take_options(self, options: MutableMapping[str, str], engine: str) -> PoolLimits:
        """Remove the ``hook_…`` options; return the limits. Raises ``SpecFault`` for an invalid value."""
        found: dict[str, Any] = {}
        readers: dict[str, Callable[[str], Any]] = {
            "threads": _count, "processes": _count, "memory": parse_size, "timeout": parse_duration,
        }  # fmt: skip
        for name, read in readers.items():
            text = options.pop(f"hook_{name}", None)
            if text is not None:
                if engine == "triton" and name in ("processes", "memory"):
                    raise SpecFault(
                        f"gateway.hook_{name}: code in front of Triton runs in threads of the gateway",
                        hint="leave it out, or use engine custom, whose code calls the model with self.send_request",
                    )
                try:
                    found[name] = read(text)
                except ValueError as error:
                    raise SpecFault(f"gateway.hook_{name}: {error}") from error
        found.setdefault("threads", _WORKER_THREADS if engine == "triton" else 1)
        return PoolLimits(start=self._start, **found)

    async def build(self, parts: HookParts, limits: PoolLimits) -> tuple[Handler, Mapping[str, object]]:
        """Start the code and return its handler and details. Raises ``SpecFault`` and ``HookFailed``."""
        path, spec = parts.code, parts.spec
        if path is None or spec.engine != "triton":
            return await self.in_processes(parts, limits)
        endpoint, send = SimpleNamespace(**_model_endpoint(spec)), self._sender()
        code = await _loaded(
            lambda: UserCode.load(path, name=spec.url, endpoint=endpoint, send_request=send, model_path=parts.model)
        )
        executor = ThreadExecutor(code, threads=limits.threads, timeout=limits.timeout)
        return self._handler(executor, parts), _details(parts.spec, executor)

    def _sender(self) -> Callable[..., Any]:
        """Return ``send_request`` for hooks: it blocks in threads, and is awaited on the event loop."""
        loop = asyncio.get_running_loop()
        request = self._send_request

        def send(endpoint: str, version: str | None = None, data: Any = None) -> Any:
            try:
                on_loop = asyncio.get_running_loop() is loop
            except RuntimeError:
                on_loop = False
            if on_loop:
                return request(endpoint, version, data)
            return asyncio.run_coroutine_threadsafe(request(endpoint, version, data), loop).result()

        return send

    async def in_processes(self, parts: HookParts, limits: PoolLimits) -> tuple[HookHandler, dict[str, Any]]:
        """See ``build``; in processes, whatever the engine is."""
        engine = parts.spec.engine
        program = Program(parts.spec.url, engine, parts.code, parts.model, _model_endpoint(parts.spec))
        pool = HookPool(program, limits, self._send_request, self._bound)
        await pool.start()
        try:
            stages = pool.stages
            if engine in ("custom", "custom_async") and "process" not in stages:
                raise SpecFault(f"engine {engine} needs a process method in its Preprocess class")
            if engine in ENGINES and "process" in stages:
                _log.warning(
                    "%s: its process method is not called: engine %s runs the model itself, as in clearml-serving; "
                    "engine custom calls it", parts.spec.url, engine,
                )  # fmt: skip
            return self._handler(pool, parts), _details(parts.spec, pool)
        except BaseException:
            await pool.close()
            raise

    def _handler(self, executor: Executor, parts: HookParts) -> HookHandler:
        return HookHandler(executor, call=parts.call, default=parts.default, threads=self._threads)


async def _loaded(load: Callable[[], UserCode]) -> UserCode:
    """Load code in a thread of its own: code that never finishes blocks nothing else, and its version stays pending.

    If nobody waits for the code any more, it is unloaded as soon as it has loaded. Raises ``HookFailed``.
    """
    loading = in_own_thread(load, "load-code")
    try:
        return await asyncio.shield(loading)
    except asyncio.CancelledError:
        loading.add_done_callback(_unload_unused)
        raise
    except UserCodeError as error:
        raise HookFailed(error.message, hint=error.hint or "") from error


def _unload_unused(loading: asyncio.Future[UserCode]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        unloading = in_own_thread(loading.result().unload, "unload-code")
        unloading.add_done_callback(lambda done: done.cancelled() or done.exception())  # what it raises is nobody's


def _model_endpoint(spec: EndpointSpec) -> dict[str, object]:
    """Return the attributes of ``self.model_endpoint`` in a hook, with clearml-serving's field names."""
    return {
        "engine_type": spec.engine, "serving_url": spec.endpoint, "model_id": spec.model_id, "version": spec.version,
        "preprocess_artifact": spec.preprocess.key if spec.preprocess else None,
        "input_size": [list(t.shape) for t in spec.inputs], "input_type": [t.dtype for t in spec.inputs],
        "input_name": [t.name for t in spec.inputs], "output_size": [list(t.shape) for t in spec.outputs],
        "output_type": [t.dtype for t in spec.outputs], "output_name": [t.name for t in spec.outputs],
        "auxiliary_cfg": spec.auxiliary_pairs or spec.auxiliary_pbtxt or None,
    }  # fmt: skip


def _details(spec: EndpointSpec, executor: Executor) -> dict[str, object]:
    task = f"{spec.engine} model" if spec.engine in ENGINES else "preprocess code"
    stages = [stage for stage in STAGES if stage in executor.stages]
    return {"task": task, "stages": stages}


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"must be a whole number of at least 1, not {text}")
    return int(text)
