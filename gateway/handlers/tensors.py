"""Models without a text task: converts the data of a request or a hook to the model's inputs, and calls the model.

To the batcher, the size of a row is the number of its elements. Large inputs have a call of their own, because joining
them would cost more than a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter_ns
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.batching.batcher import Batcher
from gateway.batching.entries import BatchLimits, Entry, Outputs
from gateway.batching.pressure import NO_PRESSURE, Pressure
from gateway.errors import HookFailed, InputRefused
from gateway.outcome import in_task
from gateway.trace import Trace
from gateway.triton.port import Backend, ModelInfo, Tensors
from gateway.triton.tensors import from_lists
from preprocessing.collate import split_rows

_MAX_ELEMENTS: Final = 128 << 10
"""The elements of all inputs in a shared call: about a megabyte, which takes 0.1 ms to join."""

_MAX_REASON_CHARS: Final = 200
"""numpy's message contains the value that is no number, however long that is."""


@dataclass(frozen=True, slots=True)
class RawTensors:
    """A request in the model's own tensors, which go to the model unchanged.

    ``inputs``: name → array of the input's dtype, [rows, …] if the model has a batch dimension. ``outputs``: the names
    of the wanted outputs; empty for all. The answer is name → array.
    """

    inputs: Mapping[str, NDArray[Any]]
    outputs: Sequence[str] = ()


async def infer_raw(
    infer: Callable[[Tensors, Sequence[str], Trace], Awaitable[tuple[Outputs, int, int]]], ask: Trace, raw: RawTensors
) -> object:  # fmt: skip
    """Return the model's outputs for tensors, by one of the ways to ``infer``. Raises what that raises."""
    ask.rows = max((len(array) for array in raw.inputs.values() if array.ndim), default=1)
    ask.outputs, ask.queue_ns, ask.infer_ns = await infer(raw.inputs, raw.outputs, ask)
    return ask.outputs


@dataclass(frozen=True, slots=True)
class _Item:
    """One request's inputs; ``n_tokens`` are the elements of one row in all inputs."""

    inputs: Tensors
    outputs: tuple[str, ...]
    n_tokens: int


class TritonCall:
    """Calls one model in Triton; belongs to one event loop.

    Requests whose inputs have the same names, dtypes and row shapes share a call. If the model has no batch dimension,
    each has a call of its own. ``outputs`` are those of the endpoint, in order. ``on_batch`` is told of each call that
    can be shared; see ``Batcher``.
    """

    def __init__(
        self, backend: Backend, model: ModelInfo, outputs: tuple[str, ...], pressure: Pressure = NO_PRESSURE,
        on_batch: Callable[[int, int, int], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        self.backend = backend
        self.model = model
        self.outputs = outputs
        self.pressure = pressure
        self._on_batch = on_batch

    @cached_property
    def batcher(self) -> Batcher[_Item] | None:
        """The queue for shared calls; its tokens are elements. Text tasks, which have their own, never make it."""
        if not self.model.max_batch_size:
            return None
        limits = BatchLimits(self.model.max_batch_size, _MAX_ELEMENTS, pressure=self.pressure)
        return Batcher(self._run, limits=limits, on_batch=self._on_batch, servers=self.backend, share=_shares)

    async def infer(self, inputs: Tensors, outputs: Sequence[str], ask: Trace) -> tuple[Outputs, int, int]:
        """Return the model's outputs for ``inputs``, and the nanoseconds spent waiting and inferring.

        Deadline, class and tenant are those of ``ask``.
        Raises as ``Backend.infer`` and ``Batcher.add`` do. Awaits only outcomes.
        """
        if self.batcher is None:
            return await self.infer_alone(inputs, outputs, ask)
        names, arrays = tuple(outputs), inputs.values()
        kind: Hashable
        rows = len(next(iter(arrays))) if all(array.ndim for array in arrays) else 0
        if not rows or any(len(array) != rows for array in arrays):
            # The inputs do not have the same number of rows: the model gets them in a call of their own.
            rows, kind = 1, object()
        else:
            kind = (names, *((name, array.dtype, array.shape[1:]) for name, array in inputs.items()))
        item = _Item(inputs, names, sum(array.size for array in arrays) // rows)
        entry = Entry([item], ask.deadline, rows, kind, ask.traceparent, ask.flow)
        self.batcher.add(entry)
        return await entry, entry.queued_ns, entry.infer_ns

    async def infer_alone(self, inputs: Tensors, outputs: Sequence[str], ask: Trace) -> tuple[Outputs, int, int]:
        """As ``infer``, in a call that no other request shares."""
        started = perf_counter_ns()
        left = ask.deadline - asyncio.get_running_loop().time()
        call = self.backend.infer(self.model.name, inputs, tuple(outputs), timeout=left)
        return await in_task(call, ask.traceparent), 0, perf_counter_ns() - started

    async def close(self) -> None:
        """Refuse what is queued, and wait until the running calls have ended."""
        if self.batcher is not None:
            await self.batcher.close()

    async def _run(self, items: Sequence[_Item], timeout: float) -> Outputs:
        first = items[0]
        inputs = first.inputs
        if len(items) > 1:
            inputs = {name: np.concatenate([item.inputs[name] for item in items]) for name in inputs}
        return await self.backend.infer(self.model.name, inputs, first.outputs, timeout=timeout)

    def tensors(self, data: object) -> dict[str, NDArray[Any]]:
        """Return the model's inputs for what a hook returned. Raises ``HookFailed`` or ``InputRefused``.

        ``data`` is one array(-like) for one input, a sequence of them in the declared order for several, or a mapping
        by input name. Floats are converted as in ClearML: a number beyond the range of a float input becomes infinity,
        because hooks mask attention with the smallest float64. For an integer input, what would become another number
        is refused.
        """
        inputs = self.model.inputs
        if isinstance(data, Mapping):
            missing = [t.name for t in inputs if t.name not in data]
            if missing:
                raise HookFailed(f"preprocess returned a mapping without the model's inputs {', '.join(missing)}")
            values = [data[t.name] for t in inputs]
        elif len(inputs) == 1:
            values = [data]
        elif isinstance(data, list | tuple) and len(data) == len(inputs):
            values = list(data)
        else:
            names = ", ".join(t.name for t in inputs)
            raise HookFailed(f"preprocess must return {len(inputs)} arrays, one per input ({names})")
        tensors = {}
        for tensor, value in zip(inputs, values, strict=True):
            dtype = np.dtype(tensor.dtype)
            is_whole = dtype.kind in "iu"
            try:
                given: Any = np.asarray(value) if is_whole else value
                if is_whole and given.dtype.kind == "O":
                    given = np.array(given.tolist())  # by the types of its values
                with np.errstate(over="ignore", invalid="ignore"):
                    made = tensors[tensor.name] = np.ascontiguousarray(np.array(given, dtype=dtype))
                if is_whole and not np.can_cast(given.dtype, dtype) and not np.all(given == made):
                    raise ValueError("it has texts, fractions, or numbers beyond that type")
            except (TypeError, ValueError, ArithmeticError) as error:
                reason = str(error)[:_MAX_REASON_CHARS]
                raise InputRefused(
                    f"input {tensor.name} cannot be made into {tensor.dtype} numbers: {reason}",
                    hint="check the values and that all rows have one length",
                ) from error
        return tensors


class TensorHandler:
    """A model that is not a text task and has no hook.

    A request is a body ``{input name: nested lists}`` or ``RawTensors``; the answer is ``{output name: array}``.
    """

    takes_bytes = False
    needs_task = False

    def __init__(self, call: TritonCall) -> None:
        self.call = call
        self.batcher = call.batcher

    async def answer(self, question: Any, ask: Trace) -> object:
        """See ``Handler``."""
        call, raw = self.call, question
        if not isinstance(question, RawTensors):
            names = [t.name for t in call.model.inputs]
            if not isinstance(question, dict) or any(n not in question for n in names):
                raise InputRefused(
                    f"the body must be an object with the model's inputs {', '.join(names)}",
                    hint="each as nested lists of numbers, or give the endpoint a Preprocess class",
                )
            started = perf_counter_ns()
            inputs = {t.name: from_lists(t.name, np.dtype(t.dtype), question[t.name]) for t in call.model.inputs}
            raw = RawTensors(inputs, call.outputs)
            ask.prepare_ns = perf_counter_ns() - started
        return await infer_raw(call.infer, ask, raw)

    async def close(self) -> None:
        """See ``Handler.close``."""
        await self.call.close()


def _shares(outputs: Outputs, counts: Sequence[int]) -> Sequence[Outputs]:
    return [outputs] if len(counts) == 1 else split_rows(outputs, counts)
