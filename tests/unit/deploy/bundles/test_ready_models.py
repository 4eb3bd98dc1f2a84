"""A ready model becomes a folder to upload: its files, and nothing outside that folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from deploy.bundles import ready_models
from deploy.bundles.model_kinds import recognise
from deploy.tools.errors import DeployError
from tests.tiny import counting_bundle


def graph(folder: Path, location: str) -> Path:
    """Return an ONNX file whose weights are in the file ``location``, relative to it."""
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value=location)
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 1]) for name in ("x", "y")]
    made = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "g", [tensors[0]], [tensors[1]], [weights])
    path = folder / "graph.onnx"
    path.write_bytes(helper.make_model(made).SerializeToString())
    return path


def packed(path: Path, output: Path) -> Path:
    """Return the packed folder. Names of models in ClearML may have slashes: it stays in the folder of bundles."""
    folder = ready_models.pack(recognise(str(path)), output, "../team/m")
    assert output == folder.parent
    return folder


@pytest.mark.parametrize("location", ["weights.bin", "parts/weights.bin"])
def test_weights_beside_the_graph_are_packed_with_it(tmp_path: Path, location: str) -> None:
    """Also those in a folder."""
    (tmp_path / "model" / "parts").mkdir(parents=True)
    (tmp_path / "model" / location).write_bytes(b"\0\0\x80\x3f")
    folder = packed(graph(tmp_path / "model", location), tmp_path / "out")
    assert {"model.onnx", location} == {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert b"\0\0\x80\x3f" == (folder / location).read_bytes()


@pytest.mark.parametrize("location", ["../secret", "{root}/model/../secret", "..", "a/../../secret", "n" * 300, "none"])
def test_weights_elsewhere_are_refused_and_nothing_is_written_there(tmp_path: Path, location: str) -> None:
    """Whoever made the graph would choose which file is read, and which one is overwritten."""
    (tmp_path / "model").mkdir()
    (tmp_path / "secret").write_bytes(b"mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "secret").write_bytes(b"mine, too")
    path = graph(tmp_path / "model", location.format(root=tmp_path))
    with pytest.raises(DeployError, match=r"graph\.onnx keeps its weights in"):
        packed(path, tmp_path / "out")
    assert {"secret": b"mine, too"} == {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    assert b"mine" == (tmp_path / "secret").read_bytes()


def test_contradicting_files_are_refused(tmp_path: Path) -> None:
    """With both values, before anything is registered."""
    folder = counting_bundle(tmp_path / "lowers")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "unk_token": "[UNK]", "pad_token": "[PAD]",
                "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[SEP]"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(DeployError, match=r"do_lower_case False, but tokenizer\.json has lowercase True"):
        ready_models.pack(recognise(str(folder)), tmp_path / "out", "m")
    assert not [path for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")]
