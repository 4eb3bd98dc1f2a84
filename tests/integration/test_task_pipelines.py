"""Every task against the library whose answers it promises: `transformers`' pipelines, on small random models of each
tokenizer family and on texts made to break things.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
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

from deploy.laptop.demo.minilm import packaged_model
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


@pytest.fixture(params=[pytest.param(one, marks=[pytest.mark.long] * ("left" in one)) for one in tiny.FAMILIES])
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
    [(family, labels) for family in tiny.FAMILIES for labels in LABELS if family == "WordPiece"
     or labels in ("single", "multi-label", "regression")],
    indirect=["family"],
)  # fmt: skip
def test_classification_is_the_pipelines(family: str, labels: str, tmp_path: Path) -> None:
    """Texts and pairs, the empty and the too long ones too; the answer tells which were cut; `function_to_apply`."""
    model, tokenizer = tiny.save(tmp_path, family, BertForSequenceClassification, **LABELS[labels])
    pipeline = TextClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    ours = tiny.TorchBackend(TextProcessor.from_folder(tmp_path, options={"allow_empty": True}), model)
    answer = ours.ask({"text": TEXTS, "parameters": {"top_k": 5}})
    for text, result in zip(TEXTS, answer["results"], strict=True):
        same_labels(quiet(pipeline, text, top_k=5, truncation=True), result)
    assert [len(tokenizer(text)["input_ids"]) > tiny.MAX_LENGTH for text in TEXTS] == answer["truncated"]
    same_labels(quiet(pipeline, TEXTS[0], top_k=None), ours.ask({"text": TEXTS[0]}))
    # transformers takes an empty second text for none at all; here a pair stays a pair.
    pairs = [{"text": a, "text_pair": b} for a, b in zip(TEXTS, reversed(TEXTS), strict=True) if b]
    columns = {name: [pair[name] for pair in pairs] for name in ("text", "text_pair")}
    for pair, result in zip(pairs, ours.ask(columns)["results"], strict=True):
        theirs = quiet(pipeline, pair, top_k=None, truncation=True)
        close([item["score"] for item in theirs], list(result["scores"].values()))
    same_labels(quiet(pipeline, pairs[0], top_k=None, truncation=True), ours.ask(pairs[0]))
    for function in ("softmax", "sigmoid", "none"):
        asked = {"text": TEXTS[0], "parameters": {"function_to_apply": function}}
        same_labels(quiet(pipeline, TEXTS[0], top_k=None, function_to_apply=function), ours.ask(asked))


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
    with pytest.raises(InvalidInput, match="lies beyond"):
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


# --- embeddings -------------------------------------------------------------------------------------------------------


def test_embeddings_of_the_real_minilm_are_those_of_pytorch() -> None:
    """256 tokens, not the 512 of its tokenizer_config nor the 128 in tokenizer.json; mean over the mask and L2 norm as
    the model card writes them; ours from a batch padded differently.
    """
    folder = packaged_model()
    processor = TextProcessor.from_folder(folder, output_names=["last_hidden_state", "pooler_output"])
    config = processor.config
    assert ("sentence-embeddings", 256, ("mean",), True) == (
        config.task, config.max_length, config.pooling, config.normalize,
    )  # fmt: skip
    assert (0, 30522) == (config.pad_id, processor.tokenizer.vocab_size)
    reference, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    texts = [text for text in TEXTS if text.strip()]
    prepared = processor.prepare({"text": texts})
    with torch.no_grad():
        given = {name: torch.from_numpy(t) for name, t in processor.collate_rows(prepared.rows).items()}
        answer: Any = processor.finish({"last_hidden_state": model(**given).last_hidden_state.numpy()}, prepared)
        for text, ours in zip(texts, answer["embeddings"], strict=True):
            encoded = reference(text.strip(), truncation=True, max_length=256, return_tensors="pt")
            mask = encoded["attention_mask"][..., None].float()
            pooled = (model(**encoded).last_hidden_state * mask).sum(1) / mask.sum(1)
            close(torch.nn.functional.normalize(pooled, p=2, dim=1)[0].numpy(), ours)


# --- token classification ---------------------------------------------------------------------------------------------

ENTITIES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]


def same_entities(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> None:
    """All keys but the score exactly, scores within the tolerance."""
    plain = [{key: value for key, value in entity.items() if key != "score"} for entity in theirs]
    assert plain == [{key: value for key, value in entity.items() if key != "score"} for entity in ours]
    close([float(entity["score"]) for entity in theirs], [entity["score"] for entity in ours])


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_entities_are_the_pipelines(family: str, strategy: str, tmp_path: Path) -> None:
    """Every strategy and `ignore_labels`, over hard texts that fit into one window: words, groups and offsets."""
    model, tokenizer = tiny.save(tmp_path, family, BertForTokenClassification, id2label=dict(enumerate(ENTITIES)))
    pipeline = TokenClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    ours = tiny.TorchBackend(TextProcessor.from_folder(tmp_path, options={"allow_empty": True}), model)
    texts = [*WHOLE, "", "  ", *(tiny.families.CORPUS[:5])]
    texts = [text for text in texts if len(tokenizer(text)["input_ids"]) <= tiny.MAX_LENGTH]
    for ignored in (None, [], ["O", "PER"]):
        parameters = {"aggregation_strategy": strategy, **({} if ignored is None else {"ignore_labels": ignored})}
        answer = ours.ask({"text": texts, "parameters": parameters})
        assert "windows" not in answer
        for text, result in zip(texts, answer["results"], strict=True):
            same_entities(quiet(pipeline, text, **parameters), result["entities"])


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
    pipeline = TokenClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    ours = tiny.TorchBackend(TextProcessor.from_folder(tmp_path), model)
    text = " ".join(tiny.families.CORPUS[:5])
    for stride in (0, 1, 10, tiny.MAX_LENGTH - 6):
        for strategy in ("simple", "first", "average", "max"):
            parameters = {"aggregation_strategy": strategy, "stride": stride}
            answer = ours.ask({"text": [text, "short"], "parameters": parameters})
            same_entities(quiet(pipeline, text, **parameters), answer["results"][0]["entities"])
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


def logits_of(ids: Any) -> tuple[Any, Any]:
    """The formula that the recorded pipeline had for a model."""
    ids, places = np.asarray(ids, np.float64), np.arange(len(ids), dtype=np.float64)
    return (
        (4 * np.sin(ids * 0.7 + places * 0.37)).astype(np.float32),
        (4 * np.sin(ids * 1.3 + places * 0.53 + 1)).astype(np.float32),
    )


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
            outputs["start_logits"][i, : row.n_tokens], outputs["end_logits"][i, : row.n_tokens] = logits_of(row.ids)
        answer: Any = processor.finish(outputs, prepared)
        ours = answer.get("answers", [answer])
        theirs = record["answers"]
        close([item["score"] for item in theirs], [item["score"] for item in ours])
        for key in ("answer", "start", "end"):
            assert [item[key] for item in theirs] == [item[key] for item in ours], body
        seen, windows = seen + 1, windows + answer.get("windows", 1)
    assert seen == 35 < windows


def test_questions_and_contexts_go_side_by_side(family: str, tmp_path: Path) -> None:
    """Lists, and one context for several questions; models padded on the left read the context first."""
    model, _ = tiny.save(tmp_path, family, BertForQuestionAnswering)
    ours = tiny.TorchBackend(TextProcessor.from_folder(tmp_path), model)
    context = " ".join(tiny.families.CORPUS[:2])
    single = [ours.ask({"question": q, "context": context}) for q in ("who?", "what?")]
    both = ours.ask({"question": ["who?", "what?"], "context": context})
    for one, result in zip(single, both["results"], strict=True):
        assert one["answer"] == context[one["start"] : one["end"]] == result["answer"]
    assert [one["tokens"] for one in single] == both["tokens"]
    with pytest.raises(InvalidInput, match="question fills"):
        ours.ask({"question": "who? " * 300, "context": "a"})


# --- what is refused --------------------------------------------------------------------------------------------------


def test_models_that_cannot_do_a_task_are_refused(tmp_path: Path) -> None:
    """With the reason, when they are loaded."""
    tiny.save(tmp_path, "WordPiece", BertForSequenceClassification, num_labels=3)
    for task, reason in (("ranking", "one score per pair"), ("zero-shot-classification", "entailment")):
        with pytest.raises(InvalidBundle, match=reason):
            TextProcessor.from_folder(tmp_path, options={"task": task})
