"""A text task without user code: tokenize, share a call to Triton, decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter_ns
from typing import Any

from numpy.typing import NDArray

from gateway.batching.batcher import Batcher
from gateway.batching.entries import BatchLimits, Entry
from gateway.errors import BackendRefused, ModelFailed, SpecFault
from gateway.handlers.endpoint import Lookup, note
from gateway.handlers.tensors import RawTensors, TritonCall, infer_raw
from gateway.outcome import in_thread
from gateway.trace import Trace
from preprocessing.processor import TextProcessor
from preprocessing.types import Encoded, Prepared, pack


class TextHandler:
    """Answers requests of one text task.

    A request is a body of the task (``{"text": …}``), ``Prepared`` rows (token ids instead of text), ``RawTensors`` for
    the model itself, or a ``Lookup`` in the tokenizer.
    """

    takes_bytes = False
    needs_task = False

    def __init__(
        self,
        processor: TextProcessor,
        call: TritonCall,
        *,
        limits: BatchLimits,
        on_batch: Callable[[int, int, int], None],
        threads: ThreadPoolExecutor,
    ) -> None:
        self.processor = processor
        self.task = processor.config.task
        self.call = call
        self._threads = threads
        self.batcher: Batcher[Encoded] = Batcher(
            self._run,
            limits=limits,
            on_batch=on_batch,
            padding_side=processor.config.padding_side,
            servers=call.backend,
        )

    @property
    def text(self) -> TextHandler:
        """Itself; see ``Endpoint.text``."""
        return self

    async def answer(self, question: Any, ask: Trace) -> object:
        """See ``Handler``. Work that takes milliseconds of CPU runs in a thread."""
        processor, threads = self.processor, self._threads
        try:
            if type(question) is dict:
                request = processor.parse(question)
                if processor.encodes_off_loop(request):
                    prepared = await in_thread(threads, processor.encode, request)
                else:
                    prepared = processor.encode(request)
            elif isinstance(question, RawTensors):
                return await infer_raw(self.call.infer_alone, ask, question)
            elif isinstance(question, Lookup):
                return await in_thread(threads, self._look_up, ask, question)
            else:
                prepared = question if isinstance(question, Prepared) else processor.prepare(question)
            note(ask, prepared)
            now = perf_counter_ns()
            ask.prepare_ns = now - ask.ready_ns
            rows, batcher = prepared.rows, self.batcher
            if len(rows) == 1 or batcher.fits(rows):
                entry = Entry(rows, ask.deadline, parent=ask.traceparent, flow=ask.flow)
                batcher.add(entry, now * 1e-9)
                ask.outputs = await entry
                ask.queue_ns, ask.infer_ns = entry.queued_ns, entry.infer_ns
            else:
                ask.outputs, ask.queue_ns, ask.infer_ns = await batcher.submit(
                    rows, ask.deadline, flow=ask.flow, parent=ask.traceparent
                )
            if prepared.finishes_off_loop:
                return await in_thread(threads, self._decode_and_write, ask, prepared)
            ask.finishes_ns = perf_counter_ns()
            return processor.finish(ask.outputs or {}, prepared)
        except BackendRefused as error:
            # The tensors are ours, not the caller's: there is nothing to change in the request.
            raise ModelFailed(error.message, hint="the model and its tokenizer may not belong together") from error

    def _look_up(self, ask: Trace, question: Lookup) -> object:
        answer = ask.render(question.find(self.processor))
        ask.prepare_ns = perf_counter_ns() - ask.ready_ns
        return answer

    def _decode_and_write(self, ask: Trace, prepared: Prepared) -> object:
        """Decode and write the answer in one thread: what takes long to decode takes long to write, too."""
        ask.finishes_ns = perf_counter_ns()
        return ask.render(self.processor.finish(ask.outputs or {}, prepared))

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
        return await self.call.backend.infer(self.call.model.name, tensors, outputs, timeout=timeout)
