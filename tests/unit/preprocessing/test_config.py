from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from preprocessing.config import TaskConfig
from preprocessing.errors import InvalidBundle, InvalidInput, InvalidOption, UnsupportedTask
from preprocessing.processor import TextProcessor

from .conftest import CLASSIFIER, ENCODER, MakeFolder

POOLING_MODULES = [{"type": "sentence_transformers.models.Transformer", "path": ""}, {"type": "x.Pooling", "path": "p"}]


def read(folder: Path, **options: object) -> TaskConfig:
    """Read a folder with the given endpoint options."""
    return TaskConfig.from_folder(folder, options)


def of_length(stated: object) -> dict[str, Any]:
    """A tokenizer_config.json with this length."""
    return {"tokenizer_config.json": {"model_max_length": stated}}


def pooled(config: dict[str, Any], *more: dict[str, Any]) -> dict[str, Any]:
    """The files of a sentence-transformers folder with this pooling."""
    return {"modules.json": [*POOLING_MODULES, *more], "p/config.json": config}


NORMALIZED = pooled({}, {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"})
IDENTITY = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
SIGMOID = {"config_sentence_transformers.json": {
    "model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.activation.Sigmoid",
}}  # fmt: skip
GENERATOR = {"architectures": ["GPT2LMHeadModel"], "n_positions": 64, "eos_token_id": 3}
SAMPLING = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1,
            "max_new_tokens": 9}  # fmt: skip
WITHOUT_EFFECT = {
    "_from_model_config": True, "bos_token_id": 1, "pad_token_id": 0, "max_length": 4096, "use_cache": False,
    "cache_implementation": "hybrid", "transformers_version": "4.57.0", "length_penalty": 2.0,
}  # fmt: skip
MANY = tuple(f"L{i}" for i in range(50_000))
SENTENCES_OF_8 = {"sentence_bert_config.json": {"max_seq_length": 8}}
FACTS: list[tuple[dict[str, Any], dict[str, Any], str, object]] = [
    # the task: by the suffix of the architecture's name; a folder of sentence-transformers may keep its base model's
    ({}, {"architectures": ["BertForSequenceClassification"]}, "task", "text-classification"),
    ({}, {"architectures": ["BertModel"]}, "task", "sentence-embeddings"),
    ({}, {"architectures": ["T5EncoderModel"]}, "task", "sentence-embeddings"),
    ({}, {"architectures": ["DebertaV2ForTokenClassification"]}, "task", "token-classification"),
    ({}, {"architectures": ["GPT2LMHeadModel"]}, "task", "text-generation"),
    (pooled({}), {"architectures": ["BertForMaskedLM"]}, "task", "sentence-embeddings"),
    # the length: the smallest stated one; transformers writes 1e30 for no limit
    ({**SENTENCES_OF_8, **of_length(12)}, ENCODER, "max_length", 8),
    (of_length(12), ENCODER, "max_length", 12),
    *((of_length(stated), ENCODER, "max_length", 16) for stated in (1e30, 10**24, None, 0, -1, "many", True)),
    # RoBERTa's table of 514 positions allows 512 tokens
    *(({}, {"architectures": ["XModel"], "model_type": kind, "max_position_embeddings": 514, "pad_token_id": 1},
       "max_length", length)
      for kind, length in (("roberta", 512), ("xlm-roberta", 512), ("mpnet", 512), ("bert", 514))),
    # labels in the order of their numbers: "10" sorts before "9"; as transformers numbers them where there are none
    ({}, {**CLASSIFIER, "id2label": {str(i): f"L{i}" for i in reversed(range(12))}}, "labels",
     tuple(f"L{i}" for i in range(12))),
    ({}, {"architectures": ["BertForSequenceClassification"]}, "labels", ("LABEL_0", "LABEL_1")),
    ({}, {**CLASSIFIER, "id2label": dict(enumerate(MANY))}, "labels", MANY),
    # as the pipeline: regression stays raw, one label or several at once get a sigmoid, others a softmax
    *(({}, {**CLASSIFIER, **config}, "activation", activation) for config, activation in (
        ({}, "softmax"), ({"problem_type": "single_label_classification"}, "softmax"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"), ({"problem_type": "regression"}, "none"),
        ({"id2label": {"0": "SCORE"}}, "sigmoid"), ({"id2label": {"0": "SCORE"}, "problem_type": "regression"}, "none"),
    )),
    # pooling: flags of sentence-transformers up to 4, mode of version 5; several keep their order
    (pooled({"pooling_mode_cls_token": True}), ENCODER, "pooling", ("cls",)),
    (pooled({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}), ENCODER, "pooling", ("mean",)),
    (pooled({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}), ENCODER, "pooling", ("cls", "mean")),
    (pooled({"pooling_mode_lasttoken": True}), ENCODER, "pooling", ("lasttoken",)),
    (pooled({"pooling_mode": "cls"}), ENCODER, "pooling", ("cls",)),
    (pooled({}), ENCODER, "pooling", ("mean",)),
    ({}, ENCODER, "pooling", ("mean",)),
    ({}, ENCODER, "normalize", False),
    (NORMALIZED, ENCODER, "normalize", True),
    # pooling here without the layer after it would give another model's vectors
    (pooled({}, {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}), ENCODER, "pooling", ()),
    ({"tokenizer_config.json": {"pad_token_type_id": 3}}, ENCODER, "pad_type_id", 3),
    ({}, ENCODER, "pad_type_id", 0),
    # version 6 writes one name per mode, excluded prompts, and the number of dimensions kept
    *(({**pooled({"pooling_mode": ["cls", "mean_sqrt_len_tokens"], "include_prompt": False}),
        "config_sentence_transformers.json": {"prompts": {"query": "q: "}, "truncate_dim": 3}}, ENCODER, *fact)
      for fact in (("pooling", ("cls", "mean_sqrt_len")), ("pools_prompt", False), ("truncate_dim", 3))),
    # BERT has several types of tokens; RoBERTa and DistilBERT do not
    *(({}, {**CLASSIFIER, "type_vocab_size": types}, "input_names", ("input_ids", "attention_mask", *more))
      for types, more in ((2, ("token_type_ids",)), (1, ()), (0, ()), (None, ()))),
    # cross-encoders of sentence-transformers 4 and 6 rank with one label; with several they classify pairs
    *((files, {**CLASSIFIER, "id2label": labels, **config}, *fact)
      for files, config, activation in (({}, IDENTITY, "none"), (SIGMOID, {}, "sigmoid"))
      for labels, *fact in (({"0": "LABEL_0"}, "task", "ranking"), ({"0": "LABEL_0"}, "activation", activation),
                            ({"0": "a", "1": "b"}, "task", "text-classification"))),
    # what only makes generated texts faster, or is for beams, has no effect
    *(({"generation_config.json": {**SAMPLING, **WITHOUT_EFFECT, "eos_token_id": [3, 4]}}, GENERATOR, *fact)
      for fact in (("eos_ids", (3, 4)), ("generation", SAMPLING))),
    ({}, {**GENERATOR, "temperature": 0.5}, "generation", {"temperature": 0.5}),
    # decoders pad on the left
    *(({"tokenizer_config.json": {f"{what}_side": "left"}}, ENCODER, f"{what}_side", "left")
      for what in ("padding", "truncation")),
]  # fmt: skip
"""Files, config.json, and what a field is then."""


@pytest.mark.parametrize(("files", "config", "field", "expected"), FACTS)
def test_what_a_folder_says(
    make_folder: MakeFolder, files: dict[str, Any], config: dict[str, Any], field: str, expected: object
) -> None:
    """As transformers and sentence-transformers read it."""
    assert expected == getattr(read(make_folder(files, **config)), field)


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    # gaps, names as numbers, and duplicate names would give wrong answers
    *(({}, {**CLASSIFIER, "id2label": labels}, "id2label")
      for labels in ({"0": "a", "2": "b"}, {"x": "a"}, ["a"], {}, {"0": "same", "1": "same"})),
    # a guess would give wrong vectors, and a prompt that is not there be noticed only in poor search results
    (pooled({"pooling_mode": "attention"}), ENCODER, "attention"),
    ({"config_sentence_transformers.json": {"prompts": {"query": "q: "}, "default_prompt_name": "document"}}, ENCODER,
     "document"),
    # a bundle must not make the server read other files
    *(({"modules.json": [{"type": "x.Pooling", "path": path}]}, ENCODER, "leaves the model folder")
      for path in ("/etc", "../other", "a/../../b")),
    ({"tokenizer_config.json": {"padding_side": "middle"}}, ENCODER, "padding_side"),
    # the known ones, and the option that overrides it, are named
    *(({}, {"architectures": architectures}, r"\*ForSequenceClassification.*option task")
      for architectures in (["ViTForImageClassification"], [], None, "BertModel")),
    ({}, {**CLASSIFIER, "id2label": {"0": "LABEL_0"}, "sentence_transformers": {"activation_fn": "my.Own"}}, "Own"),
    # texts would be drawn otherwise
    *(({"generation_config.json": {key: value}}, GENERATOR, rf"generation_config\.json: {key} must be")
      for key, value in (("temperature", "0.7"), ("do_sample", 1), ("top_k", True), ("top_p", [1]))),
    # one clear error for any content
    *(({"config.json": content}, {}, r"config\.json")
      for content in ("{", "[]", "3", "null", "\ufeff{}", "[" * 100_000)),
]  # fmt: skip
"""Files, config.json, and what is said."""


@pytest.mark.parametrize(("files", "config", "said"), REFUSED, ids=range(len(REFUSED)))
def test_a_folder_that_cannot_be_read_right_is_refused(
    make_folder: MakeFolder, files: dict[str, Any], config: dict[str, Any], said: str
) -> None:
    """By name; so is one without config.json."""
    folder = make_folder(files, **config)
    with pytest.raises((InvalidBundle, UnsupportedTask), match=said):
        read(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InvalidBundle, match=r"config\.json"):
        read(folder)


PADS = [
    ({"tokenizer_config.json": {"pad_token": {"content": "b"}}}, 0, 5),
    ({"special_tokens_map.json": {"pad_token": "b"}}, 0, 5), ({"tokenizer_config.json": {"pad_token": "?"}}, 3, 3),
    ({}, None, 0),
]  # fmt: skip


@pytest.mark.parametrize(("files", "stated", "pad"), PADS)
def test_pad_id_is_the_id_of_the_pad_token(
    make_folder: MakeFolder, files: dict[str, Any], stated: int | None, pad: int
) -> None:
    """Whichever file names the token. The number in config.json is the last resort."""
    folder = make_folder(files, **{**CLASSIFIER, "pad_token_id": stated})
    assert pad == TextProcessor.from_folder(folder).config.pad_id


@pytest.mark.parametrize(
    "options",
    [
        {"max_lenght": 3}, {"max_length": "many"}, {"max_length": 0}, {"max_length": 1.5}, {"max_length": 17},
        {"normalize": "maybe"}, {"pooling": "median"}, {"function_to_apply": "tanh"}, {"task": ""}, {"max_rows": -1},
        {"hypothesis_template": "It is."}, {"candidate_labels": " , "},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_options_are_refused_by_name(make_folder: MakeFolder, options: dict[str, Any]) -> None:
    """A typing error is never ignored. The length may be above a file's, but no option adds positions to a table."""
    both = {"architectures": ["BertForSequenceClassification"] if "function_to_apply" in options else ["BertModel"]}
    folder = make_folder(SENTENCES_OF_8, **{**ENCODER, **both})
    assert 16 == read(folder, max_length=16).max_length
    with pytest.raises(InvalidOption, match=next(iter(options))):
        read(folder, **options)


def test_options_may_be_text(make_folder: MakeFolder) -> None:
    """A command line can pass only text. They override the files."""
    encoder = read(make_folder(NORMALIZED, **ENCODER), normalize="false", task="text-classification")
    assert (False, "text-classification") == (encoder.normalize, encoder.task)
    config = read(make_folder(**CLASSIFIER), max_length="7", long_texts="refuse", top_k="2", max_rows=" 5 ")
    assert (7, False, 2, 5) == (config.max_length, config.truncate, config.top_k, config.max_rows)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize(
    ("key", "value", "neutral"),
    [
        ("num_beams", 4, 1), ("suppress_tokens", [5], []), ("min_new_tokens", 5, 0), ("typical_p", 0.9, 1.0),
        ("token_healing", True, False), ("forced_eos_token_id", 5, None), ("watermarking_config", {"seed": 1}, None),
    ],
    ids=str,
)  # fmt: skip
def test_what_text_generation_does_not_do_is_refused_by_name(
    make_folder: MakeFolder, file: str, key: str, value: object, neutral: object
) -> None:
    """Of either file that transformers reads it from. Null and the value that changes nothing are accepted."""

    def folder(setting: object) -> Path:
        if file == "config.json":
            return make_folder(**GENERATOR, **{key: setting})
        return make_folder({file: {key: setting}}, **GENERATOR)

    with pytest.raises(InvalidBundle, match=rf"^{file}: {key} is .*, which text generation here does not do") as found:
        read(folder(value))
    assert f"remove {key}" in (found.value.hint or "")
    for accepted in (neutral, None):
        assert "text-generation" == read(folder(accepted)).task


# --- what a processor of a folder takes -------------------------------------------------------------------------------


def test_the_backends_metadata_overrides_the_folder(classifier: Path) -> None:
    """Names and types of inputs, and the outputs to request."""
    processor = TextProcessor.from_folder(
        classifier,
        input_names=["attention_mask", "input_ids"],
        input_dtypes={"input_ids": np.int32},
        output_names=["hidden_states", "logits"],
    )
    tensors = processor.collate_rows(processor.prepare({"text": "good"}).rows)
    assert [("attention_mask", np.int64), ("input_ids", np.int32)] == [(name, t.dtype) for name, t in tensors.items()]
    assert ("logits",) == processor.output_names
    assert "text-classification" == orjson.loads(orjson.dumps(processor.describe()))["task"], "a docs page shows it"


@pytest.mark.parametrize("names", [["pixel_values"], ["input_ids", "bbox"], ["attention_mask"], []])
def test_inputs_that_text_cannot_make_are_refused_at_load(classifier: Path, names: list[str]) -> None:
    """Not by the first request."""
    with pytest.raises(InvalidBundle, match="Preprocess class"):
        TextProcessor.from_folder(classifier, input_names=names)


def test_long_text_is_truncated_or_refused_as_the_endpoint_says(classifier: Path) -> None:
    """Truncated by default."""
    body = {"text": ["a", "a " * 50]}
    assert 1 == TextProcessor.from_folder(classifier).prepare(body).n_truncated
    with pytest.raises(InvalidInput, match="longer than the 16 tokens") as caught:
        TextProcessor.from_folder(classifier, options={"long_texts": "refuse"}).prepare(body)
    assert "text[1]" == caught.value.field
