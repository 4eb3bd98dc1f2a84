"""Small text bundles, and a way to register and deploy them without the start-up time of the stock CLI."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto
from tokenizers import Tokenizer, models, pre_tokenizers

from deploy.tools import sections
from tests import tiny
from tests.stock import Client

WORDS = ["[PAD]", "[UNK]", "good", "bad", "film"]


CODE = """
import threading
{at_import}
class Preprocess:
    def load(self, path=None):
        {at_load}
    def process(self, body, state, collect_custom_statistics_fn=None):
        {at_call}
        return {{"label": "GOOD"}}
"""


def text_model(path: Path, *, inputs: tuple[str, str] = ("input_ids", "attention_mask"), rows: int = 5,
               operator: str = "Gather") -> None:  # fmt: skip
    """Save a classifier: each token has a value per class, a text has their sum."""
    table = np.zeros((rows, 2), np.float32)
    table[2, 1] = table[3, 0] = 1.0
    given = [(name, TensorProto.INT64, ("batch", "sequence")) for name in inputs]
    tiny.summed(
        path, table, "logits", inputs=given, operator=operator, domain="" if operator == "Gather" else "nobody.knows"
    )


def text_bundle(folder: Path, **model: Any) -> Path:
    """A complete bundle: model, tokenizer, config, and a sample with its answer."""
    folder.mkdir()
    text_model(folder / "model.onnx", **model)
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["BertForSequenceClassification"], "model_type": "bert", "pad_token_id": 0,
        "id2label": {"0": "BAD", "1": "GOOD"}, "max_position_embeddings": 32,
    }))  # fmt: skip
    sample = {"body": {"text": "good film"}, "answer": {"label": "GOOD", "score": 0.731}}
    (folder / "warmup.json").write_text(json.dumps({"samples": [sample]}))
    return folder


def code_bundle(folder: Path, at_import: str = "pass", at_load: str = "pass", at_call: str = "pass") -> Path:
    """A bundle that is code, any weights, and a sample that its code is tried with."""
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"weights")
    code = CODE.format(at_import=at_import, at_load=at_load, at_call=at_call)
    (folder / "preprocess.py").write_text(code)
    (folder / "warmup.json").write_text(json.dumps({"samples": [{"body": {"text": "good film"}}]}))
    return folder


class Api:
    """Models and endpoints written straight into the registry: what the stock CLI sends, without its start-up time."""

    def __init__(self, client: Client) -> None:
        self._task, self._call = client.task, client.server.call

    def model(self, archive: Path, *, uri: str = "", sha256: str = "") -> str:
        """Register an archive and return the model's id."""
        fields = {"uri": uri or archive.as_uri(), "name": archive.stem, "framework": "onnx", "ready": True,
                  "system_tags": ["package"]}  # fmt: skip
        model_id = str(self._call("models.create", **fields)["id"])
        if sha256:
            item = {"key": "sha256", "type": "str", "value": sha256}
            self._call("models.add_or_update_metadata", model=model_id, metadata=[item])
        return model_id

    def endpoints(self, entries: dict[str, dict[str, Any]]) -> None:
        """Replace the serving Task's endpoints."""
        item = {"name": "endpoints", "value": sections.render(entries)}
        self._call("tasks.edit_configuration", task=self._task, configuration=[item], force=True)


def packed(folder: Path) -> Path:
    """Zip a bundle."""
    archive = folder.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as out:
        for file in sorted(folder.iterdir()):
            out.write(file, file.name)
    return archive
