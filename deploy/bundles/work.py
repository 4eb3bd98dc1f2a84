"""Where a run of ``optimize`` works: a folder of its own in the output's file system, removed however the run ends.

Nothing is shared between runs and nothing is found again by a name, so that no run can take another's model, samples or
answers for its own.
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
    """Make ``output`` and give an empty folder in it, which is removed at the end, also after Ctrl-C or an error.

    What a killed run left is removed by the next one; runs beside this one keep theirs.
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
    """Put a large file into a bundle: the same one where the disk can, else a copy."""
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
