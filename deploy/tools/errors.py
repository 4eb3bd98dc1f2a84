"""The errors that the command line reports: a message says what is wrong, a hint says what to do.

Code under ``deploy`` raises ``DeployError``; code of the gateway that it uses (the registry, Triton,
the serving Task) raises ``GatewayError``. Both have a message and a hint. Only ``cli/main.py`` turns them into one
line on stderr and an exit code. Any other exception is a bug of ours and is shown with its traceback.
"""

from __future__ import annotations

from gateway.errors import GatewayError, RegistryRefused, RegistryUnavailable

__all__ = [
    "DeployError",
    "ExportFailed",
    "GatewayError",
    "RegistryRefused",
    "RegistryUnavailable",
    "first_line",
    "line_of",
]


def line_of(error: Exception) -> str:
    """Return message and hint of an error as the line that is shown."""
    message, hint = str(getattr(error, "message", error)), str(getattr(error, "hint", ""))
    return " ".join((f"{message}; {hint}" if hint else message).split())


def first_line(error: BaseException) -> str:
    """Return the line that names an error, shortened; never empty."""
    # torch's exporter ends several lines of advice with the exception that it met
    _, _, summary = str(error).partition("## Exception summary")
    lines = [line.strip() for line in (summary or str(error)).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:400]


class DeployError(Exception):
    """A failure with a known remedy: ``message`` says what is wrong, ``hint`` what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def line(self) -> str:
        """Return message and hint as the line that is shown."""
        return line_of(self)


class ExportFailed(DeployError):
    """A model could not be exported, or its graph does not load or answers differently from the original."""
