"""The configuration of a model's task as one frozen value, read from a model folder and endpoint options at load.

Reads the files of Hugging Face and sentence-transformers. `TaskConfig.from_folder` is the only function here that reads
from disk. Files of real models contradict each other (all-MiniLM-L6-v2 names 512, 256 and 128 tokens), so each rule
says which file wins. Nothing here depends on a tokenizer or a head: this file names the task, `heads` says whether it
is supported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from preprocessing.errors import InvalidBundle, InvalidOption, UnsupportedTask
from preprocessing.model_files import read_json
from preprocessing.parameters import POOLINGS, Activation, Aggregation, LongTexts, Options, Pooling

Side: TypeAlias = Literal["left", "right"]
CLASSIFICATION: Final = "text-classification"
TOKENS: Final = "token-classification"
QUESTION_ANSWERING: Final = "question-answering"
FILL_MASK: Final = "fill-mask"
GENERATION: Final = "text-generation"
EMBEDDINGS: Final = "sentence-embeddings"
FEATURES: Final = "feature-extraction"
RANKING: Final = "ranking"
ZERO_SHOT: Final = "zero-shot-classification"

# Architecture names are `<Family>For<Something>`: the suffix is the task.
ARCHITECTURE_TASKS: Final[Mapping[str, str]] = {
    "ForSequenceClassification": CLASSIFICATION,
    "ForTokenClassification": TOKENS,
    "ForQuestionAnswering": QUESTION_ANSWERING,
    "ForMaskedLM": FILL_MASK,
    "ForCausalLM": GENERATION,
    "LMHeadModel": GENERATION,
}
WINDOWED: Final = frozenset({TOKENS, QUESTION_ANSWERING})
"""Tasks that can read a long text in several rows."""

# These families number positions from padding_idx + 1, so their position table is that much longer than the longest
# input (transformers, `create_position_ids_from_input_ids`).
_OFFSET_POSITIONS: Final = frozenset(
    {
        *("roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "longformer", "mpnet"),
        *("xmod", "esm", "ibert", "data2vec-text", "layoutlmv3", "luke", "mluke", "markuplm", "lilt"),
    }
)
_WINDOWED_OFFLOAD: Final = 2000
_NAMED_TOKENS: Final = ("pad_token", "mask_token", "unk_token", "cls_token")
_MAX_LABELS: Final = 50_000
_NO_LIMIT: Final = 1_000_000  # transformers writes 1e30 for a tokenizer without a limit
_DEFAULT_MAX_LENGTH: Final = 512

_POOLING_MODULE: Final = "Pooling"
_KNOWN_MODULES: Final = frozenset({"Transformer", _POOLING_MODULE, "Normalize"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """All that the tokenizer and the head need to know about a model."""

    task: str
    architecture: str | None = None
    model_type: str | None = None

    max_length: int = _DEFAULT_MAX_LENGTH
    """Tokens per row, including special tokens; longer texts are treated as `long_texts` says."""
    long_texts: LongTexts = "cut"
    stride: int | None = None
    """Tokens shared by neighbouring windows of a long text; None for the task's default."""
    allow_empty: bool = False
    """Whether empty texts and texts of white space are accepted, as in transformers' pipelines."""
    truncation_side: Side = "right"
    padding_side: Side = "right"
    pad_id: int = 0
    pad_type_id: int = 0
    input_names: tuple[str, ...] = ("input_ids", "attention_mask")
    """The inputs of this kind of model according to its files; the backend's metadata overrides it."""
    vocab_size: int | None = None
    """Rows of the model's embedding table; all token ids must be smaller."""

    tokenizer_settings: Mapping[str, Any] = field(default_factory=dict)
    """tokenizer_config.json: with some of its settings transformers changes what it has read from tokenizer.json."""
    splits_special_tokens: bool = False
    """Whether special tokens that are written out in a text are read as text (`split_special_tokens`)."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """The tokenizer's special tokens by their names in its files, such as `pad_token`."""
    mask_id: int | None = None
    unknown_id: int | None = None
    cls_id: int | None = None
    """The ids of the mask, unknown and class tokens."""
    cleans_up: bool = False
    """Whether spaces before punctuation are removed from decoded text (`clean_up_tokenization_spaces`)."""

    labels: tuple[str, ...] = ()
    activation: Activation = "none"
    top_k: int | None = None
    """Number of labels in an answer unless the request says otherwise; None for all."""

    aggregation: Aggregation = "simple"
    ignored_labels: tuple[str, ...] = ("O",)
    candidate_labels: tuple[str, ...] = ()
    hypothesis_template: str = "This example is {}."
    multi_label: bool = False

    eos_ids: tuple[int, ...] = ()
    """Tokens that end a generated text."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """The model's sampling parameters (generation_config.json), by their names there."""

    truncate_dim: int | None = None
    """Number of components of a vector that are kept; None for all."""
    pooling: tuple[Pooling, ...] = ()
    """Pooling modes whose results are concatenated in this order; empty if only the model's graph can pool."""
    pools_prompt: bool = True
    """Whether the prompt's tokens are pooled like the text's own (`include_prompt`)."""
    normalize: bool = False
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    embedding_size: int | None = None

    max_rows: int = 1024
    max_chars: int = 1_000_000
    """Longest single text, in characters."""
    offload_chars: int = 8_000
    """Requests with more characters are tokenized off the event loop; a text counts once for each row it becomes."""
    max_answer_bytes: int = 128 << 20
    """Largest JSON answer to one request, as estimated before the model is called."""
    max_output_bytes: int = 512 << 20
    """Largest size of the model's outputs in memory, for a request of several rows."""

    @property
    def truncate(self) -> bool:
        """Whether longer texts are accepted, to be read in part or in several rows."""
        return self.long_texts != "refuse"

    @classmethod
    def from_folder(cls, folder: Path, options: Mapping[str, object] | None = None) -> TaskConfig:
        """Read the folder; endpoint `options` override its files.

        Option values may be strings, as on a command line (`max_length=128`, `normalize=false`). The ids of special
        tokens are in the vocabulary, which is not read here: see `with_ids`. Raises InvalidBundle, InvalidOption and
        UnsupportedTask.
        """
        chosen = Options.of(options or {})
        model = _read_json(folder / "config.json", required=True)
        tokenizer = _read_json(folder / "tokenizer_config.json")
        modules = _read_modules(folder)
        sentence = _read_json(folder / "config_sentence_transformers.json")
        cross_encoder = _cross_encoder(model, sentence)
        task = chosen.get("task") or _task(model, modules, cross_encoder)
        found = {
            "task": task,
            "architecture": _architecture(model),
            "model_type": model.get("model_type") if isinstance(model.get("model_type"), str) else None,
            **_token_limits(folder, model, tokenizer, modules, chosen, task),
            **_padding(model, tokenizer),
            "tokenizer_settings": tokenizer,
            "splits_special_tokens": tokenizer.get("split_special_tokens") is True,
            "special_tokens": _special_tokens(folder, tokenizer),
            "cleans_up": tokenizer.get("clean_up_tokenization_spaces") is True,
            "input_names": _input_names(model),
            "vocab_size": _positive(model.get("vocab_size")),
            **(
                _embedding(folder, model, modules, sentence)
                if task == EMBEDDINGS
                else _labelling(model, task, cross_encoder)
            ),
            **(_generation(folder, model) if task == GENERATION else {}),
            **({"offload_chars": _WINDOWED_OFFLOAD} if task in (*WINDOWED, ZERO_SHOT) else {}),
        }
        return cls(**found | chosen)

    def with_ids(self, id_of: Callable[[str], int | None]) -> TaskConfig:
        """Return this configuration with the ids of the special tokens; `id_of` looks a token up in the vocabulary.

        Without a pad token in the vocabulary, `pad_token_id` of config.json stays.
        """
        found = {name: id_of(token) for name, token in self.special_tokens.items()}
        pad = found.get("pad_token")
        return replace(
            self,
            pad_id=self.pad_id if pad is None else pad,
            mask_id=found.get("mask_token"),
            unknown_id=found.get("unk_token"),
            cls_id=found.get("cls_token"),
        )


# --- the task ---------------------------------------------------------------------------------------------------------


def _task(model: Mapping[str, Any], modules: Sequence[_Module], cross_encoder: Mapping[str, Any] | None) -> str:
    """Return the task named by the files.

    The module list of sentence-transformers is more reliable than an architecture's name.
    """
    if any(module.kind == _POOLING_MODULE for module in modules):
        return EMBEDDINGS
    architecture = _architecture(model)
    for suffix, task in ARCHITECTURE_TASKS.items():
        if architecture and architecture.endswith(suffix):
            # A cross-encoder with one label compares two texts; with several labels it classifies pairs.
            is_ranking = task == CLASSIFICATION and cross_encoder is not None and len(_labels(model)) == 1
            return RANKING if is_ranking else task
    if architecture and architecture.endswith("Model"):
        return EMBEDDINGS
    known = ", ".join(f"*{suffix}" for suffix in ARCHITECTURE_TASKS)
    raise UnsupportedTask(
        f"The task of this model is unknown: config.json names the architecture {architecture or '(none)'}",
        hint=f"known are {known}, plain encoders (*Model) and sentence-transformers folders; or set the option task",
    )


def _cross_encoder(model: Mapping[str, Any], sentence: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return sentence-transformers' configuration of a CrossEncoder; None for other models.

    Since version 5 it has a file of its own; before, it was inside config.json.
    """
    if sentence.get("model_type") == "CrossEncoder":
        return sentence
    own = model.get("sentence_transformers")
    return own if isinstance(own, dict) else None


def _architecture(model: Mapping[str, Any]) -> str | None:
    architectures = model.get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        return architectures[0]
    return None


# --- tokens -----------------------------------------------------------------------------------------------------------


def _token_limits(
    folder: Path,
    model: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    modules: Sequence[_Module],
    options: Mapping[str, Any],
    task: str,
) -> dict[str, Any]:
    """Return the limit on tokens: the smallest one of sentence-transformers, the tokenizer and the position table.

    Raises InvalidOption for options that this model does not allow. The truncation inside tokenizer.json is ignored.
    """
    table = _positive(model.get("max_position_embeddings")) or _positive(model.get("n_positions"))
    if table is not None and model.get("model_type") in _OFFSET_POSITIONS:
        pad_id = model.get("pad_token_id")
        table -= (pad_id if isinstance(pad_id, int) else 1) + 1
    sentence = _read_json(folder / _transformer_path(modules) / "sentence_bert_config.json")
    stated = _positive(tokenizer.get("model_max_length"))
    limits = [
        limit
        for limit in (_positive(sentence.get("max_seq_length")), stated, table)
        if limit is not None and limit < _NO_LIMIT
    ]
    max_length = min(limits) if limits else _DEFAULT_MAX_LENGTH
    wanted = options.get("max_length", max_length)
    if table is not None and wanted > table:
        raise InvalidOption(
            f"max_length is {wanted}, but this model has positions for {table} tokens",
            hint=f"set max_length to at most {table}, or leave it out for {max_length}",
        )
    long_texts: LongTexts = options.get("long_texts", "window" if task in WINDOWED else "cut")
    if long_texts == "window" and task not in WINDOWED:
        raise InvalidOption(
            f"The task {task} does not read a long text in windows", hint="set long_texts to cut or refuse"
        )
    return {
        "max_length": max_length,
        "long_texts": long_texts,
        # A text is continued from its end, so that end is kept.
        "truncation_side": "left" if task == GENERATION else _side(tokenizer, "truncation_side"),
        "padding_side": _side(tokenizer, "padding_side"),
        "lowercase": sentence.get("do_lower_case") is True,
    }


def _padding(model: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    pad_id, pad_type_id = model.get("pad_token_id"), tokenizer.get("pad_token_type_id")
    return {
        "pad_id": pad_id if isinstance(pad_id, int) and pad_id >= 0 else 0,
        "pad_type_id": pad_type_id if isinstance(pad_type_id, int) else 0,
    }


def _special_tokens(folder: Path, tokenizer: Mapping[str, Any]) -> dict[str, str]:
    special = _read_json(folder / "special_tokens_map.json")
    named = {name: _token(tokenizer.get(name)) or _token(special.get(name)) for name in _NAMED_TOKENS}
    return {name: token for name, token in named.items() if token is not None}


def _input_names(model: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the model's inputs: families with several token types (BERT, ALBERT, ELECTRA) take type ids.

    RoBERTa declares one type and DistilBERT none; both take no type ids.
    """
    types = _positive(model.get("type_vocab_size"))
    names = ("input_ids", "attention_mask")
    return (*names, "token_type_ids") if types is not None and types > 1 else names


# --- classification ---------------------------------------------------------------------------------------------------


def _labelling(model: Mapping[str, Any], task: str, cross_encoder: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return labels and activation, decided as in `transformers`' text-classification pipeline.

    For a cross-encoder, as in sentence-transformers.
    """
    labels = _labels(model)
    problem = model.get("problem_type")
    activation: Activation
    if task == RANKING:
        activation = _cross_encoder_activation(model, cross_encoder or {})
    elif problem == "regression":
        activation = "none"
    elif problem == "multi_label_classification" or len(labels) == 1:
        activation = "sigmoid"
    else:
        activation = "softmax"
    return {"labels": labels, "activation": activation}


_SAMPLING: Final = ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty", "max_new_tokens")
_NOT_GENERATED: Final[Mapping[str, tuple[object, ...]]] = {
    "num_beams": (1,), "num_beam_groups": (1,), "penalty_alpha": (0,), "num_return_sequences": (1,), "dola_layers": (),
    "min_length": (0,), "min_new_tokens": (0,), "max_time": (), "stop_strings": ([],),
    "exponential_decay_length_penalty": (),
    "typical_p": (1,), "min_p": (0,), "top_h": (), "epsilon_cutoff": (0,), "eta_cutoff": (0,), "guidance_scale": (1,),
    "no_repeat_ngram_size": (0,), "encoder_no_repeat_ngram_size": (0,), "encoder_repetition_penalty": (1,),
    "bad_words_ids": ([],), "force_words_ids": ([],), "constraints": ([],), "sequence_bias": ([], {}),
    "suppress_tokens": ([],), "begin_suppress_tokens": ([],), "forced_bos_token_id": (), "forced_eos_token_id": (),
    "forced_decoder_ids": ([],), "token_healing": (False,), "watermarking_config": (),
}  # fmt: skip
"""Settings of `generate` that change texts and that the runtime does not have → their values that change nothing."""


def _generation(folder: Path, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return sampling parameters and end tokens from generation_config.json, or else from config.json.

    Raises InvalidBundle for a setting that the runtime does not have.
    """
    name, own = "generation_config.json", _read_json(folder / "generation_config.json")
    if not own:
        name, own = "config.json", dict(model)
    for key, value in own.items():
        if value is None:
            continue
        if key in _SAMPLING:
            if isinstance(value, bool) is not (key == "do_sample") or not isinstance(value, int | float):
                kind = "true or false" if key == "do_sample" else "a number"
                raise InvalidBundle(f"{name}: {key} must be {kind}, not {value!r}")
        elif key in _NOT_GENERATED and not any(
            value == neutral and isinstance(value, bool) is isinstance(neutral, bool) for neutral in _NOT_GENERATED[key]
        ):
            raise InvalidBundle(
                f"{name}: {key} is {value!r}, which text generation here does not do",
                hint=f"remove {key} from {name} if texts may differ from those of `generate`",
            )
    eos = own.get("eos_token_id", model.get("eos_token_id"))
    found = eos if isinstance(eos, list) else [eos]
    return {
        "eos_ids": tuple(id_ for id_ in found if isinstance(id_, int) and not isinstance(id_, bool)),
        "generation": {key: own[key] for key in _SAMPLING if own.get(key) is not None},
    }


def _cross_encoder_activation(model: Mapping[str, Any], own: Mapping[str, Any]) -> Activation:
    """Return the activation: sigmoid unless the model names another (sentence-transformers writes a class's path)."""
    named = own.get("activation_fn", model.get("sbert_ce_default_activation_function"))
    kind = str(named).rsplit(".", 1)[-1] if named is not None else "Sigmoid"
    known: Mapping[str, Activation] = {"Sigmoid": "sigmoid", "Identity": "none", "Softmax": "softmax"}
    if kind not in known:
        raise UnsupportedTask(
            f"This cross-encoder names the activation {kind}, which is not known", hint="set function_to_apply"
        )
    return known[kind]


def _labels(model: Mapping[str, Any]) -> tuple[str, ...]:
    id2label = model.get("id2label")
    count = len(id2label) if isinstance(id2label, dict) else _positive(model.get("num_labels")) or 2
    if count > _MAX_LABELS:
        raise InvalidBundle(
            f"config.json: the model has {count} labels, at most {_MAX_LABELS} are served",
            hint="serve it without a task, as tensors: add the endpoint with --aux-config gateway.task=tensors",
        )
    if id2label is None:
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(id2label, dict) or not id2label:
        raise InvalidBundle(
            "config.json: id2label must be an object of number: label", hint='as in {"0": "no", "1": "yes"}'
        )
    try:
        by_id = {int(key): str(label) for key, label in id2label.items()}
    except ValueError as error:
        raise InvalidBundle("config.json: a key of id2label is not a number") from error
    if sorted(by_id) != list(range(len(id2label))):
        raise InvalidBundle("config.json: the keys of id2label must be 0, 1, 2, … without a gap")
    labels = tuple(by_id[i] for i in range(len(by_id)))
    if len(set(labels)) != len(labels):
        raise InvalidBundle(
            "config.json: two classes of id2label have the same label", hint="give every class its own name"
        )
    return labels


# --- embeddings -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Module:
    """A line of modules.json: the last part of its type, and its folder."""

    kind: str
    path: str


def _read_modules(folder: Path) -> list[_Module]:
    content = _read_json_file(folder / "modules.json")
    if content is None:
        return []
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise InvalidBundle("modules.json must be a list of objects")
    modules = [_Module(str(entry.get("type", "")).rsplit(".", 1)[-1], str(entry.get("path", ""))) for entry in content]
    for module in modules:
        if Path(module.path).is_absolute() or ".." in Path(module.path).parts:
            raise InvalidBundle(f"modules.json: the path {module.path!r} leaves the model folder")
    return modules


def _transformer_path(modules: Sequence[_Module]) -> str:
    return next((module.path for module in modules if module.kind == "Transformer"), "")


def _embedding(
    folder: Path, model: Mapping[str, Any], modules: Sequence[_Module], sentence: Mapping[str, Any]
) -> dict[str, Any]:
    """Return pooling, normalisation and prompts as sentence-transformers applies them.

    A plain encoder gets sentence-transformers' default: mean pooling without normalisation.
    """
    pooling_module = next((module for module in modules if module.kind == _POOLING_MODULE), None)
    content = _read_json(folder / pooling_module.path / "config.json") if pooling_module else {}
    pooling = _poolings(content)
    if any(module.kind not in _KNOWN_MODULES for module in modules):
        pooling = ()  # a Dense layer or similar must be part of the exported graph, which then also pools
    prompts = sentence.get("prompts")
    prompts = {str(k): v for k, v in prompts.items() if isinstance(v, str)} if isinstance(prompts, dict) else {}
    default_prompt = sentence.get("default_prompt_name")
    if default_prompt is not None and default_prompt not in prompts:
        raise InvalidBundle(
            f"config_sentence_transformers.json: default_prompt_name {default_prompt!r} is not among prompts"
        )
    return {
        "truncate_dim": _positive(sentence.get("truncate_dim")),
        "pools_prompt": content.get("include_prompt") is not False,
        "pooling": pooling,
        "normalize": any(module.kind == "Normalize" for module in modules),
        "prompts": prompts,
        "default_prompt": default_prompt,
        "embedding_size": _positive(model.get("hidden_size")) or _positive(model.get("dim")),
    }


def _poolings(content: Mapping[str, Any]) -> tuple[Pooling, ...]:
    """Both ways sentence-transformers has written it: one flag per mode, and since version 5 `pooling_mode`."""
    mode = content.get("pooling_mode")
    if mode is not None:
        named = mode if isinstance(mode, list) else [mode]
        modes: tuple[Any, ...] = tuple("mean_sqrt_len" if m == "mean_sqrt_len_tokens" else m for m in named)
        unknown = [m for m in modes if m not in POOLINGS]
        if unknown or not modes:
            raise InvalidBundle(
                f"The pooling configuration names an unknown mode: {mode!r}", hint=f"known are {', '.join(POOLINGS)}"
            )
        return modes
    flags = {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
        "pooling_mode_weightedmean_tokens": "weightedmean",
        "pooling_mode_lasttoken": "lasttoken",
    }
    chosen = {name for flag, name in flags.items() if content.get(flag) is True}
    return tuple(name for name in POOLINGS if name in chosen) or ("mean",)


# --- files ----------------------------------------------------------------------------------------------------------


def _read_json_file(path: Path) -> Any:
    """Return the file's content; None if the file does not exist. Raises InvalidBundle."""
    try:
        return read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidBundle(
            f"{path.name} cannot be read: {error}", hint="save the model again, or copy the file again"
        ) from error


def _read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    content = _read_json_file(path)
    if content is None:
        if required:
            raise InvalidBundle(
                f"The model folder has no {path.name}", hint="save_pretrained() writes it; put it beside the model"
            )
        return {}
    if not isinstance(content, dict):
        raise InvalidBundle(f"{path.name} must be a JSON object")
    return content


def _positive(value: object) -> int | None:
    """Return a positive number as an int, else None; transformers sometimes writes lengths as floats."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < float("inf"):
        return None
    return int(value)


def _token(value: object) -> str | None:
    """Return a special token's text, which is a string or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _side(tokenizer: Mapping[str, Any], name: str) -> Side:
    value = tokenizer.get(name)
    if value is None or value == "right":
        return "right"
    if value == "left":
        return "left"
    raise InvalidBundle(f"tokenizer_config.json: {name} must be left or right, not {value!r}")
