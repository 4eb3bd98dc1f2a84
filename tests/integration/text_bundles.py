"""Small text bundles, and a way to register and deploy them without the start-up time of the stock CLI."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from deploy.tools import sections
from tests import tiny

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


def text_model(path: Path, *, inputs: tuple[str, str] = ("input_ids", "attention_mask"), rows: int = 11,
               operator: str = "Gather") -> None:  # fmt: skip
    """Save a classifier: how often 'bad' and 'good' occur."""
    table = np.zeros((rows, 2), np.float32)
    table[5, 0] = table[4, 1] = 1.0
    tensors = [(name, kind, shape) for name, (_, kind, shape) in zip(inputs, tiny.TOKENS, strict=True)]
    domain = "" if operator == "Gather" else "nobody.knows"
    tiny.summed(path, table, "logits", inputs=tensors, operator=operator, domain=domain)


def text_bundle(folder: Path) -> Path:
    """A complete bundle: model, tokenizer, config, and a sample with its answer."""
    tiny.counting_bundle(folder)
    sample = {"body": {"text": "good film"}, "answer": {"label": "GOOD", "score": 0.731}}
    (folder / "warmup.json").write_text(json.dumps({"samples": [sample]}))
    return folder


def code_bundle(folder: Path, at_import: str = "pass", at_load: str = "pass", at_call: str = "pass") -> Path:
    """A bundle that is code, and any weights."""
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"weights")
    code = CODE.format(at_import=at_import, at_load=at_load, at_call=at_call)
    (folder / "preprocess.py").write_text(code)
    return folder


class Api:
    """Models and endpoints written straight into the registry: what the stock CLI sends, without its start-up time."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._host, self._task = environ["CLEARML_API_HOST"], environ["CLEARML_SERVING_TASK_ID"]
        keys = f"{environ['CLEARML_API_ACCESS_KEY']}:{environ['CLEARML_API_SECRET_KEY']}"
        self._headers = {"authorization": f"Basic {base64.b64encode(keys.encode()).decode()}"}
        token = self("auth.login", {})["token"]
        self._headers = {"authorization": f"Bearer {token}"}

    def __call__(self, action: str, body: dict[str, Any]) -> Any:
        reply = httpx.post(f"{self._host}/{action}", json=body, headers=self._headers, timeout=30)
        assert reply.status_code == 200, reply.text
        return reply.json()["data"]

    def model(self, archive: Path, *, uri: str = "", sha256: str = "") -> str:
        """Register an archive and return the model's id."""
        fields = {"uri": uri or archive.as_uri(), "name": archive.stem, "framework": "onnx", "ready": True,
                  "system_tags": ["package"]}  # fmt: skip
        model_id = str(self("models.create", fields)["id"])
        if sha256:
            item = {"key": "sha256", "type": "str", "value": sha256}
            self("models.add_or_update_metadata", {"model": model_id, "metadata": [item]})
        return model_id

    def endpoints(self, entries: dict[str, dict[str, Any]]) -> None:
        """Replace the serving Task's endpoints."""
        item = {"name": "endpoints", "value": sections.render(entries)}
        self("tasks.edit_configuration", {"task": self._task, "configuration": [item], "force": True})


def packed(folder: Path) -> Path:
    """Zip a bundle."""
    return Path(shutil.make_archive(str(folder), "zip", folder))
