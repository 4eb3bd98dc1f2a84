"""The state directory of ``triton-gateway up``: its layout, its lock, and the facts remembered between two starts.

One folder holds everything that ``up`` writes (logs, registry, Triton's repository, caches, the demo model), so
deleting it undoes everything. ``stack.py`` and the commands use it. Each part owns its subfolder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.tools.errors import DeployError
from gateway import durable, locks


@dataclass(frozen=True, slots=True)
class StateDir:
    """Paths inside one state directory; ``root`` is absolute, because children may work elsewhere."""

    root: Path

    @classmethod
    def at(cls, path: Path | str) -> StateDir:
        """Return the state directory at ``path``; nothing is created."""
        return cls(Path(path).expanduser().absolute())

    @property
    def logs(self) -> Path:
        """One log file per child."""
        return self.root / "logs"

    @property
    def facts(self) -> Path:
        """Facts remembered between two starts: serving Task, ports, demo model."""
        return self.root / "up.json"

    @property
    def env_file(self) -> Path:
        """The environment for the CLI, to be sourced; holds secrets."""
        return self.root / "env"

    @property
    def controlplane(self) -> Path:
        """The embedded control plane's own state."""
        return self.root / "controlplane"

    @property
    def repository(self) -> Path:
        """The model repository of the embedded Triton."""
        return self.root / "triton" / "repository"

    @property
    def sync_alive(self) -> Path:
        """The file that model sync touches after each round."""
        return self.root / "sync-alive"

    @property
    def demo(self) -> Path:
        """Exported demo bundles."""
        return self.root / "demo"

    @property
    def scratch(self) -> Path:
        """Temporary files of the commands ``up`` runs; emptied at start and end."""
        return self.root / "tmp"

    def prepare(self) -> None:
        """Create the directory, and check that it can be written. Raises ``DeployError``."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            trial = self.root / f".writable.{os.getpid()}"
            trial.touch()
            trial.unlink()
        except OSError as error:
            raise DeployError(
                f"the state directory {self.root} cannot be written ({error.strerror})",
                hint="free some space if the disk is full, or choose another with --state-dir",
            ) from error

    def clear_scratch(self) -> None:
        """Empty the folder of temporary files."""
        shutil.rmtree(self.scratch, ignore_errors=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory for this process. The kernel releases the lock when the process ends, however it ends.

        Raises ``DeployError``, which names the process that holds the lock.
        """
        with (self.root / "up.lock").open("a+") as lock:
            try:
                locks.lock(lock, waits=False)
            except BlockingIOError as error:
                lock.seek(0)
                holder = lock.read().strip()
                raise DeployError(
                    f"another `triton-gateway up` is running in {self.root}{f' (pid {holder})' if holder else ''}",
                    hint="stop it (Ctrl-C there), or start this one with another --state-dir",
                ) from error
            lock.truncate(0)
            os.write(lock.fileno(), str(os.getpid()).encode())
            try:
                yield
            finally:
                lock.truncate(0)

    def recall(self) -> dict[str, Any]:
        """Return the remembered facts; a missing or damaged file means none."""
        try:
            facts = json.loads(self.facts.read_text())
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def remember(self, **facts: Any) -> None:
        """Add to the remembered facts. The file is replaced atomically."""
        durable.replace(self.facts, json.dumps({**self.recall(), **facts}, indent=1) + "\n", mode=0o644)

    def read_env(self) -> dict[str, str]:
        """Return the variables of the file to ``source``; empty if there is none."""
        try:
            lines = self.env_file.read_text("utf-8", "surrogateescape").splitlines()
        except OSError:
            return {}
        words = [shlex.split(line.removeprefix("export ")) for line in lines]
        return dict(word[0].split("=", 1) for word in words if word and "=" in word[0])

    def write_env(self, variables: Mapping[str, str]) -> None:
        """Write variables as a file to ``source``, readable by its owner only."""
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        durable.replace(self.env_file, "".join(lines), mode=0o600)


def uses_no_clearml(environ: Mapping[str, str]) -> bool:
    """Return True if no ClearML server is configured, by neither a variable nor a configuration file."""
    path = environ.get("CLEARML_CONFIG_FILE") or "~/clearml.conf"
    return not environ.get("CLEARML_API_HOST") and not in_home(path).exists()


def in_home(path: str) -> Path:
    """Return a path with ``~`` replaced; a user without a home directory has no such file."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - `Path.expanduser` raises for such a user
