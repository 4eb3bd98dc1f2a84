"""Every task against the library whose answers it promises: `transformers`' pipelines, on small random models of each
tokenizer family and on texts made to break things.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    FeatureExtractionPipeline,
    FillMaskPipeline,
    TextClassificationPipeline,
    TokenClassificationPipeline,
    ZeroShotClassificationPipeline,
)

from preprocessing.errors import InvalidBundle, InvalidInput
from preprocessing.processor import TextProcessor
from tests.integration import tiny_models as tiny

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


@pytest.fixture(
    params=[pytest.param(one, marks=[pytest.mark.long] * one.startswith("Unigram")) for one in tiny.FAMILIES]
)
def family(request: pytest.FixtureRequest) -> str:
    """A tokenizer family."""
    return str(request.param)


def close(theirs: Any, ours: Any) -> None:
    """Scores agree."""
    np.testing.assert_allclose(np.array(ours, np.float64), np.array(theirs, np.float64), atol=TOLERANCE, rtol=1e-4)


def quiet(pipeline: Any) -> Callable[..., Any]:
    """A pipeline without its advice."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pipeline(*args, **kwargs)

    return ask


def saved(
    folder: Path, family: str, model_class: Any, pipeline_class: Any, options: Any = None, outputs: Any = None,
    **config: Any,
) -> tuple[Callable[..., Any], tiny.TorchBackend]:  # fmt: skip
    """A new model: the pipeline's answers and ours."""
    model, tokenizer = tiny.save(folder, family, model_class, **config)
    processor = TextProcessor.from_folder(folder, options=options or {}, output_names=outputs)
    return quiet(pipeline_class(model=model, tokenizer=tokenizer, device="cpu")), tiny.TorchBackend(processor, model)


ALSO_EMPTY = {"allow_empty": True}


# --- text classification ----------------------------------------------------------------------------------------------


LABELS: dict[str, dict[str, Any]] = {
    "single": {"num_labels": 3},
    "multi-label": {"num_labels": 20, "problem_type": "multi_label_classification"},
    "regression": {"num_labels": 1, "problem_type": "regression"},
    "two": {"num_labels": 2},
    "single by name": {"num_labels": 5, "problem_type": "single_label_classification"},
    "one": {"num_labels": 1},
    "regression of three": {"num_labels": 3, "problem_type": "regression"},
    "with names": {"id2label": {0: "NEGATIVE", 1: "NEUTRAL", 2: "POSITIVE"}},
}


def same_labels(theirs: list[dict[str, Any]], ours: dict[str, Any]) -> None:
    """A pipeline's list of labels and scores against our answer."""
    assert [item["label"] for item in theirs] == list(ours["scores"])
    close([item["score"] for item in theirs], list(ours["scores"].values()))
    assert (theirs[0]["label"], next(iter(ours["scores"].values()))) == (ours["label"], ours["score"])


@pytest.mark.parametrize(
    ("family", "labels"),
    [*(("WordPiece", labels) for labels in LABELS),
     *(pytest.param(family, labels, marks=pytest.mark.long) for family in tiny.FAMILIES if family != "WordPiece"
       for labels in ("single", "multi-label", "regression"))],
    indirect=["family"],
)  # fmt: skip
def test_classification_is_the_pipelines(family: str, labels: str, tmp_path: Path) -> None:
    """Texts and pairs, the empty and the too long ones too; the answer tells which were cut; `function_to_apply`."""
    theirs, ours = saved(
        tmp_path, family, BertForSequenceClassification, TextClassificationPipeline, ALSO_EMPTY, **LABELS[labels]
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    answer = ours.ask({"text": TEXTS, "parameters": {"top_k": 5}})
    for text, result in zip(TEXTS, answer["results"], strict=True):
        same_labels(theirs(text, top_k=5, truncation=True), result)
    assert [len(tokenizer(text)["input_ids"]) > tiny.MAX_LENGTH for text in TEXTS] == answer["truncated"]
    same_labels(theirs(TEXTS[0], top_k=None), ours.ask({"text": TEXTS[0]}))
    # transformers takes an empty second text for none at all; here a pair stays a pair.
    pairs = [{"text": a, "text_pair": b} for a, b in zip(TEXTS, reversed(TEXTS), strict=True) if b]
    columns = {name: [pair[name] for pair in pairs] for name in ("text", "text_pair")}
    for pair, result in zip(pairs, ours.ask(columns)["results"], strict=True):
        close([item["score"] for item in theirs(pair, top_k=None, truncation=True)], list(result["scores"].values()))
    same_labels(theirs(pairs[0], top_k=None, truncation=True), ours.ask(pairs[0]))
    for function in ("softmax", "sigmoid", "none"):
        asked = {"text": TEXTS[0], "parameters": {"function_to_apply": function}}
        same_labels(theirs(TEXTS[0], top_k=None, function_to_apply=function), ours.ask(asked))


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
    pipeline, ours = saved(
        tmp_path, family, BertForSequenceClassification, ZeroShotClassificationPipeline,
        {"task": "zero-shot-classification", **ALSO_EMPTY},
        id2label=dict(enumerate(labels)), label2id={label: i for i, label in enumerate(labels)},
    )  # fmt: skip
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
            theirs = pipeline(text, **parameters)
            close(theirs["scores"], list(result["scores"].values()))
            if len(set(np.round(theirs["scores"], 4))) == len(theirs["scores"]):
                assert theirs["labels"] == list(result["scores"])
    assert any(answer["truncated"])
    with pytest.raises(InvalidInput, match="candidate_labels fills"):
        ours.ask({"text": "a", "parameters": {"candidate_labels": ["word " * 200]}})


# --- fill-mask --------------------------------------------------------------------------------------------------------


def test_fill_mask_is_the_pipelines(family: str, tmp_path: Path) -> None:
    """Scores, tokens, readable text and whole sequences; several masks, targets known and unknown to the vocabulary."""
    pipeline, ours = saved(tmp_path, family, BertForMaskedLM, FillMaskPipeline)
    mask = AutoTokenizer.from_pretrained(tmp_path).mask_token
    texts = [f"{text} {mask} end." for text in WHOLE] + [f"{mask}", f"a {mask} b {mask}!"]
    for parameters in ({}, {"top_k": 3}, {"targets": ["dog", "quick", "unheardofword"], "top_k": 2}):
        answer = ours.ask({"text": texts, "parameters": parameters})
        for text, result in zip(texts, answer["results"], strict=True):
            theirs = pipeline(text, **parameters)
            nested = theirs if isinstance(theirs[0], list) else [theirs]
            own = result["predictions"] if isinstance(result["predictions"][0], list) else [result["predictions"]]
            for a, b in zip(nested, own, strict=True):
                close([item["score"] for item in a], [item["score"] for item in b])
                for key in ("token", "token_str", "sequence"):
                    assert [item[key] for item in a] == [item[key] for item in b]


# --- features ---------------------------------------------------------------------------------------------------------


def test_features_are_the_pipelines(family: str, tmp_path: Path) -> None:
    """One vector per token, special ones included."""
    pipeline, ours = saved(
        tmp_path, family, BertModel, FeatureExtractionPipeline, {"task": "feature-extraction", **ALSO_EMPTY},
        ["last_hidden_state", "pooler_output"],
    )  # fmt: skip
    answer = ours.ask({"text": TEXTS})
    for text, result in zip(TEXTS, answer["results"], strict=True):
        theirs = pipeline(text, truncation=True)[0]
        assert len(theirs) == len(result["features"])
        close(theirs, result["features"])


# --- token classification ---------------------------------------------------------------------------------------------

ENTITIES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]


def same_entities(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> None:
    """All keys but the score exactly, scores within the tolerance."""
    plain = [{key: value for key, value in entity.items() if key != "score"} for entity in theirs]
    assert plain == [{key: value for key, value in entity.items() if key != "score"} for entity in ours]
    close([float(entity["score"]) for entity in theirs], [entity["score"] for entity in ours])


def test_entities_are_the_pipelines(family: str, tmp_path: Path) -> None:
    """Every strategy and `ignore_labels`, over hard texts that fit into one window: words, groups and offsets."""
    pipeline, ours = saved(
        tmp_path, family, BertForTokenClassification, TokenClassificationPipeline, ALSO_EMPTY,
        id2label=dict(enumerate(ENTITIES)),
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    texts = [*WHOLE, "", "  ", *(tiny.families.CORPUS[:5])]
    texts = [text for text in texts if len(tokenizer(text)["input_ids"]) <= tiny.MAX_LENGTH]
    for strategy, ignored in itertools.product(("none", "simple", "first", "average", "max"), (None, [], ["O", "PER"])):
        parameters = {"aggregation_strategy": strategy, **({} if ignored is None else {"ignore_labels": ignored})}
        answer = ours.ask({"text": texts, "parameters": parameters})
        assert "windows" not in answer
        for text, result in zip(texts, answer["results"], strict=True):
            same_entities(pipeline(text, **parameters), result["entities"])


@pytest.mark.parametrize(
    "family",
    # The pipeline pads a text's windows together, which on the left moves the positions that these models add.
    [
        one if one == "WordPiece" else pytest.param(one, marks=pytest.mark.long)
        for one in tiny.FAMILIES
        if "left" not in one
    ],
    indirect=True,
)
@pytest.mark.parametrize("truncation_side", ["right", "left"])
def test_entities_of_long_texts_are_the_pipelines(family: str, truncation_side: str, tmp_path: Path) -> None:
    """Read in windows of any overlap: of entities that overlap, the longest, then the one with the best score."""
    model, _ = tiny.save(tmp_path, family, BertForTokenClassification, id2label=dict(enumerate(ENTITIES)))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "truncation_side": truncation_side}))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, model_max_length=tiny.MAX_LENGTH)
    pipeline = quiet(TokenClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu"))
    ours = tiny.TorchBackend(TextProcessor.from_folder(tmp_path), model)
    text = " ".join(tiny.families.CORPUS[:5])
    for stride in (0, 1, 10, tiny.MAX_LENGTH - 6):
        for strategy in ("simple", "first", "average", "max"):
            parameters = {"aggregation_strategy": strategy, "stride": stride}
            answer = ours.ask({"text": [text, "short"], "parameters": parameters})
            same_entities(pipeline(text, **parameters), answer["results"][0]["entities"])
            assert answer["windows"][0] > 1 == answer["windows"][1]
        parameters = {"aggregation_strategy": "none", "ignore_labels": [], "stride": stride}
        tokens = ours.ask({"text": text, "parameters": parameters})["entities"]
        assert len(tokens) == len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        assert [one["index"] for one in tokens] == sorted({one["index"] for one in tokens})
    cut = tiny.TorchBackend(TextProcessor.from_folder(tmp_path, options={"max_length": 40, "long_texts": "cut"}), model)
    answer = cut.ask({"text": text})
    assert (True, None, 40) == (answer["truncated"], answer.get("windows"), answer["tokens"])
    refusing = TextProcessor.from_folder(tmp_path, options={"max_length": 40, "long_texts": "refuse"})
    with pytest.raises(InvalidInput, match="longer than the 40 tokens"):
        refusing.prepare({"text": text})


# --- question answering -----------------------------------------------------------------------------------------------

RECORDED = Path(__file__).parents[1] / "data" / "question_answering"


@pytest.mark.parametrize("name", ["WordPiece", "byte-level BPE", "Unigram"])
def test_answers_are_those_of_the_pipeline_of_version_4(name: str) -> None:
    """Recorded from transformers 4.57.6: windows, n best, no answer, word alignment (`record.py` beside the data)."""
    processor = TextProcessor.from_folder(RECORDED / name.replace(" ", "-"))
    seen = windows = 0
    for record in json.loads((RECORDED / "answers.json").read_text()):
        if record["family"] != name:
            continue
        body = {key: record[key] for key in ("question", "context", "parameters")}
        prepared = processor.prepare(body)
        rows = prepared.rows
        shape = (len(rows), max(row.n_tokens for row in rows))
        outputs = {key: np.full(shape, 1e4, np.float32) for key in ("start_logits", "end_logits")}
        for i, row in enumerate(rows):
            for key, logits in zip(outputs, tiny.logits_of(row.ids), strict=True):
                outputs[key][i, : row.n_tokens] = logits
        answer: Any = processor.finish(outputs, prepared)
        ours = answer.get("answers", [answer])
        theirs = record["answers"]
        close([item["score"] for item in theirs], [item["score"] for item in ours])
        for key in ("answer", "start", "end"):
            assert [item[key] for item in theirs] == [item[key] for item in ours], body
        seen, windows = seen + 1, windows + answer.get("windows", 1)
    assert seen == 35 < windows


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "model", "body", "reason"),
    [
        ("ranking", BertForSequenceClassification, {}, "one score per pair"),
        ("zero-shot-classification", BertForSequenceClassification, {}, "entailment"),
        ("question-answering", BertForQuestionAnswering, {"question": "who? " * 300, "context": "a"}, "question fills"),
        ("fill-mask", BertForMaskedLM, {"text": f"{'word ' * 200}[MASK]"}, "lies beyond"),
        ("fill-mask", BertForMaskedLM, {"text": "no blank"}, "has no"),
    ],
)
def test_what_a_model_cannot_do_is_refused(
    task: str, model: Any, body: dict[str, str], reason: str, tmp_path: Path
) -> None:
    """With the reason: a task when the model is loaded, else the request."""
    made, _ = tiny.save(tmp_path, "WordPiece", model, **({} if body else {"num_labels": 3}))
    with pytest.raises((InvalidBundle, InvalidInput), match=reason):
        tiny.TorchBackend(TextProcessor.from_folder(tmp_path, options={"task": task}), made).ask(body)
