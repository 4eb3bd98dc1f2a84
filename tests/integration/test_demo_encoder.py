"""The demo's graph of all-MiniLM-L6-v2 against PyTorch with the same weights, and the bundle as a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import AutoModel

from deploy.laptop.demo.minilm import bundle, packaged_model

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where bundles are made."""
    return tmp_path_factory.mktemp("encoder") / "demo"


@pytest.fixture(scope="module")
def session(root: Path) -> onnxruntime.InferenceSession:
    """The graph, loaded beside its weights."""
    return onnxruntime.InferenceSession(bundle(root) / "model.onnx")


def answers(model: Any, given: dict[str, np.ndarray]) -> np.ndarray:
    """A model of transformers', pooled by code that shares nothing with the graph's. The gateway normalises."""
    with torch.no_grad():
        hidden = model(**{name: torch.from_numpy(value) for name, value in given.items()}).last_hidden_state.numpy()
    rows = [row[mask == 1].mean(0) for row, mask in zip(hidden, given["attention_mask"], strict=True)]
    return np.stack(rows)


@pytest.fixture(scope="module")
def original() -> Any:
    """The same weights in PyTorch."""
    return AutoModel.from_pretrained(packaged_model(), dtype=torch.float32).eval()


def tensors(batch: int, sequence: int) -> dict[str, np.ndarray]:
    """A padded batch with real token ids under the padding."""
    random = np.random.default_rng(batch * 1000 + sequence)
    lengths = random.integers(1, sequence + 1, size=batch)
    return {
        "input_ids": random.integers(1000, 20000, size=(batch, sequence), dtype=np.int64),
        "attention_mask": (np.arange(sequence)[None, :] < lengths[:, None]).astype(np.int64),
        "token_type_ids": np.zeros((batch, sequence), dtype=np.int64),
    }


@pytest.mark.parametrize(("batch", "sequence"), [(1, 1), (1, 5), (4, 9), (7, 33), (2, 256)])
def test_graph_answers_as_pytorch_does(
    session: onnxruntime.InferenceSession, original: Any, batch: int, sequence: int
) -> None:
    """Any batch and length, padded or not, within 1e-4 of the same weights in PyTorch."""
    given = tensors(batch, sequence)
    (actual,) = session.run(["sentence_embedding"], given)
    assert (batch, 384) == actual.shape
    np.testing.assert_allclose(actual, answers(original, given), atol=1e-4)


def test_no_torch_is_needed(tmp_path: Path) -> None:
    """A laptop has neither PyTorch, nor transformers, nor what writes graphs."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers', 'onnxscript', 'onnx', 'safetensors')));"
        "from pathlib import Path; from deploy.laptop.demo.minilm import bundle; print(bundle(Path(sys.argv[1])))"
    )  # None in sys.modules: not installed
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "model.onnx").is_file()
