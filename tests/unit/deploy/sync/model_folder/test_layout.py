"""Which file goes where, and what kind of model that makes."""

from __future__ import annotations

import pytest

from deploy.sync.model_folder.layout import choose_kind, lay_out
from gateway.errors import SpecFault


@pytest.mark.parametrize(
    ("files", "backend", "kind"),
    [
        (["bert.onnx", "tokenizer.json"], "", "onnx"),
        (["model.bin"], "onnxruntime_onnx", "onnx"),
        (["m.pt"], "", "pytorch"),
        (["m.plan"], "", "tensorrt"),
        (["m.plan", "m.pt"], "", "folder"),
        (["m.plan", "m.onnx"], "", "onnx"),
        (["model.bin"], "", "folder"),
        (["x.onnx", "y"], "fil", "folder"),
    ],
)
def test_the_kind_follows_the_user_then_the_files(files, backend, kind):
    """The framework that clearml-serving records for a folder is a guess."""
    assert kind == choose_kind(files, backend)


@pytest.mark.parametrize(
    ("kind", "files", "mapping"),
    [
        ("onnx", ["weird name.bin"], {"1/model.onnx": "weird name.bin"}),
        ("onnx", ["model.onnx", "old.onnx", "vocab.txt"], {"1/model.onnx": "model.onnx"}),
        ("onnx", ["onnx/model.onnx", "onnx/q.onnx"], {"1/model.onnx": "onnx/model.onnx"}),
        ("pytorch", ["net.pth"], {"1/model.pt": "net.pth"}),
        ("tensorrt", ["b.engine", "vocab.txt"], {"1/model.plan": "b.engine"}),
        ("folder", ["a", "b/c"], {"1/a": "a", "1/b/c": "b/c"}),
        ("folder", ["only.xyz"], {"1/model.bin": "only.xyz"}),
        ("python", ["model.py"], {"1/model.py": "model.py"}),
    ],
)
def test_files_land_where_the_backend_looks(kind, files, mapping):
    """The single file of a model gets its backend's name, whatever it was called."""
    assert mapping == lay_out(kind, files)


def test_external_weights_stay_beside_the_model_under_their_own_names():
    """The ONNX file refers to them by that name."""
    files = ["sub/m.onnx", "sub/m.onnx.data", "other"]
    assert {"1/model.onnx": "sub/m.onnx", "1/m.onnx.data": "sub/m.onnx.data"} == lay_out(
        "onnx", files, external=["m.onnx.data"]
    )


@pytest.mark.parametrize("name", ["gone.data", "../escape", "/etc/passwd"])
def test_missing_or_escaping_weights_are_refused(name):
    """Said before Triton tries to load half a model; so are two candidates, of which the user decides."""
    with pytest.raises(SpecFault, match="keeps weights in"):
        lay_out("onnx", ["m.onnx"], external=[name])
    with pytest.raises(SpecFault, match=r"2 \.onnx files \(a\.onnx, b\.onnx\)"):
        lay_out("onnx", ["a.onnx", "b.onnx"])
