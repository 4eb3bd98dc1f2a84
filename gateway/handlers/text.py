"""A text task without user code: tokenize, share a call to Triton, decode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter_ns
from typing import Any

from numpy.typing import NDArray

from gateway.batching.batcher import Batcher
from gateway.batching.entries import BatchLimits, Entry, Outputs
from gateway.errors import BackendRefused, ModelFailed, SpecFault
from gateway.handlers.endpoint import Job, Lookup, in_task, note, offload, translate
from gateway.handlers.tensors import RawTensors, infer_raw
from gateway.triton.port import Backend
from preprocessing.errors import PreprocessingError
from preprocessing.processor import TextProcessor
from preprocessing.types import Encoded, Prepared, pack


class TextHandler:
    """Answers requests of one text task.

    A request is a body of the task (``{"text": …}``), ``Prepared`` rows (token ids instead of text), ``RawTensors`` for
    the model itself, or a ``Lookup`` in the tokenizer.
    """

    takes_bytes = False

    def __init__(
        self,
        processor: TextProcessor,
        backend: Backend,
        model: str,
        *,
        limits: BatchLimits,
        on_batch: Callable[[int, int, int], None],
        threads: ThreadPoolExecutor,
    ) -> None:
        self.processor = processor
        self.task = processor.config.task
        self.backend = backend
        self.model = model
        self._threads = threads
        self.batcher: Batcher[Encoded] = Batcher(
            self._run,
            limits=limits,
            on_batch=on_batch,
            padding_side=processor.config.padding_side,
            servers=backend.servers(model),
        )

    @property
    def text(self) -> TextHandler:
        """Itself; see ``Endpoint.text``."""
        return self

    def start(self, job: Job) -> None:
        """See ``Handler``. Work that takes milliseconds of CPU runs in a thread."""
        question, processor = job.question, self.processor
        started = perf_counter_ns()
        if type(question) is not dict:
            if isinstance(question, RawTensors):
                in_task(job, infer_raw(self.backend, self.model, job, question))
                return
            if isinstance(question, Prepared):
                self._queue(job, started, question)
                return
            if isinstance(question, Lookup):
                job.prepared()
                offload(job, self._threads, self._run_lookup, job, question, started, then=job.answered)
                return
        try:
            request = processor.parse(question)
            if processor.encodes_off_loop(request):
                offload(job, self._threads, processor.encode, request, then=partial(self._queue, job, started))
                return
            prepared = processor.encode(request)
        except PreprocessingError as error:
            raise translate(error) from error
        self._queue(job, started, prepared)

    def _run_lookup(self, job: Job, question: Lookup, started: int) -> object:
        answer = job.render(question.find(self.processor))
        job.trace.prepare_ns = perf_counter_ns() - started
        return answer

    def _queue(self, job: Job, started: int, prepared: Prepared) -> None:
        trace = job.trace
        note(trace, prepared)
        trace.prepare_ns = perf_counter_ns() - started
        batcher, rows = self.batcher, prepared.rows
        if len(rows) == 1 or batcher.fits(rows):
            entry = _JobEntry(rows, job.deadline)
            entry.handler, entry.job, entry.prepared, entry.flow = self, job, prepared, trace.flow
            batcher.add(entry)
            job.queued(entry.leave, is_watched=True)
        else:
            job.prepared()
            in_task(job, self._in_several_calls(job, prepared))

    async def _in_several_calls(self, job: Job, prepared: Prepared) -> object:
        trace = job.trace
        try:
            outputs, trace.queue_ns, trace.infer_ns = await self.batcher.submit(
                prepared.rows, job.deadline, flow=trace.flow
            )
        except BackendRefused as error:
            raise _model_failed(error) from error
        job.outputs = outputs
        if self.processor.finishes_off_loop(prepared):
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, self._decode_and_write, job, prepared
            )
        return self._decode(job, prepared)

    def leave(self, entry: Entry[Encoded]) -> None:
        """Take an entry back whose request has ended."""
        self.batcher.abandon(entry)

    def finish(self, job: Job, prepared: Prepared) -> None:
        """Answer a job whose model outputs are there; decode them in a thread if that takes milliseconds."""
        try:
            if self.processor.finishes_off_loop(prepared):
                offload(job, self._threads, self._decode_and_write, job, prepared, then=job.answered)
                return
            answer = self._decode(job, prepared)
        except Exception as refused:  # noqa: BLE001 - it is the error of this job; the other jobs of the call come next
            job.failed(translate(refused) if isinstance(refused, PreprocessingError) else refused)
            return
        job.answered(answer)

    def _decode(self, job: Job, prepared: Prepared) -> object:
        started = perf_counter_ns()
        answer: object = self.processor.finish(job.outputs or {}, prepared)
        job.trace.finish_ns = perf_counter_ns() - started
        return answer

    def _decode_and_write(self, job: Job, prepared: Prepared) -> object:
        """Decode and write the answer in one thread: what takes long to decode takes long to write, too."""
        return job.render(self._decode(job, prepared))

    async def try_highest_token(self, timeout: float) -> None:
        """Run the model on the tokenizer's highest token id, to check its vocabulary against that of the weights.

        Raises ``SpecFault`` if the model fails on it, and what the backend raises.
        """
        tokenizer = self.processor.tokenizer
        highest = tokenizer.vocab_size - 1
        # An ordinary text but for one token: some models rely on special tokens, or on more than one token.
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
        await self.batcher.close()

    async def _run(self, rows: Sequence[Encoded], timeout: float) -> dict[str, NDArray[Any]]:
        processor = self.processor
        outputs = processor.output_names or ()
        tensors = processor.collate_rows(rows)
        return await self.backend.infer(self.model, tensors, outputs, timeout=timeout)


class _JobEntry(Entry[Encoded]):
    """The rows of a job. A subclass instead of a callback, because one is made for every request."""

    __slots__ = ("handler", "job", "prepared")

    handler: TextHandler
    job: Job
    prepared: Prepared

    def deliver(self, outputs: Outputs | None, error: Exception | None) -> None:
        """See ``Entry.deliver``."""
        job = self.job
        if outputs is None:
            if isinstance(error, BackendRefused):
                error = _model_failed(error)
            job.failed(error or ModelFailed("the call to Triton ended without an answer"))
            return
        trace = job.trace
        trace.queue_ns, trace.infer_ns = self.queued_ns, self.infer_ns
        job.outputs = outputs
        self.handler.finish(job, self.prepared)

    def leave(self) -> None:
        """Take the entry back: its request has ended."""
        self.handler.leave(self)


def _model_failed(error: BackendRefused) -> ModelFailed:
    # The tensors are ours, not the caller's: there is nothing to change in the request.
    return ModelFailed(error.message, hint="the model and its tokenizer may not belong together")
