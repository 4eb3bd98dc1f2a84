"""The backend port: named tensors in, named tensors out, and whether a model is ready.

Implemented by ``gateway.triton.backend`` (real) and ``tests.fakes.FakeBackend``; a contract test runs one suite
over both. Implementations translate every foreign exception into ``gateway.errors``. They repeat a lost call once, at
another server or over another transport.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[Any]]
"""Arrays by tensor name."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a loaded model as the backend reports it.

    ``dtype``: numpy's name. ``shape``: −1 for a dimension of any size; the batch dimension, if there is one, is first.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Inputs and outputs of a loaded model; ``max_batch_size`` 0: its tensors have no batch dimension."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    max_batch_size: int


class Servers(Protocol):
    """The servers that share the calls of a model."""

    @property
    def replicas(self) -> int:
        """The number of servers that share the calls now; at least 1."""
        ...


class Backend(Servers, Protocol):
    """One inference server (or several replicas behind one address)."""

    @property
    def waiting(self) -> int:
        """The number of calls and new versions that wait for a server; it stays above 0 for a minute after the last."""
        ...

    def expect_cold(self, model: str) -> Callable[[], None]:
        """Expect that ``model`` is unloaded while it gets no calls, until the returned function is called once.

        A call that finds it unloaded asks for it and waits.
        """
        ...

    async def infer(
        self, model: str, inputs: Tensors, outputs: Sequence[str], *, timeout: float
    ) -> dict[str, NDArray[Any]]:
        """Run ``model`` on ``inputs`` and return the tensors named in ``outputs`` (empty: all of them).

        ``inputs``: arrays by name, C-contiguous or not.

        - Shape: ``[rows, …]`` for a model with a batch dimension, with the same number of rows in every input and at
          most the model's ``max_batch_size``. Otherwise the model's own shape.
        - Dtype: ``bool``, ``int8`` to ``int64``, ``uint8`` to ``uint64``, ``float16``, ``float32``, ``float64``;
          bfloat16 as ``V2`` (two opaque bytes); text as ``object`` (``str`` or ``bytes``), ``S`` or ``U``, sent as
          UTF-8.

        Returns arrays in the shape and dtype that the server sent: ``[rows, …]`` for a model with a batch dimension;
        text as ``object`` arrays of ``bytes``. They may be read-only, because they are views of the received bytes.

        ``timeout`` in seconds: after it ``DeadlineExceeded`` is raised, whatever the server does. Cancelling the
        coroutine ends the call on the wire. In both cases Triton removes the call from its queue if it was sent over
        gRPC, and neither counts against the server's health.

        Raises ``BackendUnavailable``, ``ModelNotReady``, ``DeadlineExceeded``, ``BackendRefused`` (an unknown dtype, or
        names and shapes that are not the model's), ``BackendGarbage`` or ``Overloaded``.
        """
        ...

    def stream(
        self, model: str, inputs: Tensors, outputs: Sequence[str], *, timeout: float,
        ended: Callable[[], object] = lambda: None,
    ) -> AsyncGenerator[dict[str, NDArray[Any]], None]:  # fmt: skip
        """Run a decoupled ``model``: yield the tensors of each response as it arrives, until the last.

        Inputs, outputs and errors are those of ``infer``; ``timeout`` covers the whole stream. A caller may leave at
        any time (close the generator, cancel the coroutine that waits for it). The model then runs to its end, and
        what it still sends is discarded, because a Triton can crash over a cancelled stream. ``ended()`` is called once
        when the server has finished, or if it got no call.
        """
        ...

    async def is_live(self) -> bool:
        """Return whether a server answers; never raises."""
        ...

    def lacks(self, model: str) -> bool:
        """Return whether servers answer, but none of them had ``model`` when it was last called or looked for."""
        ...

    async def is_ready(self, model: str) -> bool:
        """Return whether ``model`` can be called now; never raises.

        It must be ready on a server, and on every one that has finished loading its models. False if none answers.
        """
        ...

    async def why_not_ready(self, model: str) -> str:
        """Return in one line which servers lack ``model``, or that none answers; never raises."""
        ...

    async def describe(self, model: str) -> ModelInfo:
        """Return the loaded model's tensors. Raises ``ModelNotReady`` or ``BackendUnavailable``."""
        ...

    async def close(self) -> None:
        """Close the connections; calls in flight end with ``BackendUnavailable``."""
        ...
