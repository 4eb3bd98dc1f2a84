"""The key of a Triton's control APIs: reads it from its file, and names the header that carries it.

A Triton that is started with a key requires it for loading models (which runs code), the repository index, shared
memory, and log and trace settings. Inference, health and metadata stay open. Triton calls this restricted APIs. The
file is read for every call that needs the key (such calls are rare), so a replaced key is used at once.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

HTTP_HEADER: Final = "triton-gateway-key"
GRPC_HEADER: Final = f"triton-grpc-protocol-{HTTP_HEADER}"
"""The same header over gRPC, with Triton's prefix."""

_FORM: Final = re.compile(r"[A-Za-z0-9_-]{16,512}")


def read_key(file: str | Path) -> str:
    """Return the key in ``file``; empty if no file is named or it does not exist.

    Raises ``ValueError`` if the file does not hold a key or cannot be read.
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
    """Return the key's file: the ``named`` one, else the one that the launcher writes to the state folder."""
    return Path(named) if named else state_dir / "triton" / "key"


def is_refusal(text: str) -> bool:
    """Return whether Triton's error message says that the key is missing or wrong."""
    return "is restricted, expecting header" in text
