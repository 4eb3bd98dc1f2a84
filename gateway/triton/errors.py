"""Triton's errors in our words: the same whichever transport they came over. Pure."""

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

BackendError = Literal["late", "invalid", "not_found", "full", "unavailable", "cancelled", "failed", "other"]


class TransportError(BackendUnavailable):
    """The server went away, is stopping, or never was there: nobody has been answered, and another may be asked.

    The only error that says something about a server's health.
    """


def lost(address: str, why: str = "") -> TransportError:
    """Return the error of a server that has not answered; ``why`` is for who reads it beside others."""
    return TransportError(
        f"Triton at {address} does not answer" + (f" ({why})" if why else ""),
        hint="it may be starting: try again shortly", retry_after=1,
    )  # fmt: skip


def translate(error: BackendError, text: str, *, model: str, address: str) -> GatewayError:
    """Return our error for Triton's; ``text`` is the first line of what Triton said."""
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
        case "cancelled":
            return TransportError(f"the connection to Triton at {address} was closed", retry_after=1)
        case "failed":
            return ModelFailed(f"the model failed: {text}")
        case "other":
            return BackendUnavailable(f"Triton at {address} answers {text}", retry_after=1)
