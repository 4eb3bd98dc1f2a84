"""Finds settings of `tokenizer_config.json` that contradict `tokenizer.json`.

The gateway reads `tokenizer.json`. transformers changes what it has read by some settings of `tokenizer_config.json`;
which ones depends on the tokenizer's class and on its own version. If the two files disagree on such a setting, other
tokens reach the model than in transformers, so the folder is refused. The rules below were tried with transformers 4.57
and 5.23: a setting counts for a class if one of the two obeys it. Called by `tokenizer` at load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tokenizers import Tokenizer

from preprocessing.descriptions import NotUnderstood, describe, flatten
from preprocessing.errors import InvalidBundle
from preprocessing.framing import templates

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


def refuse_contradictions(settings: Mapping[str, Any], model_type: str | None, tokenizer: Tokenizer) -> None:
    """Raise InvalidBundle, naming both values, for the first setting that contradicts `tokenizer.json`, as loaded."""
    for name, value, other in _contradictions(settings, _kind(settings, model_type), tokenizer):
        raise InvalidBundle(
            f"tokenizer_config.json has {name} {value}, but tokenizer.json {other}: transformers makes other tokens of "
            "some texts than this tokenizer.json",
            hint="let both files agree: AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes what "
            "transformers uses into both; or correct tokenizer_config.json",
        )


def _contradictions(settings: Mapping[str, Any], kind: str, tokenizer: Tokenizer) -> Iterator[tuple[str, object, str]]:
    """Yield the name of a setting, its value, and what `tokenizer.json` says instead."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    normalizers = flatten(describe(tokenizer.normalizer), "normalizers")
    before = flatten(describe(tokenizer.pre_tokenizer), "pretokenizers")
    listed = settings.get("added_tokens_decoder")
    for number, token in listed.items() if isinstance(listed, dict) else ():
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str) and content not in added:
            yield "added_tokens_decoder", f"with {content!r} ({number})", "does not add this token"
    if kind in _LIKE_BERT and [step["type"] for step in normalizers] == ["BertNormalizer"]:
        (bert,) = normalizers
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
    if isinstance(prefix, bool) and [step["type"] for step in before] == ["ByteLevel"]:
        if prefix != before[0]["add_prefix_space"]:
            yield "add_prefix_space", prefix, f"has add_prefix_space {before[0]['add_prefix_space']}"
    elif isinstance(prefix, bool) and kind in _ADDS_PREFIX:
        # In SentencePiece's way: a text's first word begins like one after a space.
        puts = any("prepend" in s for s in normalizers) or any(s.get("prepend_scheme") in _PREPENDS for s in before)
        if prefix != puts:
            yield "add_prefix_space", prefix, "puts one before a text" if puts else "puts none before a text"
    ends = _ends(tokenizer) if kind in _ADDS_ENDS else None
    for name, token, place in (("add_bos_token", "bos_token", 0), ("add_eos_token", "eos_token", 1)):
        wanted, content = settings.get(name), settings.get(token)
        content = content.get("content") if isinstance(content, dict) else content
        if ends is not None and isinstance(wanted, bool) and content is not None and wanted != (ends[place] == content):
            yield name, wanted, f"does not add {content!r}" if wanted else f"adds {content!r}"


def _kind(settings: Mapping[str, Any], model_type: str | None) -> str:
    """Return the tokenizer's class as one word, such as `bert`; empty for the class that follows the file."""
    named = settings.get("tokenizer_class")
    if isinstance(named, str):
        return named.removesuffix("Fast").removesuffix("Tokenizer").lower()
    return _OF_TYPES.get(model_type or "", model_type or "")


def _ends(tokenizer: Tokenizer) -> tuple[str | None, str | None] | None:
    """Return the special token before a text and the one behind it; None if the post-processor is not known."""
    try:
        single, _ = templates(tokenizer)
    except NotUnderstood:
        return None
    first, last = (tokenizer.id_to_token(group[at][0]) if group else None
                   for group, at in ((single.before, 0), (single.after, -1)))  # fmt: skip
    return first, last
