"""Calls a model with tensors. Requests whose inputs have the same names, dtypes and row shapes share a call.

If the model has no batch dimension, each request has a call of its own. To the batcher, the size of a row is the number
of its elements. Large inputs have a call of their own, because joining them would cost more than a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Final

import numpy as np

from gateway.batching.batcher import Batcher
from gateway.batching.entries import BatchLimits, Entry, Outputs
from gateway.batching.pressure import NO_PRESSURE, Pressure
from gateway.outcome import in_task
from gateway.trace import Trace
from gateway.triton.port import Backend, Tensors
from preprocessing.collate import split_rows

_MAX_ELEMENTS: Final = 128 << 10
"""The elements of all inputs in a shared call: about a megabyte, which takes 0.1 ms to join."""


@dataclass(frozen=True, slots=True)
class _Item:
    """One request's inputs; ``n_tokens`` are the elements of one row in all inputs."""

    inputs: Tensors
    outputs: tuple[str, ...]
    n_tokens: int


class StackedCalls:
    """Calls one model, with up to ``max_rows`` rows at a time. Belongs to one event loop.

    ``max_rows`` 0: the model has no batch dimension.
    """

    def __init__(
        self, backend: Backend, model: str, *, max_rows: int, pressure: Pressure = NO_PRESSURE,
        on_batch: Callable[[int, int, int], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        """``on_batch`` is told of each call that can be shared; see ``Batcher``."""
        self._backend = backend
        self._model = model
        self.batcher: Batcher[_Item] | None = None
        """The queue for shared calls; its tokens are elements."""
        if max_rows:
            self.batcher = Batcher(
                self._run,
                limits=BatchLimits(max_rows, _MAX_ELEMENTS, pressure=pressure),
                on_batch=on_batch,
                servers=backend,
                share=_shares,
            )

    async def infer(self, inputs: Tensors, outputs: Sequence[str], ask: Trace) -> tuple[Outputs, int, int]:
        """Return the model's outputs for ``inputs``, and the nanoseconds spent waiting and inferring.

        Deadline, class and tenant are those of ``ask``.
        Raises as ``Backend.infer`` and ``Batcher.add`` do. Awaits only outcomes.
        """
        names = tuple(outputs)
        if self.batcher is None:
            started = perf_counter_ns()
            left = ask.deadline - asyncio.get_running_loop().time()
            call = self._backend.infer(self._model, inputs, names, timeout=left)
            return await in_task(call, ask.traceparent), 0, perf_counter_ns() - started
        arrays = inputs.values()
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

    async def close(self) -> None:
        """Refuse what is queued, and wait until the running calls have ended."""
        if self.batcher is not None:
            await self.batcher.close()

    async def _run(self, items: Sequence[_Item], timeout: float) -> Outputs:
        first = items[0]
        inputs = first.inputs
        if len(items) > 1:
            inputs = {name: np.concatenate([item.inputs[name] for item in items]) for name in inputs}
        return await self._backend.infer(self._model, inputs, first.outputs, timeout=timeout)


def _shares(outputs: Outputs, counts: Sequence[int]) -> Sequence[Outputs]:
    return [outputs] if len(counts) == 1 else split_rows(outputs, counts)
