"""Models without a text task: converts the data of a request or a hook to the model's inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.batching.pressure import NO_PRESSURE, Pressure
from gateway.errors import HookFailed, InputRefused
from gateway.handlers.stacking import StackedCalls
from gateway.trace import Trace
from gateway.triton.port import Backend, ModelInfo
from gateway.triton.tensors import from_lists

Outputs = dict[str, NDArray[Any]]

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


async def infer_raw(calls: StackedCalls, ask: Trace, raw: RawTensors) -> object:
    """Return the model's outputs for tensors. Raises what the backend and the batcher raise."""
    ask.rows = max((len(array) for array in raw.inputs.values() if array.ndim), default=1)
    ask.outputs, ask.queue_ns, ask.infer_ns = await calls.infer(raw.inputs, raw.outputs, ask)
    return ask.outputs


@dataclass(frozen=True, slots=True)
class TritonCall:
    """Converts a hook's data to tensors and back, as ClearML does."""

    backend: Backend
    model: ModelInfo
    outputs: tuple[str, ...]
    pressure: Pressure = NO_PRESSURE
    on_batch: Callable[[int, int, int], None] = lambda *_: None
    """Told of each call that requests share; see ``Batcher``."""

    def stacked(self) -> StackedCalls:
        """Return the model's calls, which several requests share."""
        return StackedCalls(
            self.backend, self.model.name, max_rows=self.model.max_batch_size, pressure=self.pressure,
            on_batch=self.on_batch,
        )  # fmt: skip

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
        self._calls = call.stacked()
        self.batcher = self._calls.batcher

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
        return await infer_raw(self._calls, ask, raw)

    async def close(self) -> None:
        """See ``Handler.close``."""
        await self._calls.close()
