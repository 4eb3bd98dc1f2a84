"""Every task against the library whose answers it promises: `transformers`' pipelines, on small random models of each
tokenizer family and on texts made to break things.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    FeatureExtractionPipeline,
    FillMaskPipeline,
    TextClassificationPipeline,
    ZeroShotClassificationPipeline,
)

from preprocessing.errors import InvalidBundle, InvalidInput
from preprocessing.processor import TextProcessor

sys.path.insert(0, str(Path(__file__).parent))
tiny = importlib.import_module("tiny_models")

pytestmark = pytest.mark.integration

torch.set_num_threads(1)  # these models are too small for more
TOLERANCE = 1e-5
TEXTS = [
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "a",
    "Straße, naïve façade, Ünïcödé ﬁne ｆｕｌｌ ½",
    "e\u0301 and a\u0308\u0323, \u0301 alone",
    "😀 👨‍👩‍👧‍👦 👍🏽 🇩🇪 text",
    "שלום עולם مرحبا بالعالم ‏mixed‎ RTL",
    "你好，世界。日本語のテキスト 한국어 ไทยคำ हिन्दी",
    "NUL \x00 and \x01\x7f control \u200b zero \ufeff width",
    "\t tabs\r\nlines\u2028 \u3000wide  and   spaces ",
    "",
    "   \n\t ",
    "word " * 200,
    "中" * 200,
]
WHOLE = TEXTS[:9]
"""Those that fit."""


@pytest.fixture(params=list(tiny.FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    """A tokenizer family."""
    return str(request.param)


def close(theirs: Any, ours: Any) -> None:
    """Scores agree."""
    np.testing.assert_allclose(np.array(ours, np.float64), np.array(theirs, np.float64), atol=TOLERANCE, rtol=1e-4)


def quiet(pipeline: Any, *args: Any, **kwargs: Any) -> Any:
    """A pipeline's answer without its advice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipeline(*args, **kwargs)


# --- text classification ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [{"num_labels": 3}, {"num_labels": 20, "problem_type": "multi_label_classification"},
     {"num_labels": 1, "problem_type": "regression"}],
    ids=["single", "multi-label", "regression"],
)  # fmt: skip
def test_classification_is_the_pipelines(family: str, config: dict[str, Any], tmp_path: Path) -> None:
    """Texts and pairs, the empty and the too long ones too; the answer tells which were cut."""
    model, tokenizer = tiny.save(tmp_path, family, BertForSequenceClassification, **config)
    pipeline = TextClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    ours = tiny.TorchBackend(TextProcessor.from_folder(tmp_path, options={"allow_empty": True}), model)
    answer = ours.ask({"text": TEXTS, "parameters": {"top_k": 5}})
    for text, result in zip(TEXTS, answer["results"], strict=True):
        theirs = quiet(pipeline, text, top_k=5, truncation=True)
        assert [item["label"] for item in theirs] == list(result["scores"])
        close([item["score"] for item in theirs], list(result["scores"].values()))
    assert [len(tokenizer(text)["input_ids"]) > tiny.MAX_LENGTH for text in TEXTS] == answer["truncated"]
    # transformers takes an empty second text for none at all; here a pair stays a pair.
    pairs = [{"text": a, "text_pair": b} for a, b in zip(TEXTS, reversed(TEXTS), strict=True) if b]
    for pair, result in zip(pairs, ours.ask({"text": pairs})["results"], strict=True):
        theirs = quiet(pipeline, pair, top_k=None, truncation=True)
        close([item["score"] for item in theirs], list(result["scores"].values()))


# --- ranking ----------------------------------------------------------------------------------------------------------


def test_ranking_is_the_order_of_the_cross_encoders_scores(family: str, tmp_path: Path) -> None:
    """sentence-transformers: a sigmoid of the one logit, sorted; `top_n`, `return_documents`, several queries."""
    model, tokenizer = tiny.save(
        tmp_path, family, BertForSequenceClassification, num_labels=1,
        sentence_transformers={"activation_fn": "torch.nn.modules.activation.Sigmoid"},
    )  # fmt: skip
    processor = TextProcessor.from_folder(tmp_path)
    assert "ranking" == processor.config.task
    ours = tiny.TorchBackend(processor, model)
    documents = [*WHOLE, "word " * 200]
    logits = []
    for document in documents:
        with torch.no_grad():
            encoded = tokenizer("a query", document, truncation=True, return_tensors="pt")
            logits.append(float(model(**encoded).logits[0, 0]))
    scores = 1 / (1 + np.exp(-np.array(logits)))
    order = sorted(range(len(documents)), key=lambda i: -logits[i])
    answer = ours.ask(
        {"query": "a query", "documents": documents, "parameters": {"top_n": 4, "return_documents": True}}
    )
    assert order[:4] == [result["index"] for result in answer["results"]]
    assert [documents[i] for i in order[:4]] == [result["document"] for result in answer["results"]]
    close(scores[order[:4]], [result["score"] for result in answer["results"]])
    both = ours.ask({"query": ["a query", "b"], "documents": [documents, ["x", "y"]]})
    assert order == [result["index"] for result in both["results"][0]["results"]]
    assert [9] == [result["index"] for result in both["results"][0]["results"] if result.get("truncated")]
    assert [len(documents), 2] == [len(result["results"]) for result in both["results"]]
    raw = ours.ask({"query": "a query", "documents": documents, "parameters": {"function_to_apply": "none"}})
    close(np.array(logits)[order], [result["score"] for result in raw["results"]])


# --- zero-shot --------------------------------------------------------------------------------------------------------


def test_zero_shot_is_the_pipelines(family: str, tmp_path: Path) -> None:
    """Templates, several labels at once, a single label, texts that are too long: the hypothesis is never cut; a
    model's entailment may be its first label or its last.
    """
    labels = ["contradiction", "neutral"]
    labels.insert(0 if "left" in family else 2, "ENTAILMENT")
    model, tokenizer = tiny.save(
        tmp_path, family, BertForSequenceClassification,
        id2label=dict(enumerate(labels)), label2id={label: i for i, label in enumerate(labels)},
    )  # fmt: skip
    pipeline = ZeroShotClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    options = {"task": "zero-shot-classification", "allow_empty": True}
    ours = tiny.TorchBackend(TextProcessor.from_folder(tmp_path, options=options), model)
    texts = [text for text in TEXTS if text]  # the pipeline refuses empty ones
    for parameters in (
        {"candidate_labels": ["dog", "你好", "of 😀", "a b"]},
        {"candidate_labels": ["dog", "cat"], "multi_label": True, "hypothesis_template": "It is {}!"},
        {"candidate_labels": "dog"},
    ):
        texts = texts[::-1]
        some = texts if len(parameters["candidate_labels"]) == 4 else texts[:4]
        answer = ours.ask({"text": some, "parameters": parameters})
        for text, result in zip(some, answer["results"], strict=True):
            theirs = quiet(pipeline, text, **parameters)
            close(theirs["scores"], list(result["scores"].values()))
            if len(set(np.round(theirs["scores"], 4))) == len(theirs["scores"]):
                assert theirs["labels"] == list(result["scores"])
    assert any(answer["truncated"])
    with pytest.raises(InvalidInput, match="candidate_labels fills"):
        ours.ask({"text": "a", "parameters": {"candidate_labels": ["word " * 200]}})


# --- fill-mask --------------------------------------------------------------------------------------------------------


def test_fill_mask_is_the_pipelines(family: str, tmp_path: Path) -> None:
    """Scores, tokens, readable text and whole sequences; several masks, targets known and unknown to the vocabulary."""
    model, tokenizer = tiny.save(tmp_path, family, BertForMaskedLM)
    pipeline = FillMaskPipeline(model=model, tokenizer=tokenizer, device="cpu")
    ours = tiny.TorchBackend(TextProcessor.from_folder(tmp_path), model)
    mask = tokenizer.mask_token
    texts = [f"{text} {mask} end." for text in WHOLE] + [f"{mask}", f"a {mask} b {mask}!"]
    for parameters in ({}, {"top_k": 3}, {"targets": ["dog", "quick", "unheardofword"], "top_k": 2}):
        answer = ours.ask({"text": texts, "parameters": parameters})
        for text, result in zip(texts, answer["results"], strict=True):
            theirs = quiet(pipeline, text, **parameters)
            nested = theirs if isinstance(theirs[0], list) else [theirs]
            own = result["predictions"] if isinstance(result["predictions"][0], list) else [result["predictions"]]
            for a, b in zip(nested, own, strict=True):
                close([item["score"] for item in a], [item["score"] for item in b])
                for key in ("token", "token_str", "sequence"):
                    assert [item[key] for item in a] == [item[key] for item in b]
    with pytest.raises(InvalidInput, match="lies behind"):
        ours.ask({"text": "word " * 200 + mask})
    with pytest.raises(InvalidInput, match="has no"):
        ours.ask({"text": "no blank"})


# --- features ---------------------------------------------------------------------------------------------------------


def test_features_are_the_pipelines(family: str, tmp_path: Path) -> None:
    """One vector per token, special ones included."""
    model, tokenizer = tiny.save(tmp_path, family, BertModel)
    pipeline = FeatureExtractionPipeline(model=model, tokenizer=tokenizer, device="cpu")
    options = {"task": "feature-extraction", "allow_empty": True}
    processor = TextProcessor.from_folder(
        tmp_path, options=options, output_names=["last_hidden_state", "pooler_output"]
    )
    answer = tiny.TorchBackend(processor, model).ask({"text": TEXTS})
    for text, result in zip(TEXTS, answer["results"], strict=True):
        theirs = quiet(pipeline, text, truncation=True)[0]
        assert len(theirs) == len(result["features"])
        close(theirs, result["features"])


# --- what is refused --------------------------------------------------------------------------------------------------


def test_models_that_cannot_do_a_task_are_refused(tmp_path: Path) -> None:
    """With the reason, when they are loaded."""
    tiny.save(tmp_path, "WordPiece", BertForSequenceClassification, num_labels=3)
    for task, reason in (("ranking", "one score per pair"), ("zero-shot-classification", "entailment")):
        with pytest.raises(InvalidBundle, match=reason):
            TextProcessor.from_folder(tmp_path, options={"task": task})
