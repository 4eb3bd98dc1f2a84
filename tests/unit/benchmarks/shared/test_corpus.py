"""What is sent: the same for everybody, varied, with words that repeat as real words do."""

from __future__ import annotations

import pytest

from benchmarks.shared.corpus import KINDS, Corpus, vocabulary


def test_the_same_seed_gives_the_same_texts() -> None:
    """Two systems measured on one seed get the same work."""
    assert Corpus(7).texts("short", 50) == Corpus(7).texts("short", 50)
    assert Corpus(7).texts("short", 50) != Corpus(8).texts("short", 50)


def test_texts_have_the_length_of_their_kind() -> None:
    """Words per text stay within the kind's range."""
    for name, kind in KINDS.items():
        lengths = {len(text.split()) for text in Corpus(1).texts(name, 40)}
        assert kind.shortest <= min(lengths)
        assert max(lengths) <= kind.longest


def test_mixed_texts_are_three_short_ones_to_a_long_one() -> None:
    """Long and short arrive side by side, so that batches must sort them."""
    long = [len(text.split()) >= KINDS["long"].shortest for text in Corpus(1).texts("mixed", 40)]
    assert 10 == sum(long)


def test_an_unknown_kind_is_refused() -> None:
    """A misspelt kind is no empty run."""
    with pytest.raises(KeyError):
        Corpus(1).texts("medium", 1)


def test_no_text_repeats_but_most_words_do() -> None:
    """A cache of texts sees no hits; a cache of words sees most, and never all."""
    texts = Corpus(1).texts("short", 3000)
    assert len(texts) == len(set(texts))
    words = [word.strip(".,?!").lower() for text in texts for word in text.split()]
    second_half = words[len(words) // 2 :]
    known = set(words[: len(words) // 2])
    hits = sum(word in known for word in second_half) / len(second_half)
    assert 0.85 < hits < 0.99


def test_the_vocabulary_has_no_word_twice() -> None:
    """Ranks are what Zipf's law is about: one word, one rank."""
    words = vocabulary()
    assert len(words) == len(set(words)) > 10_000
