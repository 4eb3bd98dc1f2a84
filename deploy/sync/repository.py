"""The model repository: the directory from which Triton loads. Models appear and disappear in one rename.

Model sync is its only writer. It assembles a model in a hidden staging folder, syncs its files to disk and renames it
into place. It lists and removes only folders with its own marker file, so a repository may contain other models. It
never changes a file of the cache: Triton gets hard links to immutable files, or copies.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from deploy.sync.errors import RepositoryUnusable
from deploy.tools import folders
from gateway import locks

MARKER = ".triton-gateway.json"


@dataclass(frozen=True, slots=True)
class OnDisk:
    """The marker of a written model: its endpoint and model, and the recipe it was built with."""

    name: str
    url: str
    model_id: str
    recipe: str
    instances: int = 0
    """Processes that run it on a python backend; 0 if unknown."""


_MARKER = TypeAdapter(OnDisk)
"""Fields that a newer release has written are ignored: a folder that no release recognised would never be removed."""


class ModelRepository:
    """One model repository and its staging folder. ``open`` takes the lock that makes this process its only writer."""

    def __init__(self, root: Path) -> None:
        self.root = root
        """The folder to give to ``tritonserver --model-repository``."""
        # Inside, because renames are atomic only within one file system. Triton looks only at what it is told to load.
        self._staging = root / ".staging"
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Create the folders, take the lock and remove leftovers of a crash. Raises ``RepositoryUnusable``."""
        with _reporting_os_errors(f"cannot use the model repository {self.root}"):
            self._staging.mkdir(parents=True, exist_ok=True)
            self._lock = (self._staging / "lock").open("a")
            try:
                locks.lock(self._lock, waits=False)
            except BlockingIOError as error:
                self.close()
                raise RepositoryUnusable(
                    f"another model sync already writes to {self.root}",
                    hint="stop it, or give this one its own --repository",
                ) from error
            for orphan in self._staging.iterdir():
                shutil.rmtree(orphan, ignore_errors=True)  # which leaves the lock, a file

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def models(self) -> dict[str, OnDisk]:
        """Return the models that model sync wrote, by name."""
        found: dict[str, OnDisk] = {}
        with _reporting_os_errors(f"cannot read the model repository {self.root}"):
            for marker in self.root.glob(f"*/{MARKER}"):
                try:
                    model = _MARKER.validate_json(marker.read_bytes())
                except ValueError:
                    continue  # not readable as a marker of ours: the model is written again if it is wanted
                if model.name == marker.parent.name:
                    found[model.name] = model
        return found

    def write(self, model: OnDisk, config: str, source: Path, files: Mapping[str, str],
              texts: Mapping[str, str] | None = None) -> Path:  # fmt: skip
        """Put a model in place in one rename, after an older build of the same name was moved out of the way.

        ``files`` maps paths in the model folder to paths in ``source``; ``texts`` are small files given as text. Raises
        ``RepositoryUnusable`` (disk full, no permission) and then leaves nothing behind.
        """
        with _reporting_os_errors(f"cannot write model {model.name} to {self.root}"):
            target = self.root / model.name
            if target.exists() and not (target / MARKER).exists():
                raise RepositoryUnusable(f"{target} exists and was not written by triton-gateway", hint="move it away")
            given = {**(texts or {}), "config.pbtxt": config, MARKER: json.dumps(asdict(model), indent=1)}
            with folders.aside(self._staging, target) as part:
                for name, origin in files.items():
                    _place(source, source / origin, part / name)
                for name, text in given.items():
                    (part / name).parent.mkdir(parents=True, exist_ok=True)
                    (part / name).write_text(text, "utf-8")
                self.remove(model.name)
            return target

    def remove(self, name: str) -> None:
        """Remove a model of ours in one rename, then delete its files."""
        with _reporting_os_errors(f"cannot remove model {name} from {self.root}"):
            target = self.root / name
            if not (target / MARKER).exists():
                return
            gone = Path(tempfile.mkdtemp(dir=self._staging))
            target.rename(gone / name)
            shutil.rmtree(gone, ignore_errors=True)


def _place(root: Path, origin: Path, target: Path) -> None:
    real = origin.resolve(strict=True)
    if not real.is_relative_to(root.resolve()):
        raise RepositoryUnusable(
            f"{origin.name} is a link that leaves the model's folder", hint="upload the file itself"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # Code may write next to itself or into itself, so it is copied. Large immutable weights are linked.
    if real.suffix != ".py":
        try:
            os.link(real, target)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES):
                raise
        else:
            return
    shutil.copyfile(real, target)


@contextlib.contextmanager
def _reporting_os_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RepositoryUnusable(f"{what}: {error.strerror or error}") from error
