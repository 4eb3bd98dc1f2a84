"""What keeps one model from being served, and what gateways are told of it."""

from __future__ import annotations

from gateway.errors import ControlError, DeadlineExceeded, GatewayError, ModelNotReady, SpecFault
from gateway.triton.verdicts import Verdict


class BadModel(SpecFault):
    """The model's files or its endpoint's options cannot be made a folder that Triton loads."""


class RepositoryUnusable(ControlError):
    """The model repository cannot be read or written: no space, no permission, another writer."""


class EndedWhileLoading(Exception):
    """Triton answered, was told to load a model, and is away."""


def verdict_of(error: Exception) -> Verdict:
    """Say why a model failed. What Triton refused, or cannot be built, would fail everywhere; what could not be fetched
    (the file store is away, a file is damaged, the disk is full) is loaded where it was fetched before.
    """
    if not isinstance(error, GatewayError):
        return Verdict(f"internal error: {error!r}", is_final=True)
    reason = f"{error}" + (f" ({error.hint})" if error.hint else "")
    return Verdict(reason, is_final=isinstance(error, (SpecFault, ModelNotReady, DeadlineExceeded)))
