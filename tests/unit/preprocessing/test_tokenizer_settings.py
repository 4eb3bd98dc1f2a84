"""A folder whose two tokenizer files disagree is refused with both values, if transformers would make other tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from preprocessing.errors import InvalidBundle
from preprocessing.processor import TextProcessor

from .conftest import CLASSIFIER, MakeFolder
from .tokenizer_families import bert

TEXTS = ["Café 中国 Hello", " hello world", "hello [NEW] [MASK] <mask> <s> b", "ÉCOLE naïve", ""]
NAMED = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
ENDS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def byte_level(*, prefix: bool = False, first: str = "", last: str = "") -> Tokenizer:
    """A byte-level tokenizer without merges but one, which shows a space in front."""
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary = {c: i for i, c in enumerate([*names, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġh"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ġ", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    ends = [(name, vocabulary[name]) for name in (first, last) if name]
    single = f"{first} $A {last}".strip()
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=f"{single} $B:1", special_tokens=ends)
    tokenizer.add_special_tokens([*names[:-1], AddedToken("<mask>", lstrip=True)])
    return tokenizer


def folder(make: MakeFolder, tokenizer: Tokenizer, kind: str | None, model_type: str = "bert", **settings: Any) -> Path:
    """Write a folder with these settings in tokenizer_config.json."""
    named = NAMED if tokenizer.token_to_id("[CLS]") is not None else ENDS
    settings = {**named, **({"tokenizer_class": kind} if kind else {}), **settings}
    config = {**CLASSIFIER, "model_type": model_type, "vocab_size": 5000, "max_position_embeddings": 128}
    return make({"tokenizer_config.json": settings}, tokenizer=tokenizer, **config)


def added(content: str, number: int) -> dict[str, Any]:
    """Return the setting that adds one token."""
    token = {"content": content, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False,
             "special": True}  # fmt: skip
    return {"added_tokens_decoder": {str(number): token}}


CONTRADICTIONS: list[tuple[Tokenizer, str | None, str, dict[str, Any], str]] = [
    (bert(lowercase=False), "BertTokenizer", "bert", {"do_lower_case": True}, "do_lower_case True.*lowercase False"),
    (bert(), "BertTokenizerFast", "bert", {"do_lower_case": False}, "do_lower_case False.*lowercase True"),
    (bert(), None, "bert", {"do_lower_case": False}, "do_lower_case False.*lowercase True"),
    (bert(), "MPNetTokenizer", "mpnet", {"do_lower_case": False}, "do_lower_case False"),
    (bert(), "BertTokenizer", "bert", {"strip_accents": False}, "strip_accents False.*strip_accents None"),
    (bert(strip_accents=False), "BertTokenizer", "bert", {"strip_accents": None}, "strip_accents None.*False"),
    (bert(), "BertTokenizer", "bert", {"tokenize_chinese_chars": False}, "tokenize_chinese_chars False.*chars True"),
    (bert(), "BertTokenizer", "bert", added("[NEW]", 4000), r"added_tokens_decoder .*\[NEW\].*4000.*does not add"),
    (bert(), "PreTrainedTokenizerFast", "modernbert", added("[NEW]", 40), "added_tokens.*NEW.*does not add"),
    (byte_level(), "RobertaTokenizer", "roberta", {"add_prefix_space": True}, "add_prefix_space True.*False"),
    (byte_level(prefix=True), None, "gpt2", {"add_prefix_space": False}, "add_prefix_space False.*True"),
    (byte_level(), "GPT2TokenizerFast", "gpt2", added("<new>", 4000), "added_tokens_decoder .*<new>.*does not add"),
]  # fmt: skip
"""Contradictions in which all versions of transformers follow tokenizer_config.json."""
OF_SOME_VERSIONS: list[tuple[Tokenizer, str | None, str, dict[str, Any], str]] = [
    (byte_level(), "PreTrainedTokenizerFast", "llama", {"add_prefix_space": True}, "add_prefix_space True.*False"),
    (byte_level(), "LlamaTokenizerFast", "llama", {"add_bos_token": True}, "add_bos_token True.*does not add '<s>'"),
    (byte_level(first="<s>"), "LlamaTokenizer", "llama", {"add_bos_token": False}, "add_bos_token False.*adds '<s>'"),
    (byte_level(first="<s>"), None, "llama", {"add_eos_token": True}, "add_eos_token True.*does not add '</s>'"),
    (byte_level(last="</s>"), "GemmaTokenizer", "gemma", {"add_eos_token": False}, "add_eos_token False.*adds '</s>'"),
    (byte_level(), "LlamaTokenizer", "llama", {"add_prefix_space": True}, "add_prefix_space True"),
]
"""transformers 4.57 follows tokenizer_config.json in these, 5.23 does not in all."""


@pytest.mark.parametrize(("tokenizer", "kind", "model_type", "settings", "said"), [*CONTRADICTIONS, *OF_SOME_VERSIONS])
def test_contradicting_files_are_refused_with_both_values(
    make_folder: MakeFolder, tokenizer: Tokenizer, kind: str | None, model_type: str, settings: dict[str, Any],
    said: str,
) -> None:  # fmt: skip
    """The message names the file of each value, and what to do, also if the same tokenizer.json is in use.

    transformers makes other tokens of such a folder; otherwise a sound model would be refused.
    """
    consistent = TextProcessor.from_folder(folder(make_folder, tokenizer, kind, model_type))
    contradicting = folder(make_folder, tokenizer, kind, model_type, **settings)
    with pytest.raises(InvalidBundle, match=rf"tokenizer_config\.json has {said}") as raised:
        TextProcessor.from_folder(contradicting)
    assert "but tokenizer.json" in raised.value.message
    assert "save_pretrained" in str(raised.value.hint)
    assert consistent.prepare({"text": "hello"}).n_tokens
    if (tokenizer, kind, model_type, settings, said) in CONTRADICTIONS:
        theirs = AutoTokenizer.from_pretrained(contradicting)
        assert [theirs(text)["input_ids"] for text in TEXTS] != [tokenizer.encode(text).ids for text in TEXTS], said


@pytest.mark.parametrize(
    ("tokenizer", "kind", "model_type", "settings"),
    [
        (bert(), "BertTokenizer", "bert", {"strip_accents": None, "tokenize_chinese_chars": True}),
        (bert(), "BertTokenizer", "bert", {"do_lower_case": True, "strip_accents": True}),
        (bert(lowercase=False), "BertTokenizer", "bert", {"do_lower_case": False, "strip_accents": None}),
        (bert(), "BertTokenizer", "bert", {"do_lower_case": True, **added("[MASK]", 4)}),
        (bert(lowercase=False), "PreTrainedTokenizerFast", "bert", {"do_lower_case": True, "strip_accents": True}),
        (bert(), None, "modernbert", {"do_lower_case": False, "tokenize_chinese_chars": False}),
        (byte_level(first="<s>", last="</s>"), "RobertaTokenizer", "roberta", {"add_prefix_space": False}),
        (byte_level(prefix=True, first="<s>", last="</s>"), "RobertaTokenizer", "roberta", {"add_prefix_space": True}),
        (byte_level(), "GPT2Tokenizer", "gpt2", {"add_bos_token": False, "add_eos_token": False}),
        (byte_level(first="<s>"), "PreTrainedTokenizerFast", "llama", {"add_bos_token": True, "add_eos_token": False}),
        (bert(), "BertTokenizer", "bert", {"do_lower_case": True, "split_special_tokens": True}),
        (byte_level(), "PreTrainedTokenizerFast", "gpt2", {"split_special_tokens": True}),
    ],
)  # fmt: skip
def test_what_is_accepted_has_the_tokens_of_transformers(
    make_folder: MakeFolder, tokenizer: Tokenizer, kind: str | None, model_type: str, settings: dict[str, Any]
) -> None:
    """Also special tokens that are written out in a text, which `split_special_tokens` reads as text; also where texts
    are read in windows, for which the library's own copy of a tokenizer forgets the setting.
    """
    place = folder(make_folder, tokenizer, kind, model_type, **settings)
    theirs = AutoTokenizer.from_pretrained(place)
    for task in ("text-classification", "token-classification"):
        ours = TextProcessor.from_folder(place, options={"allow_empty": True, "task": task})
        for text in TEXTS:
            if expected := theirs(text)["input_ids"]:
                assert expected == ours.prepare({"text": text}).rows[0].ids.tolist()
