"""The work folder of a run of ``optimize``: in the output's file system, removed however the run ends.

Runs share nothing and find nothing by name, so no run can use another run's model, samples or answers.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def work_folder(output: Path) -> Iterator[Path]:
    """Create ``output`` and yield an empty folder in it, which is removed at the end, also after Ctrl-C or an error."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=".work-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def link(source: Path, target: Path) -> None:
    """Put a large file into a bundle: as a hard link if the disk supports it, otherwise as a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def file_hash(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
