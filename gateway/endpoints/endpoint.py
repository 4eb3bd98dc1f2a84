"""One served version: a processor, a way to the backend, labels; leased by requests, retired after the last lease.

Built by ``control.assemble`` beside the running system, published inside a snapshot, called by ``pipeline`` through
one method, ``answer``. Three kinds: text tasks without code (micro-batched), a user's ``Preprocess`` in front of
Triton, and a user's ``Preprocess`` that does everything itself (ClearML's custom engines).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
import orjson
from numpy.typing import NDArray

from gateway.endpoints.batcher import BatchLimits, Entry, MicroBatcher, Outputs
from gateway.errors import (
    BackendGarbage,
    BackendRefused,
    GatewayError,
    HookFailed,
    InputRefused,
    InternalError,
    ModelFailed,
    SpecFault,
)
from gateway.metrics.drift import Bins
from gateway.trace import Trace
from gateway.triton.port import Backend, ModelInfo, TensorInfo
from preprocessing.errors import (
    InvalidInput,
    InvalidOutput,
    PreprocessingError,
    TokenizationFailed,
    UserCodeError,
    UserCodeRefused,
)
from preprocessing.processor import TextProcessor
from preprocessing.types import Encoded, Prepared, pack

_log = logging.getLogger("triton_gateway.endpoint")


@dataclass(frozen=True, slots=True)
class Identity:
    """What an endpoint is, for headers, metrics, logs and the status page. ``fingerprint`` covers all that is served:
    equal fingerprints are interchangeable.
    """

    url: str
    endpoint: str
    version: str
    fingerprint: str
    model_id: str = ""
    model_name: str = ""
    triton_name: str = ""
    details: Mapping[str, object] = field(default_factory=dict)
    reference: Mapping[str, Bins] = field(default_factory=dict)
    """What drift is measured against, by variable; from the model's folder."""


Done = Callable[[object, Exception | None], None]
"""``done(answer, None)`` or ``done(None, error)``."""


@dataclass(frozen=True, slots=True)
class Event:
    """A piece of a text that is being generated; ``finish_reason`` (``eos``, ``length``, ``stop``) is in the last one.

    ``tokens`` are those of the prompt that the model reads, ``generated_tokens`` those generated so far;
    ``token_ids`` (of this piece) may hold tokens of which there is no text, such as the end's.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    tokens: int
    generated_tokens: int
    truncated: bool = False


Streams = Callable[[object, Trace, float], AsyncGenerator[Event, None]]


class Handler(Protocol):
    """How an endpoint answers; ``Endpoint`` adds leases and labels."""

    takes_bytes: bool
    """Whether a body that is not JSON is handed over as it is."""

    async def answer(self, body: object, trace: Trace, deadline: float) -> object:
        """Return the answer (anything JSON or bytes) before ``deadline`` (loop time); raises ``GatewayError``."""
        ...

    async def close(self) -> None:
        """Release everything; called once, after the last request."""
        ...


class Endpoint:
    """A handler with its identity, counted leases and an orderly end."""

    __slots__ = ("_idle", "_leases", "_retired", "answer", "begin", "handler", "head", "headers", "identity",
                 "is_text", "stream", "takes_bytes", "task", "text")  # fmt: skip

    def __init__(self, identity: Identity, handler: Handler) -> None:
        self.identity = identity
        # Written once here rather than for every answer.
        self.headers = (
            (b"x-served-by", quote(identity.url, safe="/").encode()),
            (b"x-model-id", identity.model_id.encode("unicode_escape")),
        )
        self.head = b"".join(b"%b: %b\r\n" % pair for pair in self.headers)
        self.handler = handler
        self.takes_bytes = handler.takes_bytes
        self.is_text = isinstance(handler, TextHandler)
        behind = handler.handler if isinstance(handler, CachedHandler) else handler
        self.text = behind if isinstance(behind, TextHandler) else None
        """The handler of a text task without user code, also where its answers are remembered."""
        self.task: str = self.text.processor.config.task if self.text is not None else getattr(handler, "task", "")
        """The text task, for request forms that differ by task; empty for hooks and plain tensors."""
        self.answer = handler.answer
        self.stream: Streams | None = getattr(handler, "stream", None)
        """How to answer piece by piece, where the handler can (text generation)."""
        self.begin = handler.begin if isinstance(handler, TextHandler) else None
        """How to answer without a coroutine, where the handler can; see ``TextHandler.begin``."""
        self._leases = 0
        self._retired = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def last_body(self) -> bytes | None:
        """A body that this version's code has answered lately; None where none was kept."""
        return getattr(self.handler, "last_body", None)

    def lease(self) -> None:
        """Hold the endpoint open for one request; ``release`` must follow."""
        self._leases += 1

    def release(self) -> None:
        """End one lease."""
        self._leases -= 1
        if self._retired and self._leases == 0:
            self._idle.set()

    async def retire(self) -> None:
        """Wait for the last lease, then close. The caller has already taken the endpoint out of every snapshot."""
        self._retired = True
        if self._leases:
            self._idle.clear()
            await self._idle.wait()
        await self.handler.close()


class TextHandler:
    """A text task without user code: tokenize, micro-batch, infer, decode."""

    takes_bytes = False

    def __init__(
        self,
        processor: TextProcessor,
        backend: Backend,
        model: str,
        *,
        limits: BatchLimits,
        on_batch: Callable[[int, int, int], None],
        heavy: ThreadPoolExecutor,
    ) -> None:
        self.processor = processor
        self.backend = backend
        self.model = model
        self._heavy = heavy
        self._batcher: MicroBatcher[Encoded] = MicroBatcher(
            self._run,
            limits=limits,
            on_batch=on_batch,
            padding_side=processor.config.padding_side,
            servers=backend,
        )

    async def answer(self, body: object, trace: Trace, deadline: float) -> object:
        """See ``Handler.answer``."""
        outputs, prepared = await self.run(body, trace, deadline)
        processor = self.processor
        started = perf_counter_ns()
        try:
            if processor.finishes_off_loop(prepared):
                answer: object = await asyncio.get_running_loop().run_in_executor(
                    self._heavy, processor.finish, outputs, prepared
                )
            else:
                answer = processor.finish(outputs, prepared)
        except PreprocessingError as error:
            raise translate(error) from error
        trace.finish_ns = perf_counter_ns() - started
        return answer

    async def run(self, body: object, trace: Trace, deadline: float) -> tuple[Outputs, Prepared]:
        """Return the model's own outputs for ``body``, one row per row of what was prepared, and that.

        ``body`` may be ``Prepared`` already (token ids instead of text). Raises ``GatewayError``.
        """
        processor = self.processor
        started = perf_counter_ns()
        try:
            if isinstance(body, Prepared):
                prepared = body
            else:
                request = processor.parse(body)
                if processor.encodes_off_loop(request):
                    prepared = await asyncio.get_running_loop().run_in_executor(self._heavy, processor.encode, request)
                else:
                    prepared = processor.encode(request)
        except PreprocessingError as error:
            raise translate(error) from error
        note(trace, prepared)
        trace.prepare_ns = perf_counter_ns() - started
        try:
            outputs, trace.queue_ns, trace.infer_ns = await self._batcher.submit(prepared.rows, deadline)
        except BackendRefused as error:
            raise _not_the_callers_fault(error) from error
        return outputs, prepared

    def begin(self, body: object, trace: Trace, deadline: float, done: Done) -> Callable[[], None] | None:
        """Start to answer without a coroutine: ``done`` is called from the loop when the answer or the error is there.

        What ``answer`` does, for requests that need neither a thread nor several calls; None for the others, before
        anything has happened. Returns what gives the request up. Raises ``GatewayError`` for input that is refused.
        """
        processor = self.processor
        started = perf_counter_ns()
        try:
            request = processor.parse(body)
            if processor.encodes_off_loop(request):
                return None
            prepared = processor.encode(request)
        except PreprocessingError as error:
            raise translate(error) from error
        if not self._batcher.fits(prepared.rows) or processor.finishes_off_loop(prepared):
            return None
        note(trace, prepared)
        trace.prepare_ns = perf_counter_ns() - started
        entry = self._batcher.begin(prepared.rows, deadline, partial(self._through, prepared, trace, done))
        return partial(self._batcher.abandon, entry)

    def _through(
        self,
        prepared: Prepared,
        trace: Trace,
        done: Done,
        entry: Entry[Encoded],
        outputs: Outputs | None,
        error: Exception | None,
    ) -> None:
        trace.queue_ns, trace.infer_ns = entry.queued_ns, entry.infer_ns
        if outputs is None:
            if isinstance(error, BackendRefused):
                error = _not_the_callers_fault(error)
            done(None, error)
            return
        started = perf_counter_ns()
        try:
            answer = self.processor.finish(outputs, prepared)
        except Exception as refused:  # noqa: BLE001 - whatever it is, it belongs to this request: others are told next
            done(None, translate(refused) if isinstance(refused, PreprocessingError) else refused)
            return
        trace.finish_ns = perf_counter_ns() - started
        done(answer, None)

    async def try_highest_token(self, timeout: float) -> None:
        """Have the model run the tokenizer's highest id: weights know their vocabulary better than config.json does.

        Raises ``SpecFault`` where the model fails on it, and what the backend raises.
        """
        tokenizer = self.processor.tokenizer
        highest = tokenizer.vocab_size - 1
        # A text like any other but for one token: some models count on their special tokens, or on more than one.
        [row] = tokenizer.encode_batch(["a few words to try it with"])
        ids = row.ids.tolist()
        ids[len(ids) // 2] = highest
        try:
            await self._run([Encoded(pack(ids), row.packed_type_ids)], timeout)
        except BackendRefused as error:
            raise SpecFault(
                f"the model fails on the highest token id of its tokenizer, {highest}: {error.message}",
                hint="the tokenizer belongs to another model, or tokens were added without resizing the model",
            ) from error

    async def close(self) -> None:
        """See ``Handler.close``."""
        await self._batcher.close()

    async def _run(self, rows: Sequence[Encoded], timeout: float) -> dict[str, NDArray[Any]]:
        processor = self.processor
        return await self.backend.infer(
            self.model, processor.collate_rows(rows), processor.output_names or (), timeout=timeout
        )


class CachedHandler:
    """A handler that remembers the answers to the last bodies it has seen.

    Right wherever the same body has the same answer; it belongs to one endpoint version, so a new version starts empty.
    ``on_cache(is_hit)`` is told about every look.
    """

    takes_bytes = False

    def __init__(self, handler: Handler, most: int, on_cache: Callable[[bool], None]) -> None:
        self.handler = handler
        self._most = most
        self._on_cache = on_cache
        self._answers: OrderedDict[bytes, tuple[object, int]] = OrderedDict()

    async def answer(self, body: object, trace: Trace, deadline: float) -> object:
        """See ``Handler.answer``; what is answered from memory spent its time in the stage ``prepare``."""
        started = perf_counter_ns()
        key = orjson.dumps(body)
        found = self._answers.get(key)
        self._on_cache(found is not None)
        if found is not None:
            self._answers.move_to_end(key)
            answer, trace.rows = found
            trace.prepare_ns = perf_counter_ns() - started
            return answer
        answer = await self.handler.answer(body, trace, deadline)
        self._answers[key] = (answer, trace.rows)
        if len(self._answers) > self._most:
            self._answers.popitem(last=False)
        return answer

    async def close(self) -> None:
        """See ``Handler.close``."""
        await self.handler.close()


@dataclass(frozen=True, slots=True)
class TritonCall:
    """How a hook's data becomes tensors and back, in ClearML's way."""

    backend: Backend
    model: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[str, ...]
    info: ModelInfo | None = None
    """The loaded model as Triton describes it, where that is known."""

    def tensors(self, data: object) -> dict[str, NDArray[Any]]:
        """Make the model's inputs of what a hook returned. Raises ``HookFailed`` or ``InputRefused``.

        ``data`` is one array(-like) for one input, a sequence of them in the declared order for several, or a mapping
        by input name.
        """
        if isinstance(data, Mapping):
            missing = [t.name for t in self.inputs if t.name not in data]
            if missing:
                raise HookFailed(f"preprocess returned a mapping without the model's inputs {', '.join(missing)}")
            values = [data[t.name] for t in self.inputs]
        elif len(self.inputs) == 1:
            values = [data]
        elif isinstance(data, list | tuple) and len(data) == len(self.inputs):
            values = list(data)
        else:
            raise HookFailed(
                f"preprocess must return {len(self.inputs)} arrays, one per input "
                f"({', '.join(t.name for t in self.inputs)})"
            )
        tensors = {}
        for tensor, value in zip(self.inputs, values, strict=True):
            try:
                tensors[tensor.name] = np.ascontiguousarray(np.array(value, dtype=np.dtype(tensor.dtype)))
            except (TypeError, ValueError, OverflowError) as error:
                raise InputRefused(
                    f"input {tensor.name} cannot be made into {tensor.dtype} numbers: {error}",
                    hint="check the values and that all rows have one length",
                ) from error
        return tensors


class TensorHandler:
    """A model that is not a text task and has no hook: the body names the model's inputs, the answer its outputs."""

    takes_bytes = False

    def __init__(self, call: TritonCall) -> None:
        self.call = call

    async def answer(self, body: object, trace: Trace, deadline: float) -> object:
        """See ``Handler.answer``; the body is ``{input name: nested lists}``, the answer ``{output name: array}``."""
        names = [t.name for t in self.call.inputs]
        if not isinstance(body, dict) or any(n not in body for n in names):
            raise InputRefused(
                f"the body must be an object with the model's inputs {', '.join(names)}",
                hint="each as nested lists of numbers, or give the endpoint a Preprocess class",
            )
        trace.rows = 1
        started = perf_counter_ns()
        tensors = self.call.tensors(body)
        trace.prepare_ns = perf_counter_ns() - started
        started = perf_counter_ns()
        left = deadline - asyncio.get_running_loop().time()
        outputs = await self.call.backend.infer(self.call.model, tensors, self.call.outputs, timeout=left)
        trace.infer_ns = perf_counter_ns() - started
        return outputs

    async def close(self) -> None:
        """See ``Handler.close``; nothing is held."""


def _not_the_callers_fault(error: BackendRefused) -> ModelFailed:
    # The tensors are ours, not the caller's: there is nothing to change in the request.
    return ModelFailed(error.message, hint="the model and its tokenizer may not belong together")


def translate(error: PreprocessingError) -> GatewayError:
    """Turn an error of the leaf library into the gateway's tree."""
    hint = error.hint or ""
    if isinstance(error, InvalidInput | UserCodeRefused):
        return InputRefused(error.message, hint=hint)
    if isinstance(error, InvalidOutput):
        return BackendGarbage(error.message, hint=hint)
    if isinstance(error, UserCodeError):
        return HookFailed(error.message, hint=hint)
    if isinstance(error, TokenizationFailed):
        return InternalError(error.message, hint=hint)
    return InternalError(str(error))


def note(trace: Trace, prepared: Prepared) -> None:
    """Write down what was encoded."""
    rows = prepared.rows
    trace.rows = len(rows)
    trace.encoded = rows
    trace.prepared = prepared
    if len(rows) == 1:
        row = rows[0]
        trace.tokens, trace.unknown_tokens, trace.truncated = row.n_tokens, row.n_unknown, int(row.truncated)
        return
    trace.tokens = prepared.n_tokens
    trace.unknown_tokens = prepared.n_unknown
    trace.truncated = prepared.n_truncated
