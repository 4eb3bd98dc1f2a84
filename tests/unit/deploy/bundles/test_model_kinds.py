"""What can be served is recognised by its files; everything else is refused in a sentence that says what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.bundles.model_kinds import recognise
from deploy.tools.errors import DeployError

BERT = {"architectures": ["BertForSequenceClassification"], "model_type": "bert", "id2label": {"0": "a", "1": "b"}}


def folder(place: Path, files: Mapping[str, Any]) -> Path:
    """A folder of small files: objects as JSON, texts as they are."""
    for name, content in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return place


@pytest.mark.parametrize(
    ("files", "named", "kind", "task"),
    [
        ({"config.json": BERT, "model.safetensors": "w", "tokenizer.json": {}}, "", "transformers",
         "text-classification"),
        ({"config.json": {"architectures": ["BertModel"]}, "modules.json": [], "pytorch_model.bin": "w",
          "vocab.txt": "a"}, "", "transformers", "sentence-embeddings"),
        ({"config.json": BERT, "onnx/model.onnx": "g", "tokenizer.json": {}}, "", "onnx", "text-classification"),
        ({"config.json": BERT, "model.onnx": "g", "tokenizer.json": {}}, "model.onnx", "onnx", "text-classification"),
        ({"config.json": BERT, "model.onnx": "g", "tokenizer.json": {}, "manifest.json": {"chosen": {}}}, "", "bundle",
         "text-classification"),
        ({"model.onnx": "g"}, "model.onnx", "onnx", ""),
        ({"clf.pkl.gz": "p"}, "clf.pkl.gz", "sklearn", ""),
        ({"trees.ubj": "p"}, "", "xgboost", ""),
        ({"trees.json": '{"learner":{}}'}, "trees.json", "xgboost", ""),
        ({"trees.txt": "tree\nversion=v4\n"}, "trees.txt", "lightgbm", ""),
    ],
)  # fmt: skip
def test_what_can_be_served_is_recognised(
    tmp_path: Path, files: Mapping[str, Any], named: str, kind: str, task: str
) -> None:
    """By its files, without reading weights."""
    found = recognise(str(folder(tmp_path / "my-model", files) / named))
    assert (kind, task) == (found.kind, found.config.task if found.config else "")


@pytest.mark.parametrize(
    ("files", "named", "words"),
    [
        ({}, "", ["holds no model", "ONNX"]),
        ({"adapter_config.json": {}, "adapter_model.safetensors": "w"}, "", ["holds no model", "merge_and_unload"]),
        ({"model.gguf": "g"}, "model.gguf", ["not a model file of a known kind", "folder of the original"]),
        ({"model.h5": "g"}, "", ["holds no model", "Keras", "ONNX"]),
        ({"a.onnx": "g", "b.onnx": "g"}, "", ["2 graphs", "a.onnx"]),
        ({"model.onnx": "g", "tokenizer.json": {}}, "", ["no config.json", "copy it"]),
        ({"model.onnx": "g", "config.json": BERT}, "", ["no tokenizer.json", "save_pretrained"]),
        ({"config.json": {"architectures": ["ViTForImageClassification"]}, "model.safetensors": "w"}, "",
         ["ViTForImageClassification", "--task", "fill-mask"]),
        ({"config.json": {"architectures": ["AForMaskedLM", "AForTokenClassification"]}, "model.safetensors": "w"}, "",
         ["several architectures", "--task fill-mask or --task token-classification"]),
        ({"config.json": BERT, "model.safetensors": "w"}, "", ["no tokenizer", "save_pretrained"]),
        ({"config.json": BERT, "tokenizer.json": {}, "model.safetensors": "version https://git-lfs.github.com/spec/v1"},
         "", ["pointer of git-lfs", "lfs pull"]),
        ({"one-ort-1a/config.json": BERT, "one-ort-1a/model.onnx": "g", "one-ort-1a/tokenizer.json": {},
          "one-ort-1a/manifest.json": {"chosen": {}}}, "",
         ["my-model holds models (one-ort-1a), but is none itself", "give one: ", "my-model/one-ort-1a"]),
        ({"a/config.json": BERT, "a/model.onnx": "g", "b/c/model.onnx": "g", "b/c/config.json": BERT}, "",
         ["holds models (", "a", "b/c", "give one: "]),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_with_what_to_do(
    tmp_path: Path, files: Mapping[str, Any], named: str, words: list[str]
) -> None:
    """One sentence, never a message about savedmodel."""
    place = folder(tmp_path / "my-model", files)
    place.mkdir(exist_ok=True)
    with pytest.raises(DeployError) as told:
        recognise(str(place / named))
    assert all(word in told.value.line() for word in words), told.value.line()
    assert "\n" not in told.value.line()


@pytest.mark.parametrize("given", ["./nothing", "/no/such", "a b", "a/b/c"])
def test_a_folder_that_is_not_there_is_no_hub_name(given: str) -> None:
    """Nobody asks the network for a typing mistake in a path."""
    with pytest.raises(DeployError, match="no folder or file"):
        recognise(given)


def test_hub_names_and_tasks(tmp_path: Path) -> None:
    """A name that could be the hub's is one; a task is checked at once."""
    assert ("transformers", "tiny") == (recognise("someone/tiny").kind, recognise("someone/tiny").name)
    with pytest.raises(DeployError, match="no task sentiment"):
        recognise(str(tmp_path), task="sentiment")
    chosen = folder(tmp_path / "m", {"config.json": {"architectures": ["Odd"]}, "model.safetensors": "w",
                                      "tokenizer.json": {}})  # fmt: skip
    config = recognise(str(chosen), task="fill-mask").config
    assert config is not None
    assert "fill-mask" == config.task
