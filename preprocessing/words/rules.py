"""Decides whether a tokenizer can be used word by word: returns `WordRules`, or raises NotUnderstood with the reason.

Each rule here implies one equation, for texts divided at U+0020 into words of which only the first depends on context:

    ids("w0 w1 … wn") = ids("w0") + ids(" w1") + … + ids(" wn")

Only components for which this was proved are accepted, under the conditions noted beside them. Any other component,
option or combination makes the tokenizer "not understood". A word's ids come from the tokenizer itself, except plain
ASCII words of WordPiece models. `tokenizer` calls this once per load. docs/architecture.md has the argument in prose.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tokenizers import Tokenizer, normalizers

from preprocessing.descriptions import Description, NotUnderstood, describe, flatten
from preprocessing.types import pack


@dataclass(frozen=True, slots=True, kw_only=True)
class WordRules:
    """The conditions under which the words of a text are independent of each other."""

    first_differs: bool
    """Whether a word at the start of a text has other ids than after a space."""
    safe_edges: bool
    """Whether words must be non-empty, and begin and end with a character that does not combine with a space."""
    forbidden: str
    """A character that words must not contain ("" for none)."""
    stages: tuple[Callable[[str], str], ...]
    """The steps of the normalizer."""
    specials: re.Pattern[str] | None
    """Added tokens that are searched in the original text."""
    normalized_specials: re.Pattern[str] | None
    """Added tokens that are searched in the normalized text."""
    ascii_pieces: re.Pattern[str] | None
    """Divides a printable ASCII word into the pieces of the pre-tokenizer, if known."""
    spelling: WordPieceSpelling | None
    """Spells ASCII words without the tokenizer, if known."""

    def allow(self, word: str) -> bool:
        """Return whether the equation holds for this word, next to any other allowed words."""
        if self.specials is not None and self.specials.search(word):
            return False
        if not self.safe_edges and self.normalized_specials is None:
            return True
        text = word
        if self.safe_edges and not self._edges_are_safe(text):
            return False
        for stage in self.stages:
            text = stage(text)
            if self.safe_edges and not self._edges_are_safe(text):
                return False
        return self.normalized_specials is None or not self.normalized_specials.search(text)

    def pieces(self, text: str) -> list[str] | None:
        """Divide an allowed word, with its leading space if it has one, into independent texts.

        None if that is unknown, gains nothing, or would make the space a piece of its own.
        """
        if self.ascii_pieces is None or not text.isascii() or not text.isprintable() or text.isalnum():
            return None
        pieces = self.ascii_pieces.findall(text)
        return pieces if len(pieces) > 1 and pieces[0] != " " and "".join(pieces) == text else None

    def _edges_are_safe(self, text: str) -> bool:
        if not text or (self.forbidden and self.forbidden in text):
            return False
        return _stands_alone(text[0]) and (_stands_alone(text[-1]) or unicodedata.category(text[-1])[0] == "M")


def understand(tokenizer: Tokenizer) -> WordRules:
    """Return the rules of this tokenizer. Raises NotUnderstood."""
    _check_model(tokenizer)
    stages, unconditional, plain_ascii = _normalizer(tokenizer)
    cut = _pre_tokenizer(describe(tokenizer.pre_tokenizer))
    # If the first word normalizes to nothing, a later one could take its place.
    safe_edges = cut.first_differs or not (cut.drops_spaces and unconditional)
    if cut.first_differs and any(stage.get("strip_left") for stage in stages):
        raise NotUnderstood("a normalizer strips the space in front of words that differ by it")
    specials, normalized = _specials(tokenizer, safe_edges=safe_edges)
    return WordRules(
        first_differs=cut.first_differs,
        safe_edges=safe_edges,
        forbidden=cut.forbidden,
        stages=tuple(_stage(stage) for stage in stages),
        specials=specials,
        normalized_specials=normalized,
        ascii_pieces=re.compile(cut.ascii_pieces) if plain_ascii and cut.ascii_pieces else None,
        spelling=_spelling(tokenizer, stages) if plain_ascii and cut.ascii_pieces == _BERT_PIECES else None,
    )


def _require_options(description: Description, known: Mapping[str, frozenset[str]]) -> None:
    """Raise NotUnderstood for types that are not listed, and for options that a rule does not cover."""
    kind = description["type"]
    if kind not in known:
        raise NotUnderstood(f"{kind} is not known")
    if set(description) - {"type"} != known[kind]:
        options = ", ".join(sorted((set(description) - {"type"}) ^ known[kind]))
        raise NotUnderstood(f"{kind} has other options than known: {options}")


# --- the model: any function of one pre-token -------------------------------------------------------------------------


def _check_model(tokenizer: Tokenizer) -> None:
    model = tokenizer.model
    kind = type(model).__name__
    if kind not in ("WordPiece", "WordLevel", "BPE", "Unigram"):
        raise NotUnderstood(f"the model {kind} is not known")
    if kind == "BPE" and model.dropout:
        raise NotUnderstood("BPE dropout makes ids random")
    # Only newer versions of the library have sampling settings.
    if kind == "Unigram" and (getattr(model, "alpha", None) or getattr(model, "nbest_size", None)):
        raise NotUnderstood("Unigram sampling makes ids random")
    if tokenizer.encode_special_tokens:
        raise NotUnderstood("special tokens are read as text")


class WordPieceSpelling:
    """WordPiece for words of ASCII letters and digits and for ASCII punctuation.

    Takes the longest piece in the vocabulary, then the longest continuation, and so on; the unknown token if a word
    cannot be spelled or is too long. This is the only tokenization here that is not the library's. Normalizer and
    BertPreTokenizer leave such words unchanged except for case; asking the library for a word takes three times as
    long.
    """

    def __init__(
        self, vocabulary: Mapping[str, int], *, prefix: str, unknown_id: int, longest_word: int, lowercase: bool
    ) -> None:
        self._starts: dict[str, bytes] = {}
        self._continuations: dict[str, bytes] = {}
        for piece, id_ in vocabulary.items():
            for known, start in (self._starts, ""), (self._continuations, prefix):
                rest = piece.removeprefix(start)
                if len(rest) == len(piece) - len(start) and rest.isascii() and (rest.isalnum() or len(rest) == 1):
                    known[rest] = pack([id_])
        self._longest_piece = max(map(len, (*self._starts, *self._continuations)), default=1)
        self._unknown = pack([unknown_id])
        self._longest_word = longest_word
        self._lowercase = lowercase

    def spell(self, word: str) -> bytes | None:
        """Return the word's packed ids; None if the library must be asked."""
        n = len(word)
        if n > _LONGEST_SPELLED or not word.isascii() or not (word.isalnum() or (n == 1 and word.isprintable())):
            return None
        if n > self._longest_word:
            return self._unknown
        if self._lowercase:
            word = word.lower()
        known, start, ids = self._starts, 0, b""
        while start < n:
            end = min(n, start + self._longest_piece)
            while (id_ := known.get(word[start:end])) is None:
                end -= 1
                if end == start:
                    return self._unknown
            ids += id_
            start, known = end, self._continuations
        return ids


_LONGEST_SPELLED: Final = 64  # spelling takes up to (longest piece × length) lookups


def _spelling(tokenizer: Tokenizer, stages: Iterable[Description]) -> WordPieceSpelling | None:
    model = tokenizer.model
    if type(model).__name__ != "WordPiece":
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if model.unk_token not in vocabulary or not model.continuing_subword_prefix:
        return None
    return WordPieceSpelling(
        vocabulary,
        prefix=model.continuing_subword_prefix,
        unknown_id=vocabulary[model.unk_token],
        longest_word=model.max_input_chars_per_word,
        lowercase=any(stage["type"] == "Lowercase" or stage.get("lowercase") for stage in stages),
    )


# --- normalizers: f(a + " " + b) = f(a) + " " + f(b) ------------------------------------------------------------------

_NORMALIZERS: Final[Mapping[str, frozenset[str]]] = {
    "BertNormalizer": frozenset({"clean_text", "handle_chinese_chars", "strip_accents", "lowercase"}),
    "NFC": frozenset(),
    "NFD": frozenset(),
    "NFKC": frozenset(),
    "NFKD": frozenset(),
    "Nmt": frozenset(),
    "Lowercase": frozenset(),
    "StripAccents": frozenset(),
    "Replace": frozenset({"pattern", "content"}),
    "Strip": frozenset({"strip_left", "strip_right"}),
    "Precompiled": frozenset({"precompiled_charsmap"}),
}
# These work character by character, or by Unicode composition, which never crosses a space: a space is a starter and
# part of no canonical decomposition. So they hold for any a and b, and change at most the case of printable ASCII.
_UNCONDITIONAL: Final = frozenset({"BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents"})
# Neither pattern matches a single space between two characters that are not spaces.
_SPACE_RUNS: Final = frozenset({" {2,}", r"\s{2,}|[\n\r\t]"})


def _normalizer(tokenizer: Tokenizer) -> tuple[list[Description], bool, bool]:
    """Return the steps, whether they hold unconditionally, and whether they only change the case of printable ASCII."""
    stages = flatten(describe(tokenizer.normalizer), "normalizers")
    unconditional = plain_ascii = True
    for stage in stages:
        _require_options(stage, _NORMALIZERS)
        if stage["type"] in _UNCONDITIONAL:
            continue
        plain_ascii = False
        # A fixed text without a space matches within one word only. Strip, runs of spaces, and the graphemes of
        # Precompiled need a space at the edge of a text or beside another one.
        if stage["type"] != "Replace" or not _replaces_within_words(stage["pattern"]):
            unconditional = False
        if stage["type"] == "Precompiled" and _stage(stage)("a b") != "a b":
            raise NotUnderstood("Precompiled changes spaces")
    return stages, unconditional, plain_ascii


def _replaces_within_words(pattern: Mapping[str, str]) -> bool:
    fixed, expression = pattern.get("String"), pattern.get("Regex")
    if fixed and " " not in fixed:
        return True
    if expression in _SPACE_RUNS:
        return False
    raise NotUnderstood("a Replace normalizer has a pattern that is not known")


def _stage(description: Description) -> Callable[[str], str]:
    """Create one step of the normalizer from its description."""
    step = normalizers.NFC()  # any type will do: the state determines the real one
    step.__setstate__(json.dumps(description).encode())
    normalize: Callable[[str], str] = step.normalize_str
    return normalize


# --- pre-tokenizers: where the text is cut ----------------------------------------------------------------------------

_PRE_TOKENIZERS: Final[Mapping[str, frozenset[str]]] = {
    "BertPreTokenizer": frozenset(),
    "WhitespaceSplit": frozenset(),
    "Whitespace": frozenset(),
    "Punctuation": frozenset({"behavior"}),
    "Digits": frozenset({"individual_digits"}),
    "UnicodeScripts": frozenset(),
    "Split": frozenset({"pattern", "behavior", "invert"}),
    "ByteLevel": frozenset({"add_prefix_space", "trim_offsets", "use_regex"}),
    "Metaspace": frozenset({"replacement", "prepend_scheme", "split"}),
}
_DROPS_SPACES: Final = frozenset({"BertPreTokenizer", "WhitespaceSplit", "Whitespace"})

_BERT_PIECES: Final = "[0-9A-Za-z]+|[^0-9A-Za-z]"
_GPT2_PIECES: Final = "'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^ 0-9A-Za-z]+"
_LLAMA3_PIECES: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^0-9A-Za-z]?[A-Za-z]+|[0-9]{1,3}| ?[^ 0-9A-Za-z]+| "
_QWEN2_PIECES: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^0-9A-Za-z]?[A-Za-z]+|[0-9]| ?[^ 0-9A-Za-z]+| "

# The patterns of byte-level models, each with its equivalent for printable ASCII without inner spaces. None of them can
# match a space after a character that is not white space, they look ahead only after white space and never behind, and
# they cover every character. So there is a cut before every single space between two characters that are not white
# space, and what follows it does not affect what precedes it.
_BYTE_LEVEL_EXPRESSIONS: Final[Mapping[str, str]] = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": _GPT2_PIECES,
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+": _LLAMA3_PIECES,
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+": _QWEN2_PIECES,
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+": _QWEN2_PIECES,
}


KNOWN_PATTERNS: Final = _SPACE_RUNS | _BYTE_LEVEL_EXPRESSIONS.keys()
"""Regular expressions that take a time proportional to the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    drops_spaces: bool = False
    first_differs: bool = False
    forbidden: str = ""
    ascii_pieces: str | None = None


def _pre_tokenizer(description: Description | None) -> _Cut:
    steps = flatten(description, "pretokenizers")
    if not steps:
        raise NotUnderstood("there is no pre-tokenizer, so tokens may reach over spaces")
    for step in steps:
        _require_options(step, _PRE_TOKENIZERS)
    first, rest = steps[0], steps[1:]
    if first["type"] in _DROPS_SPACES:
        # Each later step sees one piece between spaces at a time. Only Metaspace knows its position in the text.
        return _Cut(
            drops_spaces=True,
            first_differs=any(step.get("prepend_scheme") == "first" for step in rest),
            ascii_pieces=_BERT_PIECES if first["type"] == "BertPreTokenizer" and not rest else None,
        )
    if first["type"] == "ByteLevel" and not rest and first["use_regex"]:
        if first["add_prefix_space"]:  # pieces within a word have no leading space and cannot be tokenized alone
            return _Cut()
        return _Cut(first_differs=True, ascii_pieces=_GPT2_PIECES)
    if first["type"] == "Split" and len(rest) == 1 and rest[0]["type"] == "ByteLevel":
        return _split_byte_level(first, rest[0])
    if first["type"] == "Metaspace" and not rest and first["split"]:
        if first["prepend_scheme"] not in ("always", "first", "never"):
            raise NotUnderstood("Metaspace has a prepend_scheme that is not known")
        return _Cut(first_differs=first["prepend_scheme"] != "always", forbidden=first["replacement"])
    raise NotUnderstood(f"the pre-tokenizer {' + '.join(step['type'] for step in steps)} is not known")


def _split_byte_level(split: Description, byte_level: Description) -> _Cut:
    pieces = _BYTE_LEVEL_EXPRESSIONS.get(split["pattern"].get("Regex", ""))
    if pieces is None or split["behavior"] != "Isolated" or split["invert"]:
        raise NotUnderstood("a Split pre-tokenizer has a pattern that is not known")
    if byte_level["use_regex"] or byte_level["add_prefix_space"]:
        raise NotUnderstood("a ByteLevel pre-tokenizer after Split cuts or adds spaces itself")
    return _Cut(first_differs=True, ascii_pieces=pieces)


def _stands_alone(char: str) -> bool:
    """Return whether the character is visible, not white space, and forms no grapheme with a space on either side."""
    if char.isascii():
        return char.isprintable() and char != " "
    code, category = ord(char), unicodedata.category(char)
    if category in ("Lo", "Lm") and 0x10000 <= code < 0x20000:  # some of these join the next character
        return False
    return category in _VISIBLE and code not in _JOINING and not 0x1F3FB <= code <= 0x1F3FF


_VISIBLE: Final = frozenset(
    {
        *("Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"),
        *("Sm", "Sc", "So", "Sk"),
    }
)
# Letters that Unicode's grapheme rules (UAX 29) join to a neighbour.
_JOINING: Final = frozenset({0x0D4E, 0x0E33, 0x0EB3, 0xFF9E, 0xFF9F})

# --- added tokens: a text with one of them is not divided at spaces alone ---------------------------------------------


def _specials(tokenizer: Tokenizer, *, safe_edges: bool) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
    """Return patterns that find added tokens in a word. Tokens with a space could span two words."""
    raw: list[str] = []
    normalized: list[str] = []
    for token in tokenizer.get_added_tokens_decoder().values():
        content = token.content
        raw.append(content)
        if token.normalized and tokenizer.normalizer is not None:
            normalized.append(tokenizer.normalizer.normalize_str(content))
    return _any_of(raw, safe_edges=safe_edges), _any_of(normalized, safe_edges=safe_edges)


def _any_of(contents: Iterable[str], *, safe_edges: bool) -> re.Pattern[str] | None:
    wanted = []
    for content in set(contents):
        if not content:
            raise NotUnderstood("an added token is empty once normalized")
        if " " not in content:
            wanted.append(re.escape(content))
        # Two spaces in a row imply an empty word, which safe edges exclude.
        elif not (safe_edges and content.strip(" ") == "" and len(content) > 1):
            raise NotUnderstood("an added token holds a space")
    return re.compile("|".join(sorted(wanted))) if wanted else None
