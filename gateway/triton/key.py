"""The key of a Triton's control APIs: what its file holds, and the header it is sent in. No I/O but that file.

A Triton started with a key lets only its holder load models (which runs code), read its index, share memory with it and
change its log and trace settings; inference, health and metadata stay open. Triton's name for this is restricted APIs.
The file is read for every call that needs it (they are rare): a key that was replaced is used at once.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

HTTP_HEADER: Final = "triton-gateway-key"
GRPC_HEADER: Final = f"triton-grpc-protocol-{HTTP_HEADER}"
"""What Triton makes of the same name over gRPC."""

_FORM: Final = re.compile(r"[A-Za-z0-9_-]{16,512}")


def read_key(file: str | Path) -> str:
    """Return the key in ``file``; empty when no file is named or there is none.

    Raises ``ValueError`` when the file holds something else or cannot be read.
    """
    if not str(file):
        return ""
    try:
        text = Path(file).read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the key file {file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not _FORM.fullmatch(text):
        raise ValueError(f"{file} holds no key: 16 or more of A-Z, a-z, 0-9, - and _ are one (openssl rand -hex 32)")
    return text


def key_file(named: str, state_dir: Path) -> Path:
    """Return where the key is: the file that was named, else the one the launcher writes in the state folder."""
    return Path(named) if named else state_dir / "triton" / "key"


def is_refusal(text: str) -> bool:
    """Whether Triton's complaint says that a key is missing or wrong."""
    return "is restricted, expecting header" in text
