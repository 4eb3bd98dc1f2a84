"""Decides where an endpoint's code runs (threads or processes), with which limits, and starts it.

``assemble`` calls it. Models of clearml-serving's Python engines always run in processes, because loading such a model
executes code. Hooks in front of Triton run in threads unless the endpoint says otherwise.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gateway.control import packages
from gateway.control.loading import unload
from gateway.control.threads import run_in
from gateway.errors import SpecFault
from gateway.handlers.endpoint import Handler
from gateway.handlers.hook import HookHandler
from gateway.handlers.tensors import TritonCall
from gateway.hooks.bound import ProcessBound
from gateway.hooks.engines import ENGINES
from gateway.hooks.executor import Executor, ProcessExecutor, ThreadExecutor
from gateway.hooks.pool import HookPool, PoolLimits, SendRequest
from gateway.hooks.process import Program
from gateway.settings import parse_duration, parse_size
from gateway.spec import EndpointSpec
from gateway.triton.port import ModelInfo
from preprocessing.processor import TextProcessor
from preprocessing.user_code import STAGES, UserCode

_log = logging.getLogger("triton_gateway.control")

LoadCode = Callable[[Path], Awaitable[UserCode]]

_DEFAULT_ISOLATION: Final = {"triton": "thread"}


@dataclass(frozen=True, slots=True)
class HookSettings:
    """The gateway's settings for user code; an endpoint's ``gateway.hook_…`` options override them."""

    isolation: str = "auto"
    threads: int = 8
    processes: int = 4
    min_processes: int = 0
    all_processes: int = 32
    idle_timeout: float = 900.0
    memory: int = 0
    timeout: float = 0.0
    start: float = 300.0
    batch_rows: int = 64


@dataclass(frozen=True, slots=True)
class HookParts:
    """The parts of one endpoint that its code needs."""

    spec: EndpointSpec
    code: Path | None
    model: Path | None
    bundle: Path | None
    endpoint: Mapping[str, object]
    call: TritonCall | None
    info: ModelInfo | None
    default: TextProcessor | None
    on_call: Callable[[int], None] | None = None
    """Gets the rows of each call to the model, if a request that waits can wait only for the model."""


class HookBuilder:
    """Makes the handlers of endpoints with code or a Python model. Hooks call ``send_request`` to ask other endpoints.

    Handlers prepare requests in ``threads``, requirements are read in ``builds``.
    """

    def __init__(
        self, settings: HookSettings, send_request: SendRequest, threads: ThreadPoolExecutor,
        builds: ThreadPoolExecutor,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._send_request = send_request
        self._threads = threads
        self._builds = builds
        self._bound = ProcessBound(settings.all_processes, settings.idle_timeout or math.inf)

    def take_options(self, options: MutableMapping[str, str], engine: str) -> HookSettings:
        """Remove the ``hook_…`` options from ``options`` and apply them. Raises ``SpecFault`` for an invalid value."""
        found: dict[str, Any] = {}
        readers: dict[str, Callable[[str], Any]] = {
            "isolation": _isolation, "threads": _count, "processes": _count, "memory": parse_size,
            "min_processes": _count_or_none, "timeout": parse_duration,
        }  # fmt: skip
        for name, read in readers.items():
            text = options.pop(f"hook_{name}", None)
            if text is not None:
                try:
                    found[name] = read(text)
                except ValueError as error:
                    raise SpecFault(f"gateway.hook_{name}: {error}") from error
        settings = replace(self._settings, **found)
        if settings.isolation == "auto":
            settings = replace(settings, isolation=_DEFAULT_ISOLATION.get(engine, "process"))
        if engine in ENGINES and settings.isolation == "thread":
            if "isolation" in found:
                raise SpecFault(f"engine {engine} runs in processes only; leave out gateway.hook_isolation")
            settings = replace(settings, isolation="process")
        if settings.isolation == "process" and "threads" not in found:
            settings = replace(settings, threads=1)  # the setting counts threads of a worker, not of a hook process
        return settings

    async def build(
        self, parts: HookParts, settings: HookSettings, load: LoadCode
    ) -> tuple[Handler, Mapping[str, object]]:
        """Start the code and return its handler and details; ``load`` loads the code into this process.

        Raises ``SpecFault`` and ``HookFailed``.
        """
        await self._check_packages(parts)
        if settings.isolation == "process":
            return await self._in_processes(parts, settings)
        assert parts.code is not None  # noqa: S101 - only Python engines lack code, and they run in processes
        code = await load(parts.code)
        if parts.spec.engine != "triton" and "process" not in code.stages:
            unload(code)
            raise SpecFault(_no_process(parts.spec.engine))
        executor = ThreadExecutor(code, threads=settings.threads, timeout=settings.timeout)
        # With batches of its own, code is waited for too: that wait must not ask for Tritons.
        handler = self._handler(executor, parts, None if executor.batches else parts.on_call)
        return handler, _details(parts.spec, "thread", executor, {})

    async def _in_processes(self, parts: HookParts, settings: HookSettings) -> tuple[Handler, Mapping[str, object]]:
        engine = parts.spec.engine
        program = Program(parts.spec.url, engine, parts.code, parts.model, parts.endpoint)
        limits = PoolLimits(
            settings.processes, settings.threads, settings.memory, settings.timeout, settings.start,
            settings.min_processes,
        )  # fmt: skip
        if settings.processes > self._bound.limit:
            _log.warning(
                "%s: gateway.hook_processes is %d, but TRITON_GATEWAY_MAX_HOOK_PROCESSES allows a worker %d in all",
                parts.spec.url, settings.processes, self._bound.limit,
            )  # fmt: skip
        pool = HookPool(program, limits, self._send_request, self._bound)
        await pool.start()
        try:
            stages = pool.loaded.stages
            if engine in ("custom", "custom_async") and "process" not in stages:
                raise SpecFault(_no_process(engine))
            if engine in ENGINES and "process" in stages:
                _log.warning(
                    "%s: its process method is not called: engine %s runs the model itself, as in clearml-serving; "
                    "engine custom calls it", parts.spec.url, engine,
                )  # fmt: skip
            executor = ProcessExecutor(pool)
            return self._handler(executor, parts), _details(parts.spec, "process", executor, pool.loaded.details)
        except BaseException:
            await pool.close()
            raise

    def _handler(
        self, executor: Executor, parts: HookParts, on_call: Callable[[int], None] | None = None
    ) -> HookHandler:
        return HookHandler(
            executor, call=parts.call, default=parts.default, threads=self._threads, max_rows=self._settings.batch_rows,
            model_rows=parts.info.max_batch_size if parts.info is not None else 0, on_call=on_call,
        )  # fmt: skip

    async def _check_packages(self, parts: HookParts) -> None:
        if parts.code is None:
            return
        file = await run_in(self._builds, packages.requirements_of, parts.code, parts.bundle)
        lacking = [] if file is None else await run_in(self._builds, packages.missing, file)
        if lacking:
            raise SpecFault(
                f"its {packages.FILE} asks for packages that are not installed here: {', '.join(lacking)}",
                hint="install them where the gateway runs: into an image of your own (docs/compose.md), or with pip",
            )


def _details(spec: EndpointSpec, isolation: str, executor: Executor, more: Mapping[str, object]) -> dict[str, object]:
    task = f"{spec.engine} model" if spec.engine in ENGINES else "preprocess code"
    stages = [stage for stage in STAGES if stage in executor.stages]
    batches = sorted(executor.batches)
    return {
        "task": task, "stages": stages, "isolation": isolation, **({"batches": batches} if batches else {}), **more,
    }  # fmt: skip


def _no_process(engine: str) -> str:
    return f"engine {engine} needs a process method in its Preprocess class"


def _isolation(text: str) -> str:
    if text not in ("process", "thread", "auto"):
        raise ValueError(f"must be process or thread, not {text}")
    return text


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"must be a whole number of at least 1, not {text}")
    return int(text)
