"""Creates the payload log from the settings."""

from __future__ import annotations

from pathlib import Path

from gateway.payloads.files import Folder
from gateway.payloads.log import Count, PayloadLog
from gateway.payloads.rules import names, redaction, shares
from gateway.settings import Settings

_SETTING = "TRITON_GATEWAY_PAYLOAD_LOG"


def payload_log(settings: Settings, count: Count) -> PayloadLog | None:
    """Return the payload log; None if it is off.

    Raises ``ValueError`` with the setting's name.
    """
    try:
        wanted = shares(settings.payload_log)
    except ValueError as error:
        raise ValueError(f"{_SETTING}: {error}") from error
    if not any(one.share for one in wanted):
        return None
    dropped = names(settings.payload_log_drop)
    try:
        redact = redaction(settings.payload_log_redact, dropped)
    except ValueError as error:
        raise ValueError(f"{_SETTING}_REDACT: {error}") from error
    folder = Folder(
        _folder(settings), max_bytes=settings.payload_log_bytes, keep=settings.payload_log_keep,
        writers=settings.workers,
    )  # fmt: skip
    return PayloadLog(folder, wanted, count=count, redact=redact, dropped=dropped)


def check(settings: Settings) -> None:
    """Check the settings and create the folder, before any worker starts.

    Raises ``ValueError`` with the setting's name.
    """
    if payload_log(settings, lambda _outcome, _records: None) is None:
        return
    folder = _folder(settings)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{_SETTING}: the folder {folder} cannot be made: {error.strerror}") from error


def _folder(settings: Settings) -> Path:
    return settings.state_dir / "payloads"
