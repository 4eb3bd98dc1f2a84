"""Uploads the code of deployed endpoints whenever its file changes, and reports whether a gateway serves it.

Writes what ``clearml-serving model add --preprocess`` writes: an artifact of the serving Task, through the ClearML SDK.
The SDK runs in a separate process, because it prints and keeps threads. Gateways apply it like any other change. Called
by ``commands/hook.py``; ``up --watch`` starts that command.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from deploy.admin.serving_task import EndpointSpec, RegistryWriter
from deploy.history.recorder import recorded
from deploy.tools import http_client
from deploy.tools.errors import GatewayError

_LOOK_S: Final = 0.3
"""Seconds between two checks of the files."""
_TASK_S: Final = 3.0
"""Seconds between two reads of the serving Task."""
_LIVE_S: Final = 60.0
"""Seconds to wait until a gateway serves the new code."""
_UPLOAD_S: Final = 120.0
"""Seconds that an upload may take."""

_UPLOAD: Final = """
import sys
from pathlib import Path
from clearml import Task
task = Task.get_task(task_id=sys.argv[1])
done = task.upload_artifact(name=sys.argv[2], artifact_object=Path(sys.argv[3]), wait_on_upload=True)
sys.exit(0 if done else 1)
"""

Upload = Callable[[str, str, Path], str]
"""``upload(task id, artifact name, file or folder)``; returns the reason of a failure, or an empty string."""


@dataclass(frozen=True, slots=True)
class Watched:
    """One artifact, the urls of the endpoints that use it, and the path of its source."""

    key: str
    urls: tuple[str, ...]
    path: Path


def match(folder: Path, endpoints: Mapping[str, EndpointSpec], known: Mapping[str, Path]) -> dict[str, Watched]:
    """Return the source of each artifact, by artifact name: from ``known``, else by content, else by file name."""
    urls: dict[str, list[str]] = {}
    for url, endpoint in sorted(endpoints.items()):
        if endpoint.preprocess is not None:
            urls.setdefault(endpoint.preprocess.key, []).append(url)
    by_hash = {_sha256(file): file for file in sorted(folder.rglob("*.py"), reverse=True)}
    found: dict[str, Watched] = {}
    for key, served in urls.items():
        endpoint = endpoints[served[0]]
        assert endpoint.preprocess is not None  # noqa: S101 - chosen for it
        path = known.get(key)
        if path is None and not endpoint.preprocess.is_archive:
            path = by_hash.get(endpoint.preprocess.sha256 or "")
        for name in (
            *(n for url in served for n in (url, url.replace("/", "_"))),
            *(endpoints[u].endpoint for u in served),
        ):
            if path is not None:
                break
            path = _named(folder, name, is_archive=endpoint.preprocess.is_archive)
        if path is not None:
            found[key] = Watched(key, tuple(served), path)
    return found


def _named(folder: Path, name: str, *, is_archive: bool) -> Path | None:
    inside = folder / name
    places = [inside] if is_archive else [folder / f"{name}.py", inside / "preprocess.py"]
    return next((p for p in places if (p.is_dir() if is_archive else p.is_file())), None)


def syntax_fault(path: Path) -> str:
    """Return the first syntax error in the Python files of ``path``, as ``file:line: reason``; empty if none."""
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        try:
            compile(file.read_bytes(), file.name, "exec", dont_inherit=True)
        except SyntaxError as error:
            return f"{file.name}:{error.lineno}: {type(error).__name__}: {error.msg}"
        except (OSError, ValueError) as error:
            return f"{file.name}: {error}"
    return ""


class Watcher:
    """Checks the files a few times a second, and the serving Task every few seconds."""

    def __init__(
        self,
        folder: Path,
        store: RegistryWriter,
        *,
        gateway: str,
        say: Callable[[str], object],
        upload: Upload | None = None,
        me: str = "somebody",
    ) -> None:
        self._folder = folder
        self._store = store
        self._gateway = gateway
        self._me = me
        self._say = say
        self._upload = upload or upload_through_sdk
        self._known: dict[str, Path] = {}
        self._prints: dict[str, str] = {}
        self._watched: dict[str, Watched] = {}
        self._task_id = ""
        self._looked_at = 0.0

    def run(self) -> NoReturn:
        """Watch until interrupted."""
        self._say(f"watching {self._folder}")
        while True:
            self.step()
            time.sleep(_LOOK_S)

    def step(self) -> None:
        """Check once, and upload changed code."""
        now = time.monotonic()
        if now - self._looked_at >= _TASK_S or not self._looked_at:
            self._looked_at = now
            self._read_task()
        for watched in self._watched.values():
            try:
                digest = _fingerprint(watched.path)
            except OSError:
                continue  # an editor is writing it right now
            if digest != self._prints.get(watched.key):
                self._changed(watched, digest)

    def _read_task(self) -> None:
        try:
            serving = self._store.spec()
        except GatewayError as error:
            self._say(f"the serving Task cannot be read: {error.message}")
            return
        self._task_id = serving.task_id
        found = match(self._folder, serving.endpoints, self._known)
        for key, watched in found.items():
            if key not in self._watched:
                self._known[key] = watched.path
                code = serving.endpoints[watched.urls[0]].preprocess
                assert code is not None  # noqa: S101 - matched for it
                is_same = watched.path.is_file() and _sha256(watched.path) == code.sha256
                # A file that differs from the served code is uploaded at once. Archives of folders cannot be compared.
                self._prints[key] = _fingerprint(watched.path) if is_same or watched.path.is_dir() else ""
                self._say(f"{watched.path.relative_to(self._folder)} is the code of {', '.join(watched.urls)}")
        self._watched = found

    def _changed(self, watched: Watched, digest: str) -> None:
        name = watched.path.relative_to(self._folder)
        self._prints[watched.key] = digest
        fault = syntax_fault(watched.path)
        if fault:
            self._say(f"{fault}; not uploaded")
            return
        before = self._serving(watched.urls[0])
        with recorded(self._store, endpoints=watched.urls, by=self._me, why="hook watch"):
            reason = self._upload(self._task_id, watched.key, watched.path)
        if reason:
            self._say(f"{name} could not be uploaded: {reason}")
            return
        self._say(f"{name} was uploaded")
        for url in watched.urls:
            self._say(f"  {url} {self._outcome(url, before)}")

    def _outcome(self, url: str, before: object) -> str:
        began = time.monotonic()
        while time.monotonic() - began < _LIVE_S:
            now = self._serving(url)
            if now is None:
                return f"cannot be checked: {self._gateway} does not answer"
            state, reason, build = now
            if state == "failed":
                return f"cannot be served with the new code: {reason}"
            if state == "serving" and (before is None or build != before[2]):  # type: ignore[index] # as now
                return f"serves the new code after {time.monotonic() - began:.1f} s"
            time.sleep(0.2)
        return f"does not serve the new code after {_LIVE_S:.0f} s; see `triton-gateway status`"

    def _serving(self, url: str) -> tuple[str, str, str] | None:
        """Return state, reason and fingerprint of an endpoint at the gateway; None if it does not answer."""
        answer = http_client.call_gateway(f"{self._gateway}/v1/status")
        if answer is None or answer.status != 200 or not isinstance(answer.content, dict):
            return None
        for endpoint in answer.content["endpoints"]:
            if endpoint["url"] == url:
                successor = endpoint["successor"]
                if successor is not None:
                    return successor["state"], successor["reason"], endpoint["fingerprint"]
                return "serving", "", endpoint["fingerprint"]
        for entry in answer.content["pending"]:
            if entry["url"] == url:
                return entry["state"], entry["reason"], ""
        return "unknown", "", ""


def upload_through_sdk(task_id: str, key: str, path: Path) -> str:
    """See ``Upload``."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _UPLOAD, task_id, key, str(path)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_UPLOAD_S,
            env={**os.environ, "CLEARML_SUPPRESS_UPDATE_MESSAGE": "1"}, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it took longer than {_UPLOAD_S:g} s"
    if done.returncode == 0:
        return ""
    return (done.stdout.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _fingerprint(path: Path) -> str:
    digest = hashlib.sha256()
    for file in _files(path):
        digest.update(f"{file.name}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts and not file.name.startswith("."):
            yield file


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
