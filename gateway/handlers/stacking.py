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
from gateway.batching.entries import BatchLimits, Outputs
from gateway.batching.pressure import NO_PRESSURE, Pressure
from gateway.outcome import in_task
from gateway.trace import Trace
from gateway.triton.port import Backend, Tensors
from preprocessing.collate import split_rows

_MAX_ELEMENTS: Final = 128 << 10
"""The elements of all inputs in a shared call: about a megabyte, which takes 0.1 ms to join."""


@dataclass(frozen=True, slots=True)
class _Item:
    """One request's inputs; ``rows`` is their first dimension, ``elements`` the elements of one row in all inputs."""

    inputs: Tensors
    outputs: tuple[str, ...]
    rows: int
    elements: int
    request_id: str


class StackedCalls:
    """Calls one model, with up to ``max_rows`` rows at a time. Belongs to one event loop.

    ``max_rows`` 0: the model has no batch dimension.
    """

    def __init__(
        self, backend: Backend, model: str, *, max_rows: int, pressure: Pressure = NO_PRESSURE,
        on_call: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        """Call ``on_call`` with the rows of each call that can be shared."""
        self._backend = backend
        self._model = model
        self.batcher: Batcher[_Item] | None = None
        """The queue for shared calls; its tokens are elements."""
        if max_rows:
            self.batcher = Batcher(
                self._run,
                limits=BatchLimits(max_rows, _MAX_ELEMENTS, pressure=pressure),
                on_batch=_uncounted if on_call is None else lambda rows, _elements, _real: on_call(rows),
                servers=backend,
                size=_elements,
                share=_shares,
            )

    async def infer(
        self, inputs: Tensors, outputs: Sequence[str], ask: Trace, *, request_id: str = ""
    ) -> tuple[Outputs, int, int]:
        """Return the model's outputs for ``inputs``, and the nanoseconds spent waiting and inferring.

        Deadline, class and tenant are those of ``ask``. ``request_id`` goes to Triton with a call that is not shared.
        Raises as ``Backend.infer`` and ``Batcher.add`` do. Awaits only outcomes.
        """
        names = tuple(outputs)
        if self.batcher is None:
            started = perf_counter_ns()
            left = ask.deadline - asyncio.get_running_loop().time()
            call = self._backend.infer(self._model, inputs, names, timeout=left, request_id=request_id)
            return await in_task(call, ask.traceparent), 0, perf_counter_ns() - started
        arrays = inputs.values()
        kind: Hashable
        rows = len(next(iter(arrays))) if all(array.ndim for array in arrays) else 0
        if not rows or any(len(array) != rows for array in arrays):
            # The inputs do not have the same number of rows: the model gets them in a call of their own.
            item = _Item(inputs, names, 1, sum(array.size for array in arrays), request_id)
            rows, kind = 1, id(item)
        else:
            item = _Item(inputs, names, rows, sum(array.size for array in arrays) // rows, request_id)
            kind = (names, *((name, array.dtype, array.shape[1:]) for name, array in inputs.items()))
        return await self.batcher.submit(
            [item], ask.deadline, count=rows, kind=kind, flow=ask.flow, parent=ask.traceparent
        )

    async def close(self) -> None:
        """Refuse what is queued, and wait until the running calls have ended."""
        if self.batcher is not None:
            await self.batcher.close()

    async def _run(self, items: Sequence[_Item], timeout: float) -> Outputs:
        first = items[0]
        inputs, request_id = first.inputs, first.request_id
        if len(items) > 1:
            inputs = {name: np.concatenate([item.inputs[name] for item in items]) for name in inputs}
            request_id = ""
        return await self._backend.infer(self._model, inputs, first.outputs, timeout=timeout, request_id=request_id)


def _elements(item: _Item) -> int:
    return item.elements


def _shares(outputs: Outputs, counts: Sequence[int]) -> Sequence[Outputs]:
    return [outputs] if len(counts) == 1 else split_rows(outputs, counts)


def _uncounted(_rows: int, _padded: int, _tokens: int) -> None:
    pass
