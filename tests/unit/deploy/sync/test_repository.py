"""Whole models appear and disappear; everything else of the folder is somebody else's."""

from __future__ import annotations

import errno
import os
from unittest.mock import Mock

import pytest

from deploy.sync.repository import ModelRepository, OnDisk
from gateway.errors import ControlError

MODEL = OnDisk("a-1", "a/1", "m1", "r1", 2)


def contents(folder):
    """The texts of a model's files, without the marker."""
    files = (one for one in folder.rglob("*") if one.is_file() and one.name != ".triton-gateway.json")
    return {one.relative_to(folder).as_posix(): one.read_text() for one in files}


@pytest.fixture
def source(tmp_path):
    """A folder as the cache keeps it."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "net.onnx").write_text("weights")
    (folder / "code.py").write_text("x = 1")
    return folder


@pytest.fixture
def repository(tmp_path):
    """An open repository, in which a crash has left a model that was being written."""
    (tmp_path / "models" / ".staging" / "a-1.123.x").mkdir(parents=True)
    repository = ModelRepository(tmp_path / "models")
    repository.open()
    yield repository
    repository.close()


def is_clean(repository):
    """Whether nothing is in the folder, and nothing aside: Triton never sees half a model."""
    found = sorted(one.name for one in repository.root.rglob("*"))
    return found == [".staging", "lock"]


def test_a_written_model_is_complete_listed_replaced_as_a_whole_and_removed(repository, source):
    """Files, texts, config and what it says of itself; no file of the old build stays."""
    assert is_clean(repository)
    for model, config, name in ((MODEL, "old", "a"), (OnDisk("a-1", "a/1", "m1", "r2"), "new", "b")):
        path = repository.write(model, config, source, {f"1/{name}": "net.onnx"}, {"1/model.py": "pass"})
        assert {f"1/{name}": "weights", "1/model.py": "pass", "config.pbtxt": config} == contents(path)
        assert {"a-1": model} == repository.models()
    repository.remove("a-1")
    assert ({}, True) == (repository.models(), is_clean(repository))


@pytest.mark.parametrize("is_far", [False, True])
def test_weights_are_linked_and_code_is_copied(repository, source, monkeypatch, is_far):
    """No second copy of gigabytes, except on another volume; but nothing Triton may write to is the cache's."""
    if is_far:
        monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EXDEV, "Invalid cross-device link")))
    path = repository.write(MODEL, "", source, {"1/model.onnx": "net.onnx", "1/code.py": "code.py"})
    assert ("weights", "x = 1") == ((path / "1/model.onnx").read_text(), (path / "1/code.py").read_text())
    assert is_far is not (source / "net.onnx").samefile(path / "1/model.onnx")
    assert not (source / "code.py").samefile(path / "1/code.py")


def test_a_write_that_fails_leaves_nothing(repository, source, tmp_path):
    """Of files that are missing, or that a hostile archive links from this machine."""
    (tmp_path / "secret").write_text("x")
    (source / "leak").symlink_to(tmp_path / "secret")
    for name, said in (("gone.onnx", "cannot write model a-1"), ("leak", "leaves the model's folder")):
        with pytest.raises(ControlError, match=said):
            repository.write(MODEL, "", source, {"1/model.onnx": "net.onnx", "1/other": name})
        assert is_clean(repository)


def test_what_others_write_or_hold_is_left_alone(repository, source, tmp_path):
    """Models put there by hand; a folder of another model sync, whose half-written models are no left-overs."""
    (repository.root / "a-1" / "1").mkdir(parents=True)
    repository.remove("a-1")
    with pytest.raises(ControlError, match="was not written by triton-gateway"):
        repository.write(MODEL, "", source, {})
    assert ({}, True) == (repository.models(), (repository.root / "a-1" / "1").exists())
    with pytest.raises(ControlError, match="another model sync already writes"):
        ModelRepository(tmp_path / "models").open()
    with pytest.raises(ControlError, match="cannot use the model repository"):
        ModelRepository(source / "net.onnx" / "models").open()
