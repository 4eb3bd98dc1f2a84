"""Translates Triton's errors, the same for both transports. Pure."""

from __future__ import annotations

from typing import Literal

from gateway.errors import (
    BackendRefused,
    BackendUnavailable,
    DeadlineExceeded,
    GatewayError,
    ModelFailed,
    ModelNotReady,
    Overloaded,
)

BackendError = Literal["late", "invalid", "not_found", "full", "unavailable", "failed", "other"]


class TransportError(BackendUnavailable):
    """The server cannot be reached or is stopping. The call was not answered and may be repeated at another server.

    It is the only error that counts against a server's health.
    """


def lost(address: str, why: str = "") -> TransportError:
    """Return the error of a server that has not answered; ``why`` is added to its message."""
    return TransportError(
        f"Triton at {address} does not answer" + (f" ({why})" if why else ""),
        hint="it may be starting: try again shortly", retry_after=1,
    )  # fmt: skip


def translate(error: BackendError, text: str, *, model: str, address: str) -> GatewayError:
    """Return the gateway's error for one of Triton's; ``text``: the first line of Triton's message."""
    match error:
        case "late":
            return DeadlineExceeded("Triton did not answer within the request's time")
        case "invalid":
            return BackendRefused(f"Triton refuses the tensors: {text}")
        case "not_found":
            return ModelNotReady(f"model {model} is not loaded: {text}", retry_after=1)
        case "full":
            return Overloaded(f"Triton is full: {text}", retry_after=1)
        case "unavailable":
            # Triton's core reports three different things as unavailable; only the text tells them apart.
            if "maximum queue size" in text:
                return Overloaded(f"Triton's queue is full: {text}", retry_after=1)
            if "unknown model" in text or "not ready" in text or "not found" in text:
                return ModelNotReady(f"model {model} is not loaded: {text}", retry_after=1)
            if "timeout expired" in text.lower():
                return DeadlineExceeded(f"Triton dropped the request from its queue: {text}")
            return lost(address)
        case "failed":
            return ModelFailed(f"the model failed: {text}")
        case "other":
            return BackendUnavailable(f"Triton at {address} answers {text}", retry_after=1)
