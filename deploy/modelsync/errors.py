"""What keeps one model from being served, and what gateways are told of it."""

from __future__ import annotations

from gateway import errors, triton


class BadModel(errors.SpecFault):
    """The model's files or its endpoint's options cannot be made a folder that Triton loads."""


class RepositoryUnusable(errors.ControlError):
    """The model repository cannot be read or written: no space, no permission, another writer."""


class EndedWhileLoading(Exception):
    """Triton answered, was told to load a model, and is away."""


def verdict_of(error: Exception) -> triton.verdicts.Verdict:
    """Say why a model failed. What Triton refused, or cannot be built, would fail everywhere; what could not be fetched
    (the file store is away, a file is damaged, the disk is full) is loaded where it was fetched before.
    """
    if not isinstance(error, errors.GatewayError):
        return triton.verdicts.Verdict(f"internal error: {error!r}", is_final=True)
    reason = f"{error}" + (f" ({error.hint})" if error.hint else "")
    return triton.verdicts.Verdict(
        reason, is_final=isinstance(error, (errors.SpecFault, errors.ModelNotReady, errors.DeadlineExceeded))
    )
