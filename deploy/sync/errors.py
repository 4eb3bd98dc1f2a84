"""Errors that keep one model from being served, and how they are reported."""

from __future__ import annotations

from dataclasses import dataclass

from gateway import errors


class BadModel(errors.SpecFault):
    """Triton cannot load a folder made of the model's files and its endpoint's options."""


class RepositoryUnusable(errors.ControlError):
    """The model repository cannot be read or written: no space, no permission, another writer."""


class EndedWhileLoading(Exception):
    """Triton answered, began to load a model, and went away."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a model is not loaded. ``is_final``: a retry fails again until the model or its entry is changed."""

    reason: str
    is_final: bool


def verdict_of(error: BaseException) -> Verdict:
    """Return why a model failed, and whether that is final.

    A model that Triton refused, or that cannot be built, would fail on every Triton: final. A model that could not be
    fetched (file store away, file damaged, disk full) is not: other Tritons may have fetched it before.
    """
    if isinstance(error, EndedWhileLoading):
        return Verdict(str(error), is_final=False)
    if not isinstance(error, errors.GatewayError):
        return Verdict(f"internal error: {error!r}", is_final=True)
    is_final = isinstance(error, (errors.SpecFault, errors.ModelNotReady, errors.DeadlineExceeded))
    return Verdict(error.sentence, is_final)
