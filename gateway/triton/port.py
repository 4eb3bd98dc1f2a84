"""The backend port: named tensors in, named tensors out, and whether a model is ready.

Implemented by ``gateway.triton.backend`` (real) and ``gateway.testing.FakeBackend``; a contract test runs one suite
over both. Implementations translate every foreign exception into ``gateway.errors``, and repeat a call only at another
server, or over another transport, within a budget.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a loaded model as the backend reports it; ``shape`` includes the batch dimension as −1."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Inputs and outputs of a loaded model; ``max_batch_size`` 0 means the model takes no batch dimension."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    max_batch_size: int


class Servers(Protocol):
    """Who shares the calls of one model."""

    @property
    def replicas(self) -> int:
        """How many servers share the calls now; at least 1."""
        ...

    @property
    def spare(self) -> float:
        """How many times as long as theirs a call takes at one that is too slow to share, and idle; else infinite."""
        return inf

    @property
    def has_outliers(self) -> bool:
        """Whether there is one that is too slow to share, idle or not."""
        return False


class Backend(Servers, Protocol):
    """One inference server (or several replicas behind one address)."""

    def servers(self, model: str) -> Servers:
        """Return who shares the calls of ``model``: these servers, or as many as it was placed on."""
        ...

    @property
    def waiting(self) -> int:
        """How many calls and new versions wait for a server because none answers; kept for a minute after the last."""
        ...

    def place(self, model: str, *, is_cold: bool, copies: int) -> Callable[[], None]:
        """Know where ``model`` is to be found, until what is returned is called: on ``copies`` of the servers, all of
        them if 0. ``is_cold``: it is unloaded while nobody calls it, so that a call that finds it gone asks for it, and
        waits. Of several places of one model the newest counts.
        """
        ...

    async def infer(
        self, model: str, inputs: Tensors, outputs: Sequence[str], *, timeout: float, request_id: str = ""
    ) -> dict[str, NDArray[Any]]:
        """Run ``model`` on ``inputs`` and return the tensors named in ``outputs`` (all of them when empty).

        Inputs: by name, ``[rows, ...]`` for a model that takes batches; booleans, integers and floats as numpy has
        them, bfloat16 as ``V2``; text as ``object``, ``S`` or ``U``, sent as UTF-8. Outputs: in the shape and type that
        the server sent, text as ``object`` arrays of ``bytes``; read-only, for they are views of what was received.

        ``timeout`` in seconds: ``DeadlineExceeded`` is raised when it is over, whatever the server does. Cancelling the
        coroutine ends the call on the wire. In both cases Triton takes the call out of its queue if it came over gRPC;
        neither says anything about the server's health. Raises ``BackendUnavailable``, ``ModelNotReady``,
        ``DeadlineExceeded``, ``BackendRefused`` (an unknown dtype, names and shapes that are not the model's),
        ``BackendGarbage`` or ``Overloaded``.
        """
        ...

    def stream(
        self, model: str, inputs: Tensors, outputs: Sequence[str], *, timeout: float, request_id: str = ""
    ) -> AsyncGenerator[dict[str, NDArray[Any]], None]:
        """Run a decoupled ``model``: yields the tensors of each response as it comes, until the last.

        Closing the generator, or cancelling who waits for it, cancels the call on the server. Raises as ``infer``.
        """
        ...

    async def is_live(self) -> bool:
        """True when the server answers; never raises."""
        ...

    async def is_ready(self, model: str) -> bool:
        """True when ``model`` can be called now: on every server that answers and is not being filled, of one that is
        placed on some of them on half of those; False when none does; never raises.
        """
        ...

    async def why_not_ready(self, model: str) -> str:
        """Return the server's own reason, in one line, why ``model`` cannot be called; never raises."""
        ...

    async def refusal(self, model: str) -> str:
        """Return who has refused to load ``model`` and why, in one line: Triton, or the model sync beside it.

        Empty when nobody has: the model is ready, loading, unknown, not fetched yet, or nobody answers. Never raises.
        """
        ...

    async def describe(self, model: str) -> ModelInfo:
        """Return the loaded model's tensors. Raises ``ModelNotReady`` or ``BackendUnavailable``."""
        ...

    async def close(self) -> None:
        """Release connections; calls in flight end with ``BackendUnavailable``."""
        ...
