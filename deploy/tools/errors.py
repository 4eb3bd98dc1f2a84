"""The failures the command line reports: one sentence saying what is wrong, one saying what to do.

Raised by everything under ``deploy`` that a person starts; turned into one line on stderr and an exit code in
``admin/cli.py`` and nowhere else. Anything that is not one of these is a bug of ours and gets a log file instead.
"""

from __future__ import annotations


class DeployError(Exception):
    """A failure with a known remedy; ``message`` says what is wrong, ``hint`` what to do about it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def line(self) -> str:
        """Return message and hint as the one line that is shown."""
        text = f"{self.message}; {self.hint}" if self.hint else self.message
        return " ".join(text.split())


class PortTaken(DeployError):
    """Another program listens where we were told to."""


class MissingPart(DeployError):
    """A package, binary or file that this command needs is not installed."""


class ChildFailed(DeployError):
    """A child process could not be brought up."""


class StockCliFailed(DeployError):
    """The ``clearml-serving`` command line refused or died."""


class ExportFailed(DeployError):
    """The exported graph does not load or disagrees with the original."""


class StateDirUnusable(DeployError):
    """The state directory cannot be written, is full, or belongs to another running ``up``."""
