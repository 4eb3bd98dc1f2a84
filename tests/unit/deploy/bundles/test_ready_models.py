"""A ready model becomes a folder to upload: its files, and nothing outside that folder."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

from deploy.bundles import ready_models
from deploy.bundles.judge import vocabulary
from deploy.bundles.model_kinds import recognise
from deploy.tools.errors import DeployError
from tests.unit.preprocessing.conftest import CLASSIFIER, WORDS, word_piece


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
    """Return the packed folder."""
    return ready_models.pack(recognise(str(path)), output, "m", lambda _: None, lambda _: None)


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


def test_a_name_that_is_a_path_stays_in_the_folder_of_bundles(tmp_path: Path) -> None:
    """Names of models in ClearML may have slashes."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.bin").write_bytes(b"\0\0\x80\x3f")
    given = recognise(str(graph(tmp_path / "model", "weights.bin")))
    folder = ready_models.pack(given, tmp_path / "out", "../team/m", lambda _: None, lambda _: None)
    assert tmp_path / "out" == folder.parent


@pytest.fixture
def contradicting(tmp_path: Path) -> Path:
    """An ONNX file with a tokenizer.json that keeps capitals, and settings with which transformers does not."""
    folder = tmp_path / "cased"
    folder.mkdir()
    tensors = [helper.make_tensor_value_info(name, TensorProto.INT64, [None, None]) for name in ("input_ids", "logits")]
    made = helper.make_graph([helper.make_node("Identity", ["input_ids"], ["logits"])], "g", [tensors[0]], [tensors[1]])
    model = helper.make_model(made, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    described = json.loads(word_piece().to_str())
    described["normalizer"]["lowercase"] = False
    config = {"architectures": ["BertForSequenceClassification"], "model_type": "bert", "vocab_size": 13}
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "unk_token": "[UNK]", "pad_token": "[PAD]",
                "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[SEP]"}  # fmt: skip
    for name, content in (("tokenizer", described), ("config", config), ("tokenizer_config", settings)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_tokens_are_those_of_transformers(contradicting: Path, tmp_path: Path) -> None:
    """Only the graph was compared, so such a model was said to answer equally."""
    said: list[str] = []
    given = recognise(str(contradicting))
    folder = ready_models.pack(given, tmp_path / "out", "m", said.append, lambda _: None)
    [note] = said
    assert "does not follow this tokenizer.json: its BertTokenizer makes other tokens for" in note
    served = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert served.encode("GOOD film").ids == served.encode("good film").ids
    assert "false" in (contradicting / "tokenizer.json").read_text()


def test_contradicting_files_are_refused_without_transformers(
    contradicting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both values, before anything is registered."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    said: list[str] = []
    with pytest.raises(DeployError, match=r"do_lower_case True, but tokenizer\.json has lowercase False"):
        ready_models.pack(recognise(str(contradicting)), tmp_path / "out", "m", said.append, lambda _: None)
    assert ["the tokens were not compared with those of transformers, which is not installed"] == said
    assert not [path for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")]


def summing(folder: Path, weights: np.ndarray) -> Path:
    """Write a classifier whose scores are the sums of its tokens' weights, with a tokenizer of thirteen words."""
    folder.mkdir()
    nodes = [
        helper.make_node("Gather", ["weights", "input_ids"], ["each"]),
        helper.make_node("ReduceSum", ["each", "tokens"], ["logits"], keepdims=0),
    ]
    constants = [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(np.array([1]), "tokens")]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [None, None])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [None, 3])
    made = helper.make_model(
        helper.make_graph(nodes, "g", [ids], [logits], constants), opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )  # fmt: skip
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    word_piece().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(CLASSIFIER))
    return folder


@pytest.mark.parametrize("token", [4, 7, 12])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_token_without_a_number_is_found_and_named(tmp_path: Path, token: int, value: float) -> None:
    """No text of a warm-up may hold it, and nothing else shows it: there is no original to compare with."""
    weights = np.ones((13, 3), np.float32)
    weights[token] = value
    with pytest.raises(DeployError, match=rf"the token '{WORDS[token]}' \({token}\) is not a number"):
        packed(summing(tmp_path / "model", weights), tmp_path / "out")
    weights[token] = 1
    packed(summing(tmp_path / "sound", weights), tmp_path / "out")


def test_a_graph_of_a_smaller_vocabulary_is_refused(tmp_path: Path) -> None:
    """Its tokenizer belongs to another model."""
    with pytest.raises(DeployError, match="cannot run a row"):
        packed(summing(tmp_path / "model", np.ones((12, 3), np.float32)), tmp_path / "out")


def test_trying_every_token_ends_in_time_and_says_so(tmp_path: Path) -> None:
    """A large model would take hours for a large vocabulary."""
    folder = summing(tmp_path / "model", np.ones((13, 3), np.float32))
    (folder / "config.json").write_text(json.dumps({**CLASSIFIER, "max_position_embeddings": 4}))
    said: list[str] = []
    clock = itertools.count(0, 40).__next__
    vocabulary.refuse_broken_tokens(folder / "model.onnx", folder, None, said.append, str, clock=clock)
    assert ["the first 2 of 9 tokens were tried, the others would take too long"] == said
