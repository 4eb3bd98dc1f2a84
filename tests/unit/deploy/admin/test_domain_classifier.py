"""The domain classifier: it finds no difference between like texts, and finds other texts with their words."""

from __future__ import annotations

import random

import pytest

from deploy.admin.domain_classifier import Comparison, compare

ENGLISH, GERMAN = (
    text.split()
    for text in (
        "the a of to and in is it was for with film plot good bad great boring story music love watch time",
        "der die das und ist nicht ein eine mit film handlung gut schlecht langweilig musik liebe zeit immer",
    )
)


def texts(seed: int, number: int, *, german: float = 0.0, upper: float = 0.0) -> list[str]:
    """Texts of random words, some in German, some in capitals."""
    chance = random.Random(seed)
    found = []
    for _ in range(number):
        words = GERMAN if chance.random() < german else ENGLISH
        text = " ".join(chance.choices(words, k=chance.randint(5, 15)))
        found.append(text.upper() if chance.random() < upper else text)
    return found


@pytest.mark.long
def test_like_texts_are_told_apart_no_more_often_than_by_chance() -> None:
    """At most one in a hundred is expected; three of thirty would be a bad sign."""
    found = [compare(texts(seed, 150), texts(1000 + seed, 150)) for seed in range(30)]
    assert 3 > sum(one.is_apart for one in found)
    assert 3 > sum(not one.is_nothing for one in found)


def test_another_language_is_found_with_its_words_and_examples() -> None:
    """A fifth of the later texts is found as such, the clearest first, and no English word is reported as rarer."""
    found = compare(texts(1, 600), texts(2, 600, german=0.2))
    assert found.is_apart
    assert 0.1 < found.share < 0.3
    assert found.low < found.auc < found.high
    assert {word.word for word in found.rose} <= set(GERMAN)
    assert len(found.rose) > 5
    assert all(word.before < 0.05 < word.now for word in found.rose if word.word not in ENGLISH)
    assert all("handlung" in text or "und" in text or "ist" in text or "die" in text for text in found.like_now)
    assert found == compare(texts(1, 600), texts(2, 600, german=0.2))


def test_letters_tell_apart_what_words_do_not() -> None:
    """Trigrams find the same words in capitals."""
    found = compare(texts(1, 400), texts(2, 400, upper=0.3))
    assert found.is_apart
    assert () == found.rose
    assert all(text.isupper() for text in found.like_now)


def test_a_text_that_comes_again_and_again_is_told_and_learned_once() -> None:
    """Otherwise it would be memorised, and each copy would count as evidence."""
    found = compare(texts(1, 300), [*texts(2, 300), *["buy now"] * 60])
    assert not found.is_apart
    assert not found.is_nothing
    assert [("buy now", 0.0)] == [(one.word, one.before) for one in found.often]
    assert (300, 360) == (found.before, found.now)


@pytest.mark.parametrize(
    ("before", "now"), [(["a"] * 60, ["a"] * 60), (["a"] * 60, ["b"] * 60), (["!"] * 60, ["?"] * 60), ([], [])]
)
def test_few_different_texts_are_no_reason_to_fail(before: list[str], now: list[str]) -> None:
    """There is nothing to train on, or nothing to test."""
    found = compare(before, now)
    assert isinstance(found, Comparison)
    assert not found.is_apart
    assert (before == now) == found.is_nothing


def test_what_was_redacted_is_one_word() -> None:
    """The payload log replaces redacted text by the rule's name in brackets."""
    found = compare(texts(1, 200), [f"{text} [email]" for text in texts(2, 200)])
    assert "[email]" == found.rose[0].word
