"""Whole models appear and disappear; everything else of the folder is somebody else's."""

from __future__ import annotations

import errno
import os

import pytest

from deploy.sync.repository import ModelRepository, OnDisk
from gateway.errors import ControlError

MODEL = OnDisk("a-1", "a/1", "m1", "r1", 2)


def names(folder):
    """What a folder holds."""
    return [one.name for one in folder.iterdir()]


@pytest.fixture
def source(tmp_path):
    """A folder as the cache keeps it."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "net.onnx").write_bytes(b"weights")
    (folder / "code.py").write_text("x = 1")
    return folder


@pytest.fixture
def repository(tmp_path):
    """An open repository."""
    repository = ModelRepository(tmp_path / "models")
    repository.open()
    yield repository
    repository.close()


def test_a_written_model_is_complete_listed_and_removed(repository, source):
    """Files, texts, config and what it says of itself."""
    path = repository.write(MODEL, "name: x", source, {"1/model.onnx": "net.onnx"}, {"1/model.py": "pass"})
    assert (b"weights", "pass", "name: x") == (
        (path / "1/model.onnx").read_bytes(),
        (path / "1/model.py").read_text(),
        (path / "config.pbtxt").read_text(),
    )
    assert {"a-1": MODEL} == repository.models()
    repository.remove("a-1")
    assert ({}, [".staging"]) == (repository.models(), names(repository.root))


def test_weights_are_linked_and_code_is_copied(repository, source):
    """No second copy of gigabytes; but nothing Triton may write to is shared with the cache."""
    path = repository.write(MODEL, "", source, {"1/model.onnx": "net.onnx", "1/code.py": "code.py"})
    assert (source / "net.onnx").samefile(path / "1/model.onnx")
    assert not (source / "code.py").samefile(path / "1/code.py")


def test_weights_on_another_volume_are_copied(repository, source, monkeypatch):
    """A pod has one volume for what is fetched and one for what Triton reads."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    path = repository.write(MODEL, "", source, {"1/model.onnx": "net.onnx"})
    assert b"weights" == (path / "1/model.onnx").read_bytes()
    assert not (source / "net.onnx").samefile(path / "1/model.onnx")


def test_a_new_build_replaces_the_old_one_of_the_same_name(repository, source):
    """As a whole: no file of the old build stays."""
    repository.write(MODEL, "old", source, {"1/a": "net.onnx"})
    path = repository.write(OnDisk("a-1", "a/1", "m1", "r2"), "new", source, {"1/b": "net.onnx"})
    assert (["b"], "new", "r2") == (
        names(path / "1"),
        (path / "config.pbtxt").read_text(),
        repository.models()["a-1"].recipe,
    )


def test_a_failed_write_leaves_nothing(repository, source):
    """Neither in the repository nor aside."""
    with pytest.raises(ControlError, match="cannot write model a-1"):
        repository.write(MODEL, "", source, {"1/model.onnx": "gone.onnx"})
    assert ([".staging"], ["lock"]) == (names(repository.root), names(repository.root / ".staging"))


def test_what_a_crash_left_is_cleared_at_the_start(tmp_path):
    """Triton never sees it."""
    first = ModelRepository(tmp_path / "models")
    first.open()
    (tmp_path / "models" / ".staging" / "a-1.123.x").mkdir()
    first.close()
    second = ModelRepository(tmp_path / "models")
    second.open()
    assert ["lock"] == names(tmp_path / "models" / ".staging")
    second.close()


def test_two_writers_of_one_repository_are_refused(repository, tmp_path):
    """They would take each other's half-written models for left-overs."""
    with pytest.raises(ControlError, match="another model sync already writes"):
        ModelRepository(tmp_path / "models").open()


def test_folders_of_others_are_neither_listed_removed_nor_replaced(repository, source):
    """A repository may be shared with models put there by hand."""
    (repository.root / "a-1" / "1").mkdir(parents=True)
    repository.remove("a-1")
    with pytest.raises(ControlError, match="was not written by triton-gateway"):
        repository.write(MODEL, "", source, {})
    assert ({}, True) == (repository.models(), (repository.root / "a-1" / "1").exists())


def test_a_link_out_of_the_models_folder_is_refused(repository, source, tmp_path):
    """An uploaded archive cannot publish files of this machine."""
    (tmp_path / "secret").write_text("x")
    (source / "leak").symlink_to(tmp_path / "secret")
    with pytest.raises(ControlError, match="leaves the model's folder"):
        repository.write(MODEL, "", source, {"1/leak": "leak"})


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    """One line with the reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ControlError, match="cannot use the model repository"):
        ModelRepository(tmp_path / "file" / "models").open()
