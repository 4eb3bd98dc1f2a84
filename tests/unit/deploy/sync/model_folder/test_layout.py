"""Which file goes where, and what kind of model that makes."""

from __future__ import annotations

import pytest

from deploy.sync.model_folder.layout import choose_kind, lay_out
from gateway.errors import SpecFault

CASES = [
    (["bert.onnx", "vocab.txt"], "", "onnx", {"1/model.onnx": "bert.onnx"}),
    (["weird name.bin"], "onnxruntime_onnx", "onnx", {"1/model.onnx": "weird name.bin"}),
    (["model.onnx", "old.onnx", "m.plan"], "", "onnx", {"1/model.onnx": "model.onnx"}),
    (["onnx/model.onnx", "onnx/q.onnx"], "", "onnx", {"1/model.onnx": "onnx/model.onnx"}),
    (["net.pth"], "", "pytorch", {"1/model.pt": "net.pth"}),
    (["b.engine", "vocab.txt"], "", "tensorrt", {"1/model.plan": "b.engine"}),
    (["m.plan", "m.pt"], "", "folder", {"1/m.plan": "m.plan", "1/m.pt": "m.pt"}),
    (["only.xyz"], "", "folder", {"1/model.bin": "only.xyz"}),
    (["x.onnx", "b/c"], "fil", "folder", {"1/x.onnx": "x.onnx", "1/b/c": "b/c"}),
    (["model.py"], "python", "python", {"1/model.py": "model.py"}),
]
"""Files, the user's backend, the kind, and where files land."""


@pytest.mark.parametrize(("files", "backend", "kind", "mapping"), CASES)
def test_the_kind_follows_the_user_then_the_files_which_land_where_the_backend_looks(files, backend, kind, mapping):
    """The framework that clearml-serving records is a guess; a single file gets its backend's name."""
    assert kind == choose_kind(files, backend)
    assert mapping == lay_out(kind, files)


@pytest.mark.parametrize("name", ["gone.data", "../escape", "/etc/passwd"])
def test_external_weights_stay_beside_the_model_under_their_own_names(name):
    """The ONNX file refers to them by that name. Missing or escaping ones are refused before Triton loads half a
    model; so are two candidates, of which the user decides.
    """
    files = ["sub/m.onnx", "sub/m.onnx.data", "other"]
    expected = {"1/model.onnx": "sub/m.onnx", "1/m.onnx.data": "sub/m.onnx.data"}
    assert expected == lay_out("onnx", files, external=["m.onnx.data"])
    with pytest.raises(SpecFault, match="keeps weights in"):
        lay_out("onnx", files, external=[name])
    with pytest.raises(SpecFault, match=r"2 \.onnx files \(a\.onnx, b\.onnx\)"):
        lay_out("onnx", ["a.onnx", "b.onnx"])
