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
from typing import Final

from deploy.tools.folders import held, hold

_PREFIX: Final = ".work-"
_LOCK: Final = "lock"


@contextlib.contextmanager
def work_folder(output: Path) -> Iterator[Path]:
    """Create ``output`` and yield an empty folder in it, which is removed at the end, also after Ctrl-C or an error.

    The next run removes what a killed run left; folders of concurrent runs stay.
    """
    output.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(output)
    place = Path(tempfile.mkdtemp(dir=output, prefix=_PREFIX))
    try:
        with held(place / _LOCK):
            work = place / "run"
            work.mkdir()
            yield work
    finally:
        shutil.rmtree(place, ignore_errors=True)


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


def _remove_leftovers(output: Path) -> None:
    for place in output.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (place / _LOCK).open("a") as lock:
            hold(lock, waits=False)
            shutil.rmtree(place, ignore_errors=True)
