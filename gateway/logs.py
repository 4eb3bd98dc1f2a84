"""Log lines: one JSON object per line for machines, or a short form for people on a terminal.

The composition root configures them once. All other code uses ``logging.getLogger("triton_gateway.…")`` and passes
fields in ``extra``. Request bodies are never logged.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

import orjson

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object per record: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message`` and all extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({k: v for k, v in vars(record).items() if k not in _STANDARD})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class TextFormatter(logging.Formatter):
    """``12:34:56 level message key=value …`` for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one readable line (and its traceback below it)."""
        when = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        extras = " ".join(f"{k}={v}" for k, v in vars(record).items() if k not in _STANDARD)
        line = f"{when} {record.levelname.lower():7} {record.getMessage()}" + (f"  {extras}" if extras else "")
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def configure(form: str = "auto", stream: TextIO | None = None) -> None:
    """Send every log record of this process to ``stream`` (stderr) in the chosen form.

    ``form``: ``json``, ``text``, or ``auto`` (text on a terminal).
    """
    target = stream if stream is not None else sys.stderr
    is_text = form == "text" or (form == "auto" and target.isatty())
    handler = logging.StreamHandler(target)
    handler.setFormatter(TextFormatter() if is_text else JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # These loggers repeat our own lines for each request or call.
    for noisy in ("urllib3", "clearml", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
