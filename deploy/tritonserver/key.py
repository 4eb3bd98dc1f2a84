"""Creates the key of an embedded Triton, in a file that only its owner may read; model sync reads it there.

The ``triton`` command calls it. For NVIDIA's server, images and manifests use ``deploy/docker/triton-entrypoint.sh``.
``gateway/triton/key.py`` is the reading side.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from deploy.tools import folders
from gateway.triton import key as control

RESTRICTED: Final = "model-repository,shared-memory,trace,logging"
"""APIs that can run code, write files or read other callers' memory.

The others (inference, health, metadata, model configuration, statistics) stay open: Triton's own clients use them, and
they change nothing.
"""


def ensure_key(named: str, state_dir: Path) -> str:
    """Return the key in the file ``named``, else in the state folder's file, which is created if it is missing.

    Only its owner may read the new file. Raises ``ValueError`` for a file without a key, ``OSError`` if none can be
    written.
    """
    file = control.key_file(named, state_dir)
    if key := control.read_key(file):
        return key
    folders.create_file(file, lambda: f"{secrets.token_hex(32)}\n")
    return control.read_key(file)


def arguments(key: str) -> tuple[str, ...]:
    """Return the arguments that make tritonserver require ``key``."""
    return (
        f"--http-restricted-api={RESTRICTED}:{control.HTTP_HEADER}={key}",
        f"--grpc-restricted-protocol={RESTRICTED}:{control.HTTP_HEADER}={key}",
    )


def hide(key: str, pid: int) -> bool:
    """Overwrite ``key`` in the command line of our own child ``pid``. Return True if `ps` no longer shows it.

    tritonserver takes the key only as an argument, and every user of a machine can read every command line. Once live,
    it has copied its arguments. Works if the kernel lets a parent write to its child's memory.
    """
    secret = key.encode()
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            raw = memory.read(end - start) or b""
            at = raw.find(secret)
            while at >= 0:
                memory.seek(start + at)
                memory.write(b"*" * len(secret))
                at = raw.find(secret, at + 1)
        return secret not in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return False
