"""The failures the command line reports: one sentence saying what is wrong, one saying what to do.

``DeployError`` and its kinds are raised by everything under ``deploy`` that a person starts; ``GatewayError`` by what
the gateway lends to it (the registry, Triton, the serving Task). Both have a message and a hint, and both are turned
into one line on stderr and an exit code in ``admin/cli.py`` and nowhere else. Anything that is not one of these is a
bug of ours and gets a log file instead.
"""

from __future__ import annotations

from gateway.errors import GatewayError, RegistryRefused, RegistryUnavailable

__all__ = [
    "ChildFailed",
    "ClearMLServingFailed",
    "DeployError",
    "ExportFailed",
    "GatewayError",
    "MissingPart",
    "PortTaken",
    "RegistryRefused",
    "RegistryUnavailable",
    "StateDirUnusable",
    "line_of",
]


def line_of(error: Exception) -> str:
    """Return message and hint of one of these as the one line that is shown."""
    message, hint = str(getattr(error, "message", error)), str(getattr(error, "hint", ""))
    return " ".join((f"{message}; {hint}" if hint else message).split())


class DeployError(Exception):
    """A failure with a known remedy; ``message`` says what is wrong, ``hint`` what to do about it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def line(self) -> str:
        """Return message and hint as the one line that is shown."""
        return line_of(self)


class PortTaken(DeployError):
    """Another program listens where we were told to."""


class MissingPart(DeployError):
    """A package, binary or file that this command needs is not installed."""


class ChildFailed(DeployError):
    """A child process could not be brought up."""


class ClearMLServingFailed(DeployError):
    """The ``clearml-serving`` command line refused or died."""


class ExportFailed(DeployError):
    """The exported graph does not load or disagrees with the original."""


class StateDirUnusable(DeployError):
    """The state directory cannot be written, is full, or belongs to another running ``up``."""
