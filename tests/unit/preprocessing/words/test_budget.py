"""The word caches of all tokenizers of a process share one limit, and busy tokenizers keep their words."""

from __future__ import annotations

import gc

from preprocessing.framing import Framing
from preprocessing.words.budget import WordBudget
from preprocessing.words.cache import WordCache
from tests.words import word_piece

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = [f"w{chr(97 + i // 26 % 26)}{chr(97 + i % 26)}{chr(97 + i // 676)}" for i in range(3000)]


def a_cache(budget: WordBudget) -> WordCache:
    """Return a cache over a tokenizer that knows all words."""
    tokenizer = word_piece([*SPECIAL, *WORDS])
    return WordCache(tokenizer, Framing(tokenizer, max_length=64), max_words=100_000, budget=budget)


def ids(cache: WordCache) -> object:
    """Return the cache's ids of a word."""
    (encoded,) = cache.encode_batch([WORDS[0]])
    assert encoded is not None
    return encoded.ids.tolist()


def test_many_caches_hold_no_more_than_one_budget_together() -> None:
    """Whatever the limit of each. Forgotten words are learned again with the same ids."""
    budget = WordBudget(2000)
    caches = [a_cache(budget) for _ in range(10)]
    first = [ids(cache) for cache in caches]
    for word in WORDS[:1000]:
        for cache in caches:
            cache.encode_batch([word])
        assert sum(cache.words for cache in caches) <= 2000 * 1.05
    assert first == [ids(cache) for cache in caches]


def test_words_of_idle_tokenizers_are_dropped_first() -> None:
    """A busy tokenizer keeps its words while new words come."""
    budget = WordBudget(1000)
    idle, busy, new = (a_cache(budget) for _ in range(3))
    idle.encode_batch(WORDS[:500])
    busy.encode_batch(WORDS[:300])
    for word in WORDS[1000:1600]:
        busy.encode_batch([WORDS[5], WORDS[6]])
        new.encode_batch([word])
    for word in WORDS[1000:1600]:
        busy.encode_batch([WORDS[5]])
        new.encode_batch([word])
    assert 0 == idle.words
    assert busy.words + new.words <= 1030


def test_without_a_limit_nothing_is_forgotten_and_removed_caches_do_not_count() -> None:
    """A removed endpoint leaves no words behind."""
    budget = WordBudget(0)
    caches = [a_cache(budget) for _ in range(3)]
    for cache in caches:
        cache.encode_batch(WORDS[:1000])
    assert [1000] * 3 == [cache.words for cache in caches]
    del cache, caches
    gc.collect()
    assert 0 == len(budget._caches)
