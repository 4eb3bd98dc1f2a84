"""Rare words alone are counted and judged as a gateway counts and judges them."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import numpy as np

from benchmarks.shared import rare_words
from gateway.metrics import drift
from gateway.metrics.words import LATELY, UnseenWords


def test_words_are_counted_as_a_gateway_counts_those_that_it_has_never_seen() -> None:
    rng = np.random.default_rng(1)
    times, words = rare_words._arrivals(np.full(40, 0.002), 6 * LATELY, rng)
    nth = dict(zip(zip(times.tolist(), words.tolist(), strict=True), rare_words._nth(times, words) >= 4, strict=True))
    lately, found = UnseenWords(), {}
    for text in range(6 * LATELY):
        if text and text % LATELY == 0:
            lately.age()
        came = words[times == text]
        # Words apart in the bits that say their places.
        again = lately.see((came.astype(np.uint64) + np.uint64(1)) << np.uint64(20))
        found |= {(text, word): is_again for word, is_again in zip(came.tolist(), again.tolist(), strict=True)}
    assert found == nth
    assert 10 < sum(found.values()) < len(found)


def test_what_a_reference_has_seen_does_not_come_as_unseen() -> None:
    of = rare_words.shares()
    bins, unseen = rare_words.reference(of, np.random.default_rng(1))
    assert 500 < len(unseen) < 5_000 < len(of)
    assert unseen.mean() < of.mean()
    assert bins.counts[bins.names.index("unseen")] < 3


def test_texts_with_an_unseen_word_one_after_the_other_alarm_and_two_far_apart_do_not() -> None:
    bins = drift.risen_bins({"none": 20_000.0})
    close, far = np.arange(5), np.array([0, 400])
    assert 1 == rare_words._judged(bins, [close, far], 5, 5 / 300 / 1440)
    assert 0 == rare_words._judged(bins, [far], 5, 5 / 300 / 1440)
