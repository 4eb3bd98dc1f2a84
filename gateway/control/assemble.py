"""Builds what a plan asks for: endpoints (fetch, verify, load, wait until ready, validate), and snapshots of them.

``builds`` asks for endpoints, ``publish`` for snapshots. Nothing here changes what is being served. Blocking work
(downloads, loading of tokenizers, imports of user code) runs in threads.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gateway import manifest, samples
from gateway.batching.entries import BatchLimits
from gateway.control import validate
from gateway.control.compile import EndpointPlan, Plan
from gateway.control.hooks import HookBuilder, HookParts
from gateway.control.places import Places
from gateway.control.reports import Reports
from gateway.control.threads import ControlThreads, run_in
from gateway.control.version import Progress, Version
from gateway.errors import ModelNotReady, SpecFault
from gateway.handlers.cache import CachedHandler
from gateway.handlers.endpoint import Endpoint, Handler, Identity
from gateway.handlers.generation import GenerationHandler
from gateway.handlers.tensors import TensorHandler, TritonCall
from gateway.handlers.text import TextHandler
from gateway.hooks.engines import ENGINES
from gateway.metrics import catalog, drift
from gateway.metrics.drift import Reference
from gateway.metrics.observer import Observer
from gateway.path import canary
from gateway.path.canary import Weighted
from gateway.path.routing import Snapshot
from gateway.registry.cache import ArtifactCache
from gateway.spec import PLACEMENT, EndpointSpec, Fault, ModelRecord, triton_model_name
from gateway.triton.port import Backend, ModelInfo
from preprocessing.config import FILL_MASK, GENERATION, TaskConfig
from preprocessing.errors import PreprocessingError
from preprocessing.model_files import read_limited
from preprocessing.processor import TextProcessor

_log = logging.getLogger("triton_gateway.control")

_POLL_S: Final = 0.2
"""Shortest pause between two readiness checks of one model."""
_POLLS_APART_S: Final = 0.005
"""Pause between readiness checks over all versions that wait: more would keep the loop busy with a thousand of them."""
_AT_A_TIME: Final = 8
"""Versions that send their first requests to Triton at the same time."""
_PLACE_S: Final = 2.0
"""After this time the next version may begin, although the slow one continues."""
_MAX_SCORES: Final = 1 << 24
"""Most scores over a vocabulary in one answer of a model: 64 MiB of float32."""
_ASK_S: Final = 2.0
"""Shortest pause between two questions why a model is not ready."""
_READS: Final = re.compile(r"\b(load|__file__)\b")
_PLAIN: Final = re.compile(r"^class Preprocess\s*(\(\s*(object)?\s*\))?\s*:", re.MULTILINE)
"""A class without a base class. A base class could bring a ``load`` method."""


class Assembler:
    """Builds endpoints.

    ``backend_for(address)`` returns the shared backend of an address. Hooks call ``send_request`` to ask
    other endpoints.
    """

    def __init__(
        self,
        *,
        reports: Reports,
        cache: ArtifactCache,
        backend_for: Callable[[str], Backend],
        observer: Observer,
        limits: BatchLimits,
        word_cache_words: int,
        hooks: HookBuilder,
        ready_timeout: float,
        threads: ThreadPoolExecutor,
        control: ControlThreads,
        keep_place: Callable[[], Callable[[], object]],
    ) -> None:
        self._keep_place = keep_place
        self._reports = reports
        self._cache = cache
        self._backend_for = backend_for
        self._observer = observer
        self._limits = limits
        self._word_cache_words = word_cache_words
        self._ready_timeout = ready_timeout
        self._threads = threads
        """The threads in which handlers prepare requests."""
        self._control = control
        self._asking = 0
        """Number of builds that wait for Triton."""
        self._places = Places(_AT_A_TIME, _PLACE_S)
        self._hooks = hooks

    async def build(
        self,
        plan: EndpointPlan,
        progress: Progress,
        *,
        validating: Callable[[], None] = lambda: None,
    ) -> Endpoint:
        """Return an endpoint that has answered its validation requests. Raises ``GatewayError``.

        ``progress`` is called with each step, ``validating`` before the first request. If the build fails or is
        cancelled, everything that it opened is closed.
        """
        spec, record = plan.spec, plan.record
        bundle: _Bundle | None = None
        if spec.model_id:
            if record is None:
                raise SpecFault(
                    f"model {spec.model_id} is not in the registry",
                    hint="add the endpoint again with an existing --model-id",
                )
            progress("Fetched", "downloading the model")
            # Triton reads the weights of its models itself; all other engines need them here.
            weights = spec.engine != "triton"
            bundle = await self._bundle(record, spec.url, weights=weights)
        code_path = bundle.code if bundle is not None else None
        # Versions of auto-update use the code in their bundle and fall back to the rule's code. For other endpoints the
        # code configured for the endpoint takes precedence over code in the bundle.
        if spec.preprocess is not None and (code_path is None or not spec.is_auto):
            progress("Fetched", "downloading the preprocess code")
            code_path = await run_in(self._control.downloads, self._cache.artifact, spec.preprocess)
        if record is not None and bundle is not None and code_path is not None and not weights:
            is_own = code_path == bundle.code
            if await run_in(self._control.builds, _reads_model, code_path):
                progress("Fetched", "downloading the model, which its code reads")
                bundle = await self._bundle(record, spec.url, weights=True)
                code_path = bundle.code if is_own else code_path
        call: TritonCall | None = None
        triton_name = ""
        held = ExitStack()
        async with AsyncExitStack() as opened:
            if spec.engine == "triton" and record is not None:
                triton_name = triton_model_name(spec, record)
                backend = self._backend_for(plan.triton_address)
                if spec.unload_after:
                    held.callback(backend.expect_cold(triton_name))
                    opened.callback(held.close)
                progress("Loaded", "waiting for Triton to load the model")
                info = await self._ready(backend, triton_name, progress)
                outputs = tuple(t.name for t in spec.outputs) or tuple(t.name for t in info.outputs)
                pressure = self._limits.pressure.below()

                def called(rows: int, *_: int) -> None:
                    # The autoscalers of Tritons read the waits of versions whose calls are counted.
                    self._observer.observe(catalog.BATCH_ROWS, rows, spec.endpoint, spec.version)

                call = TritonCall(backend, info, outputs, pressure, called)
            progress("Loaded", "loading and warming up")
            new = await self._make_handler(spec, bundle, code_path, call, opened)
            stored = bundle.samples if bundle is not None else None
            async with self._places.taken():
                validating()
                await new.validate(stored)
            details = {**validate.example(stored), **new.details}
            opened.pop_all()
        identity = Identity(
            url=spec.url, endpoint=spec.endpoint, version=spec.version,
            model_id=record.id if record else "", model_name=record.name if record else "",
            triton_name=triton_name, pool=plan.pool, details=MappingProxyType({"engine": spec.engine, **details}),
            reference=bundle.reference if bundle is not None else Reference(),
        )  # fmt: skip
        return Endpoint(identity, new.handler, held.close)

    async def _bundle(self, record: ModelRecord, url: str, *, weights: bool) -> _Bundle:
        download = self._cache.model if weights else self._cache.without_weights
        folder = await run_in(self._control.downloads, download, record)
        return await run_in(self._control.builds, _read_bundle, folder, record, url)

    async def _make_handler(
        self, spec: EndpointSpec, bundle: _Bundle | None, code_path: Path | None, call: TritonCall | None,
        opened: AsyncExitStack,
    ) -> _NewHandler:  # fmt: skip
        """Make the handler; whatever must be closed if it is not used is added to ``opened`` at once."""
        options = {name: value for name, value in spec.options if name not in PLACEMENT}
        hook_limits = self._hooks.take_options(options, spec.engine)
        remembered = _whole_number(options.pop("response_cache", 0), "response_cache")
        is_raw = options.get("task") == "tensors" and bool(options.pop("task"))
        processor = None
        if bundle is not None and call is not None and code_path is None and not is_raw:
            _refuse_without_tokenizer(bundle.folder, call.model)
        if bundle is not None and call is not None and (bundle.folder / "tokenizer.json").is_file() and not is_raw:
            try:
                processor = await self._processor(bundle, call.model, options, self._word_cache_words)
            except PreprocessingError as error:
                if code_path is None:
                    raise SpecFault(error.message, hint=error.hint or "") from error
                # A hook may do all preprocessing itself, so the folder need not be a text task.
                _log.info("%s: its folder is not used as a text task: %s", spec.url, error.message)
        stored = bundle.samples if bundle is not None else None

        if code_path is not None or spec.engine in ENGINES:
            model = bundle.model if bundle is not None else None
            parts = HookParts(spec, code_path, model, call, processor)
            hooks, details = await self._hooks.build(parts, hook_limits)
            opened.push_async_callback(hooks.close)
            # The samples hold for the bundle with its own code, not for other code in front of it.
            is_own = bundle is not None and code_path == bundle.code
            return _NewHandler(hooks, hooks, details, checked=hooks if is_own else None)
        if processor is not None and call is not None and bundle is not None:
            example = processor.describe()["example"]
            if processor.config.task == GENERATION:
                if processor.chat_fault:
                    _log.warning("%s: it accepts prompts, but no chats: %s", spec.url, processor.chat_fault)
                generator = GenerationHandler(
                    processor,
                    call.backend,
                    call.model.name,
                    threads=self._threads,
                    keep_place=self._keep_place,
                )
                opened.push_async_callback(generator.close)
                return _NewHandler(generator, generator, processor.describe(), (example,), generator)
            text = self._text(processor, call, partial(self._observer.called, spec.endpoint, spec.version))
            opened.push_async_callback(text.close)
            checked = text
            # The samples were recorded without this endpoint's options, which can change the answers' form.
            own = {"task": options["task"]} if "task" in options else {}
            if stored is not None and own != options:
                # Calls of a validation are no traffic: they are not counted.
                checked = self._text(await self._processor(bundle, call.model, own, 0), call, lambda *_: None)
                opened.push_async_callback(checked.close)
            cached = partial(self._observer.cached, spec.endpoint, spec.version)
            handler = CachedHandler(text, remembered, cached) if remembered else text
            return _NewHandler(handler, text, processor.describe(), (example, *validate.TEXT_BODIES), checked)
        if call is not None:
            tensors = TensorHandler(call)
            opened.push_async_callback(tensors.close)
            inputs = [f"{t.name} {t.dtype} {list(t.shape)}" for t in call.model.inputs]
            return _NewHandler(tensors, tensors, {"task": "tensors", "inputs": inputs}, checked=tensors)
        raise SpecFault("has neither a model for Triton nor preprocess code")

    async def _processor(
        self, bundle: _Bundle, info: ModelInfo, options: Mapping[str, object], words: int
    ) -> TextProcessor:
        return await run_in(self._control.builds, _load_processor, bundle.folder, info, options, words)

    def _text(
        self, processor: TextProcessor, call: TritonCall, on_batch: Callable[[int, int, int], None]
    ) -> TextHandler:
        return TextHandler(
            processor, call, limits=self._limits_for(call, processor.config), on_batch=on_batch, threads=self._threads
        )  # fmt: skip

    def _limits_for(self, call: TritonCall, config: TaskConfig) -> BatchLimits:
        # Triton refuses calls with more rows than the model's max_batch_size.
        limits = replace(self._limits, pressure=call.pressure)
        most = call.model.max_batch_size
        if most > 0:
            limits = replace(limits, max_rows=min(limits.max_rows, most))
        if config.task == FILL_MASK and config.vocab_size is not None:
            # For each token sent, the model returns a score for every token of the vocabulary.
            tokens = max(_MAX_SCORES // config.vocab_size, 1)
            limits = replace(limits, max_padded_tokens=min(limits.max_padded_tokens, tokens))
        return limits

    async def _ready(self, backend: Backend, model: str, progress: Progress) -> ModelInfo:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._ready_timeout
        asked, known_at = 0.0, -1.0
        self._asking += 1
        try:
            while not await backend.is_ready(model):
                now, pause = loop.time(), max(_POLL_S, self._asking * _POLLS_APART_S)
                # The reason is shown to people, so asking rarely is enough.
                if now - asked >= max(_ASK_S, 10 * pause) or now > until:
                    asked = now
                    missing = await self._reports.why_missing(model)
                    known_at = missing.at if known_at < 0 else known_at
                    # A report that was there at first may come from an attempt that is repeated.
                    if missing.is_final and missing.at != known_at:
                        raise SpecFault(missing.reason, hint="fix it and register it again")
                    reason = missing.reason or await backend.why_not_ready(model)
                    progress("Loaded", reason)
                    if now > until:
                        raise ModelNotReady(
                            f"Triton did not load {model} within {self._ready_timeout:g} s: {reason}",
                            hint="look at the model sync's log and status",
                        )
                await asyncio.sleep(pause)
        finally:
            self._asking -= 1
        async with self._places.taken():
            return await backend.describe(model)


@dataclass(frozen=True, slots=True)
class _Bundle:
    """The contents of a model's folder."""

    folder: Path
    model: Path
    """What a hook is given, as in clearml: the file of a single-file model, the folder of a packaged one."""
    code: Path | None
    samples: samples.Samples | None
    reference: Reference


@dataclass(frozen=True, slots=True)
class _NewHandler:
    """A handler that has not been validated yet."""

    handler: Handler
    plain: Handler
    """The same handler without the response cache."""
    details: Mapping[str, object]
    bodies: Sequence[object] = ()
    """What warms it up."""
    checked: Handler | None = None
    """Answers the bundle's samples; None if they were not recorded with it."""

    async def validate(self, stored: samples.Samples | None) -> None:
        """Send its first requests. Raises ``GatewayError``."""
        await validate.warm_up(self.plain, self.bodies)
        if isinstance(self.plain, TextHandler):
            await self.plain.try_highest_token(validate.TIMEOUT_S)
        if stored is not None and self.checked is not None:
            await validate.check(self.checked, stored)
            if self.checked is not self.plain:
                await self.checked.close()


def assemble_snapshot(
    plan: Plan, endpoints: Mapping[str, Endpoint], pending: Mapping[str, Version], previous: Snapshot
) -> Snapshot:
    """Return the snapshot of ``plan`` over the endpoints that are built.

    A canary includes only versions that are built, so a version that is loading gets no traffic. A canary whose weights
    are invalid keeps its previous route while all versions of that route exist. A canary without a route is as its
    first version that is not built; if there is none, it is refused.
    """
    canaries: dict[str, Weighted] = {}
    names: dict[str, Version] = {}

    def waits(name: str, urls: Iterable[str], fault: str = "", *, is_final: bool = True) -> None:
        refused = Version(name, None, time.time(), fault)
        refused.is_final = is_final
        names[name] = next((pending[url] for url in urls if url in pending), refused)

    for fault in plan.faults:
        kind, _, name = fault.subject.partition(" ")
        if kind != "canary" or name in plan.canaries:
            continue
        rule, kept = plan.spec.canaries.get(name), previous.canaries.get(name)
        if rule is None:  # it cannot be read
            waits(name, (), fault.message)
        elif kept is not None and all(url in endpoints for url in kept.shares):
            canaries[name] = kept
        else:  # auto-update may add a version to a prefix at any time
            waits(name, rule.load_endpoints, fault.message, is_final=not rule.prefix)
    for name, chosen in plan.canaries.items():
        ready = [(url, weight) for url, weight in chosen if url in endpoints]
        if sum(weight for _, weight in ready) > 0:
            canaries[name] = canary.weighted(ready, plan.spec.stables.get(name, ""))
        else:
            waits(name, (url for url, weight in chosen if weight > 0))
    return Snapshot(
        revision=plan.revision,
        endpoints=MappingProxyType(dict(endpoints)),
        canaries=MappingProxyType(canaries),
        pending=MappingProxyType({**names, **pending}),
        faults=plan.faults,
        defaults=MappingProxyType(dict(plan.spec.defaults)),
    )


def refusals(faults: Sequence[Fault]) -> dict[str, str]:
    """Return why the configuration of each refused url is invalid, so that callers get the reason instead of a 404.

    The subject of such a fault is ``endpoint`` and the url, for example ``endpoint sentiment/1``.
    """
    found = {}
    for fault in faults:
        kind, _, url = fault.subject.partition(" ")
        if kind == "endpoint":
            found[url] = fault.message
    return found


def _reads_model(code: Path) -> bool:
    """Whether user code may read the weights: through ``load``, which gets their path, or beside ``__file__``."""
    text = "\n".join(
        path.read_text(encoding="utf-8", errors="replace")
        for path in (sorted(code.rglob("*.py")) if code.is_dir() else (code,))
    )
    return _READS.search(text) is not None or _PLAIN.search(text) is None


def _read_bundle(folder: Path, record: ModelRecord, url: str) -> _Bundle:
    files = list(folder.iterdir())
    # Weights are left out: model sync checks them against the manifest when it writes them for Triton.
    manifest.check(folder, is_used=lambda name: not manifest.is_weights(name))
    own = folder / samples.HOOK
    return _Bundle(
        folder,
        folder if record.is_package or len(files) != 1 else files[0],
        own if own.is_file() else None,
        samples.read(folder),
        _read_reference(folder, url),
    )


def _refuse_without_tokenizer(bundle: Path, info: ModelInfo) -> None:
    # Served as tensors, this version would fail on every text request.
    is_text = (bundle / "config.json").is_file() and any(t.name == "input_ids" for t in info.inputs)
    if is_text and not (bundle / "tokenizer.json").is_file():
        raise SpecFault(
            "the bundle has a config.json, and its model takes input_ids, but there is no tokenizer.json",
            hint="save the tokenizer beside the model (tokenizer.save_pretrained), or add the endpoint with "
            "--aux-config gateway.task=tensors to send token ids yourself",
        )


def _load_processor(
    bundle: Path, info: ModelInfo, options: Mapping[str, object], word_cache_words: int
) -> TextProcessor:
    # A decoupled text-generation model takes its sampling parameters as an input tensor named "parameters".
    return TextProcessor.from_folder(
        bundle,
        input_names=[t.name for t in info.inputs if t.name != "parameters"],
        input_dtypes={t.name: t.dtype for t in info.inputs},
        output_names=[t.name for t in info.outputs],
        options=options,
        word_cache=word_cache_words,
    )


def _read_reference(bundle: Path, url: str) -> Reference:
    # A model with an unreadable reference is still served, without a drift measurement.
    try:
        return drift.decode(read_limited(bundle / drift.FILE).decode("utf-8"))
    except FileNotFoundError:
        return Reference()
    except (OSError, ValueError) as error:
        _log.warning("%s: drift is not measured: %s", url, error)
        return Reference()


def _whole_number(value: object, name: str) -> int:
    text = str(value)
    if not text.isdecimal():
        raise SpecFault(f"gateway.{name} must be a whole number, not {text}")
    return int(text)
