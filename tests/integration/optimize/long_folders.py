"""Folders that nobody prepared, one command each: what is served answers as the pipeline of transformers does.

With ``.ci/run models``: each is exported and judged, which takes half a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from deploy.laptop.demo.minilm import packaged_model
from tests.e2e.test_up_demo import Up, command
from tests.waiting import LIMIT_S

from . import tiny

TEXT = "the hotel was good and the train was late"
WITHIN_S = 1500
"""One command: half a minute of CPU, also beside other heavy work."""
pytestmark = [pytest.mark.integration, pytest.mark.timeout(WITHIN_S + 300)]


def slow(place: Path) -> Path:
    """A tokenizer as old models have it."""
    return tiny.without_tokenizer_json(tiny.make("Bert", place, seed=11))


def changed(place: Path, **how: Any) -> Path:
    """The same model saved in another way."""
    tiny.make("Bert", place, seed=12)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(place)
    (place / "model.safetensors").unlink()
    if how.pop("half", False):
        model = model.half()
    model.save_pretrained(place, **how)
    (shard, *others) = sorted(place.glob("*.safetensors"))
    assert bool(others) == ("max_shard_size" in how)
    assert {model.dtype} == {one.dtype for one in load_file(shard).values()}
    return place


OWN_CODE = """
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class OwnConfig(PretrainedConfig):
    model_type = "own-words"

    def __init__(self, vocab_size=600, hidden_size=16, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size, self.hidden_size = vocab_size, hidden_size


class OwnForSequenceClassification(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.words = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = torch.nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, **kwargs):
        mask = attention_mask.unsqueeze(-1).to(self.words.weight.dtype)
        mean = (self.words(input_ids) * mask).sum(1) / mask.sum(1)
        return SequenceClassifierOutput(logits=self.head(mean))
"""


def own_code(place: Path) -> Path:
    """A model that only its own Python code can run."""
    tiny.make("DistilBert", place, seed=13)
    (place / "modeling_own.py").write_text(OWN_CODE)
    config = {
        "model_type": "own-words", "architectures": ["OwnForSequenceClassification"], "vocab_size": 600,
        "hidden_size": 16, "max_position_embeddings": 128,
        "id2label": dict(enumerate(tiny.LABELS)), "label2id": {label: i for i, label in enumerate(tiny.LABELS)},
        "auto_map": {"AutoConfig": "modeling_own.OwnConfig",
                     "AutoModelForSequenceClassification": "modeling_own.OwnForSequenceClassification"},
    }  # fmt: skip
    (place / "config.json").write_text(json.dumps(config))
    torch.manual_seed(13)
    scope: dict[str, Any] = {"__name__": "modeling_own"}
    exec(OWN_CODE, scope)
    made = scope["OwnForSequenceClassification"](scope["OwnConfig"](num_labels=3))
    transformers.modeling_utils.PreTrainedModel.save_pretrained(made, place / "weights")
    (place / "weights" / "model.safetensors").replace(place / "model.safetensors")
    for left in (place / "weights").iterdir():
        left.unlink()
    (place / "weights").rmdir()
    return place


def sentence_transformer(place: Path) -> Path:
    """The real weights of all-MiniLM-L6-v2, as its package holds them."""
    place.symlink_to(packaged_model())
    return place


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "sentence-transformers": sentence_transformer,
    "slow-tokenizer": slow,
    "fp16": lambda place: changed(place, half=True),
    "sharded": lambda place: changed(place, max_shard_size="40KB"),
    "custom-code": own_code,
}  # fmt: skip


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One running stack for all of them."""
    running = Up(tmp_path_factory.mktemp("up"))
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


def deploy(up: Up, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One command."""
    argv = [*command(), "deploy", str(folder), "--state-dir", str(up.state), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=WITHIN_S, check=False, env=dict(os.environ))


def ask(up: Up, endpoint: str) -> Any:
    """What the bare name answers to the text."""
    request = urllib.request.Request(
        f"{up.gateway}/serve/{endpoint}", json.dumps({"text": TEXT}).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
        return json.loads(reply.read())


def pipeline_answer(folder: Path, *, trusts: bool) -> Any:
    """What transformers answers: probabilities by label, or the mean of the token vectors, normalised."""
    more = {"trust_remote_code": True} if trusts else {}
    if (folder / "modules.json").is_file():
        tokens = transformers.AutoTokenizer.from_pretrained(folder)([TEXT], return_tensors="pt")
        with torch.inference_mode():
            hidden = transformers.AutoModel.from_pretrained(folder)(**tokens).last_hidden_state[0].mean(0)
        return (hidden / hidden.norm()).numpy()
    pipeline = transformers.pipeline("text-classification", str(folder), dtype=torch.float32, **more)
    return {one["label"]: one["score"] for one in pipeline(TEXT, top_k=None)}


@pytest.mark.parametrize("name", list(FOLDERS))
def test_one_command_serves_it_and_it_answers_as_the_pipeline(up: Up, tmp_path: Path, name: str) -> None:
    """With code of its own only if that is trusted."""
    folder = FOLDERS[name](tmp_path / name)
    own = name == "custom-code"
    if own:
        refused = deploy(up, folder)
        assert 1 == refused.returncode
        assert "--trust-remote-code" in refused.stderr.splitlines()[-1]
    done = deploy(up, folder, *(["--trust-remote-code"] if own else []))
    assert 0 == done.returncode, done.stderr
    assert "$ curl -s" in done.stdout
    answer, true = ask(up, name), pipeline_answer(folder, trusts=own)
    if isinstance(true, dict):
        assert {label: pytest.approx(score, abs=1e-4) for label, score in true.items()} == answer["scores"]
    else:
        np.testing.assert_allclose(answer["embedding"], true, atol=1e-4)
