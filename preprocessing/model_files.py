"""Reads the files of a model folder, none larger than a limit.

Whoever registers a model writes these files. A parser holds the interpreter's lock, so a huge file would stop all
requests of the process for seconds, or take all of its memory.

Public: ``gateway`` and ``deploy`` may import it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

MAX_BYTES: Final = 8 << 20
"""Largest file of settings. A ``config.json`` with 50,000 labels has 2 MiB."""
MAX_TOKENIZER_BYTES: Final = 64 << 20
"""Largest ``tokenizer.json``. One with 250,000 words has 10 to 35 MB."""


def read_limited(path: Path, most: int = MAX_BYTES) -> bytes:
    """Return the content of a file. Raises ``ValueError`` before reading if it has more than ``most`` bytes."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"it has {-(-size >> 20)} MiB, at most {most >> 20} MiB are read")
        return file.read()


def read_json(path: Path, most: int = MAX_BYTES) -> Any:
    """Return the content of a JSON file. Raises ``OSError``, ``ValueError`` and ``RecursionError``."""
    return json.loads(read_limited(path, most).decode("utf-8"))
