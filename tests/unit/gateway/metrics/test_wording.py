"""The words of many texts at once: as they would be found one by one, once per text, and found again by their hash."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import unicodedata
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics.wording import Lookup, TextWords, Vocabulary, hashed, split_words
from tests.words import names


def of(texts: list[str], *, is_unspaced: bool = False) -> TextWords:
    return split_words(texts, np.full(len(texts), is_unspaced))


def plainly(text: str, *, is_unspaced: bool = False) -> set[str]:
    """The same, letter by letter."""
    letters = []
    for letter in text:
        small = letter.lower()[0]
        kind = unicodedata.category(small)[0] if ord(small) <= 0xFFFF and ord(letter) <= 0xFFFF else "So"
        letters.append(small if kind in "LM" else "0" if kind == "N" else " ")
    parts = "".join(letters).split()
    if not is_unspaced:
        return set(parts)
    return {pair for part in parts for pair in ([a + b for a, b in pairwise(part)] or [part])}


@given(st.lists(st.text(max_size=60), max_size=6), st.booleans())
def test_words_are_those_that_are_found_letter_by_letter(texts: list[str], is_unspaced: bool) -> None:
    assert [plainly(text, is_unspaced=is_unspaced) for text in texts] == names(of(texts, is_unspaced=is_unspaced))


def test_texts_with_and_without_spaces_may_come_together() -> None:
    found = split_words(["the lake", "\u5929\u6c14\u5f88", "we went", "\u597d"], np.array([False, True, False, True]))
    assert [{"the", "lake"}, {"\u5929\u6c14", "\u6c14\u5f88"}, {"we", "went"}, {"\u597d"}] == names(found)


def test_a_word_counts_once_in_each_text() -> None:
    found = of(["a b a B a", "", "a", "b c b"])
    assert [2, 0, 1, 2] == np.diff(found.firsts).tolist()
    assert [1, 0, 1, 0] == found.sums(found.hashes == hashed(["a"])[0]).tolist()


@given(st.sets(st.text("abc\u00e9\u597d0", min_size=1, max_size=6), min_size=1, max_size=50))
def test_a_word_is_found_by_its_hash_wherever_it_stands(words: set[str]) -> None:
    listed = sorted(words)
    lookup = Lookup(hashed(listed[::2]))
    lookup.add(hashed(listed[1::2]))
    order = [*listed[::2], *listed[1::2]]
    found = of([" ".join(listed)])
    names = [found.name(i) for i in range(len(found.hashes))]
    assert [order.index(name) for name in names] == lookup.find(found.hashes).tolist()
    assert [-1, -1] == lookup.find(hashed(["x", "abcx"])).tolist()


def test_many_words_are_found_though_they_share_places() -> None:
    words = [f"{chr(97 + i % 26)}{chr(97 + i // 26 % 26)}{chr(97 + i // 676)}" for i in range(4000)]
    assert list(range(4000)) == Lookup(hashed(words)).find(hashed(words)).tolist()


@given(st.lists(st.text("abc\u00e9\u597d0", min_size=1, max_size=6), max_size=50))
def test_a_word_that_came_is_in_the_vocabulary_and_in_a_copy(words: list[str]) -> None:
    vocabulary = Vocabulary()
    assert not vocabulary.has(hashed(words)).any()
    vocabulary.add(hashed(words))
    assert vocabulary.has(hashed(words)).all()
    assert Vocabulary(vocabulary.content()).has(hashed(words)).all()


def test_of_fifty_thousand_words_few_others_seem_to_have_come_and_no_more_are_kept_than_can_be() -> None:
    letters = "bcdfghjklmnpqrstvwxyz"
    words = hashed([a + b + c + d for a in letters for b in letters for c in letters for d in letters])
    vocabulary = Vocabulary()
    vocabulary.add(words[:50_000])
    assert vocabulary.has(words[:50_000]).all()
    assert vocabulary.has(words[50_000:]).mean() < 0.03
    for start in range(50_000, 190_000, 1000):
        vocabulary.add(words[start : start + 1000])
    assert vocabulary.has(words[190_000:]).mean() < 0.25
