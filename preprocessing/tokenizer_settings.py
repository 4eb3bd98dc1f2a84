"""Finds settings of `tokenizer_config.json` that contradict `tokenizer.json`.

The gateway reads `tokenizer.json`. transformers changes what it has read by some settings of `tokenizer_config.json`;
which ones depends on the tokenizer's class and on its own version. If the two files disagree on such a setting, other
tokens reach the model than in transformers, so the folder is refused. The rules below were tried with transformers 4.57
and 5.23: a setting counts for a class if one of the two obeys it. Called by `tokenizer` at load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from preprocessing.errors import InvalidBundle

READ: Final = (
    *("tokenizer_class", "added_tokens_decoder", "do_lower_case", "strip_accents", "tokenize_chinese_chars"),
    *("add_prefix_space", "add_bos_token", "add_eos_token", "bos_token", "eos_token"),
)
"""The settings of `tokenizer_config.json` that are read here."""

_LIKE_BERT: Final = frozenset(
    {
        *("bert", "convbert", "distilbert", "dpr", "electra", "ernie", "funnel", "layoutlm", "layoutlmv2", "lxmert"),
        *("megatron-bert", "mobilebert", "mpnet", "nezha", "realm", "retribert", "splinter", "squeezebert"),
    }
)
_ADDS_ENDS: Final = frozenset({"codellama", "cohere", "gemma", "gptneox", "llama"})
_ADDS_PREFIX: Final = frozenset({"codellama", "llama", "t5"})
_PREPENDS: Final = ("always", "first")
_OF_TYPES: Final = {"gpt_neox": "gptneox", "mistral": "llama"}
"""Types of models (config.json) whose tokenizers have another name."""


@dataclass(frozen=True, slots=True)
class Stated:
    """What a `tokenizer.json` says of the same matters."""

    bert: Mapping[str, Any] | None
    """The options of its normalizer, if that is BERT's."""
    prefix_space: bool | None
    """Whether its byte-level pre-tokenizer puts a space before a text; None for others."""
    prefix: bool
    """Whether a text's first word begins like one after a space, in SentencePiece's way."""
    first: str | None
    """The special token before a text, if its template has one, and the one behind it."""
    last: str | None
    added: frozenset[str]
    """The added tokens."""

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Stated:
        """Return what the parsed file says."""
        normalizer, before = _part(described, "normalizer"), _part(described, "pre_tokenizer")
        added = described.get("added_tokens")
        ends = _template(_part(described, "post_processor"))
        return cls(
            bert=normalizer if normalizer.get("type") == "BertNormalizer" else None,
            prefix_space=before.get("add_prefix_space") is True if before.get("type") == "ByteLevel" else None,
            prefix=any("prepend" in s for s in (normalizer, *_list(normalizer.get("normalizers"))))
            or any(s.get("prepend_scheme") in _PREPENDS for s in (before, *_list(before.get("pretokenizers")))),
            first=ends[0] if ends else None,
            last=ends[-1] if ends else None,
            added=frozenset(str(token.get("content")) for token in _list(added)),
        )


def refuse_contradictions(settings: Mapping[str, Any], model_type: str | None, stated: Stated) -> None:
    """Raise InvalidBundle, naming both values, for the first setting that contradicts `tokenizer.json`."""
    for name, value, other in _contradictions(settings, _kind(settings, model_type), stated):
        raise InvalidBundle(
            f"tokenizer_config.json has {name} {value}, but tokenizer.json {other}: transformers makes other tokens of "
            "some texts than this tokenizer.json",
            hint="let both files agree: AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes what "
            "transformers uses into both; or correct tokenizer_config.json",
        )


def _contradictions(settings: Mapping[str, Any], kind: str, stated: Stated) -> Iterator[tuple[str, object, str]]:
    """Yield the name of a setting, its value, and what `tokenizer.json` says instead."""
    listed = settings.get("added_tokens_decoder")
    for number, token in listed.items() if isinstance(listed, dict) else ():
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str) and content not in stated.added:
            yield "added_tokens_decoder", f"with {content!r} ({number})", "does not add this token"
    bert = stated.bert
    if bert is not None and kind in _LIKE_BERT:
        lowers = bert.get("lowercase") is True
        for name, ours in (("do_lower_case", "lowercase"), ("tokenize_chinese_chars", "handle_chinese_chars")):
            if isinstance(settings.get(name), bool) and settings[name] != (bert.get(ours) is True):
                yield name, settings[name], f"has {ours} {bert.get(ours)}"
        if "strip_accents" in settings:
            # Without a value, accents are stripped if letters become small.
            wanted, has = settings["strip_accents"], bert.get("strip_accents")
            if (lowers if wanted is None else wanted) != (lowers if has is None else has):
                yield "strip_accents", wanted, f"has strip_accents {has}"
    prefix = settings.get("add_prefix_space")
    if isinstance(prefix, bool) and stated.prefix_space not in (None, prefix):
        yield "add_prefix_space", prefix, f"has add_prefix_space {stated.prefix_space}"
    if isinstance(prefix, bool) and stated.prefix_space is None and kind in _ADDS_PREFIX and prefix != stated.prefix:
        yield "add_prefix_space", prefix, "puts one before a text" if stated.prefix else "puts none before a text"
    for name, token, has in (("add_bos_token", "bos_token", stated.first), ("add_eos_token", "eos_token", stated.last)):
        wanted, content = settings.get(name), settings.get(token)
        content = content.get("content") if isinstance(content, dict) else content
        if kind in _ADDS_ENDS and isinstance(wanted, bool) and content is not None and wanted != (has == content):
            yield name, wanted, f"adds {content!r}" if has == content else f"does not add {content!r}"


def _kind(settings: Mapping[str, Any], model_type: str | None) -> str:
    """Return the tokenizer's class as one word, such as `bert`; empty for the class that follows the file."""
    named = settings.get("tokenizer_class")
    if isinstance(named, str):
        return named.removesuffix("Fast").removesuffix("Tokenizer").lower()
    return _OF_TYPES.get(model_type or "", model_type or "")


def _template(component: Mapping[str, Any]) -> list[str | None]:
    """Return the special tokens of a post-processor's template for one text, None where the text is."""
    for step in (component, *_list(component.get("processors"))):
        if step.get("type") == "TemplateProcessing":
            pieces = [piece.get("SpecialToken") for piece in _list(step.get("single"))]
            return [str(piece.get("id")) if isinstance(piece, dict) else None for piece in pieces]
        if isinstance(step.get("cls"), list) and isinstance(step.get("sep"), list):
            return [str(step["cls"][0]), None, str(step["sep"][0])]
    return []


def _part(described: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = described.get(name)
    return found if isinstance(found, dict) else {}


def _list(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
