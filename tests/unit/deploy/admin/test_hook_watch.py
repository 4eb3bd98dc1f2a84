"""Watching code: which file belongs to which endpoint, and what is uploaded or only reported."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from deploy.admin.hook_watch import Watcher, match, syntax_fault
from deploy.history.recorder import read
from gateway.spec import decode
from gateway.testing import FakeRegistry

SOURCE = "class Preprocess:\n    def process(self, body):\n        return 1\n"


@pytest.fixture
def registry() -> FakeRegistry:
    """A serving Task."""
    return FakeRegistry()


def deploy(registry: FakeRegistry, folder: Path, url: str, source: str, *, is_archive: bool = False) -> None:
    """An endpoint whose code is ``source``."""
    endpoint, _, version = url.partition("/")
    key = f"py_code_{url.replace('/', '_')}"
    uploaded = folder / f"{key}.py"
    uploaded.write_text(source)
    if is_archive:
        archive = folder / f"{key}.zip"
        with zipfile.ZipFile(archive, "w") as packed:
            packed.write(uploaded, "preprocess.py")
        uploaded = archive
    sha = hashlib.sha256(uploaded.read_bytes()).hexdigest()
    registry.add_artifact(key, uploaded, sha256=sha, is_archive=is_archive)
    registry.add_endpoint(endpoint, None, engine="custom", preprocess_artifact=key, version=version)


def test_file_belongs_to_the_endpoint_with_its_content_or_its_name(registry: FakeRegistry, tmp_path: Path) -> None:
    """Content first; then NAME.py, NAME/preprocess.py, and for uploaded folders NAME/."""
    store, hooks = tmp_path / "store", tmp_path / "hooks"
    store.mkdir()
    deploy(registry, store, "same", SOURCE)
    deploy(registry, store, "named/1", "other = 1")
    deploy(registry, store, "inside", "other = 2")
    deploy(registry, store, "folder", "other = 3", is_archive=True)
    deploy(registry, store, "nowhere", "other = 4")
    for name in ("any/thing.py", "named_1.py", "inside/preprocess.py", "folder/preprocess.py"):
        file = hooks / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(SOURCE if name == "any/thing.py" else f"edited = {name!r}")
    found = match(hooks, decode(registry.task()).endpoints, {})
    assert {
        "py_code_same": "any/thing.py",
        "py_code_named_1": "named_1.py",
        "py_code_inside": "inside/preprocess.py",
        "py_code_folder": "folder",
    } == {key: str(w.path.relative_to(hooks)) for key, w in found.items()}


def test_changes_are_uploaded_once_and_only_where_they_are_python(registry: FakeRegistry, tmp_path: Path) -> None:
    """Unchanged files are not uploaded; a syntax error is shown with its line; the repaired file is uploaded."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    deploy(registry, tmp_path, "h", SOURCE)
    file = hooks / "h.py"
    file.write_text(SOURCE)
    said: list[str] = []
    uploads: list[tuple[str, str, str]] = []

    def upload(task: str, key: str, path: Path) -> str:
        uploads.append((task, key, path.read_text()))
        return ""

    watcher = Watcher(hooks, registry, gateway="http://127.0.0.1:9", say=said.append, upload=upload)
    watcher.step()
    watcher.step()
    assert [] == uploads
    assert "h.py is the code of h" in said
    file.write_text(SOURCE + "def (:\n")
    watcher.step()
    assert [] == uploads
    assert any(line.startswith("h.py:4: SyntaxError") for line in said)
    file.write_text(SOURCE.replace("1", "2"))
    watcher.step()
    watcher.step()
    assert [("task", "py_code_h", SOURCE.replace("1", "2"))] == uploads
    assert "does not answer" in said[-1]


def test_file_that_differs_at_the_start_is_uploaded(registry: FakeRegistry, tmp_path: Path) -> None:
    """It was edited while the command did not run."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    deploy(registry, tmp_path, "h", SOURCE)
    (hooks / "h.py").write_text(SOURCE + "# edited\n")
    uploads: list[str] = []
    said: list[str] = []
    watcher = Watcher(
        hooks, registry, gateway="http://127.0.0.1:9", say=said.append,
        upload=lambda _task, key, _path: uploads.append(key) or "the disk is full",
    )  # fmt: skip
    watcher.step()
    assert ["py_code_h"] == uploads
    assert "h.py could not be uploaded: the disk is full" in said


def test_who_watches_is_told_in_the_history(registry: FakeRegistry, tmp_path: Path) -> None:
    """The upload itself has no author."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    deploy(registry, tmp_path, "h", SOURCE)
    (hooks / "h.py").write_text(SOURCE + "# edited\n")

    def upload(_task: str, _key: str, _path: Path) -> str:
        deploy(registry, tmp_path, "h", SOURCE + "# edited\n")
        return ""

    Watcher(hooks, registry, gateway="http://127.0.0.1:9", say=[].append, upload=upload, me="ann").step()
    assert [("h", "ann", "hook watch")] == [(one.subject, one.by, one.why) for one in read(registry).entries]


def test_registry_that_is_away_is_told_and_asked_again(registry: FakeRegistry, tmp_path: Path) -> None:
    """The command keeps watching."""
    said: list[str] = []
    registry.is_up = False
    Watcher(tmp_path, registry, gateway="http://127.0.0.1:9", say=said.append).step()
    assert "the serving Task cannot be read: the fake registry is down" in said[0]


def test_syntax_fault_looks_into_folders(tmp_path: Path) -> None:
    """Any of its files."""
    (tmp_path / "a.py").write_text("x = 1\n")
    assert "" == syntax_fault(tmp_path)
    (tmp_path / "b.py").write_text("x = (\n")
    assert "b.py:1: SyntaxError" in syntax_fault(tmp_path)
