"""Usual, unusual and risen words: learned, compared with a reference, named, and bounded in memory."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import random
import string
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics import drift, words
from gateway.metrics.drift import Words
from gateway.metrics.wording import VOCABULARY_BYTES, split_words
from gateway.metrics.words import RISEN, Moved, WordWatch

USUAL = [f"word{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(200)]
SHARES = [0.5 / (1 + i / 10) for i in range(200)]


class Traffic:
    """Texts whose words occur with given shares, and some words that occur only once."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def texts(self, number: int, injected: float = 0.0, without: str = "") -> list[set[str]]:
        chance = self.random.random
        return [
            {word for word, share in zip(USUAL, SHARES, strict=True) if chance() < share and word != without}
            | {"".join(self.random.choices(string.ascii_lowercase, k=8)) for _ in range(2)}
            | ({"flimmer"} if chance() < injected else set())
            for _ in range(number)
        ]


def at_once(watched: WordWatch, texts: list[set[str]]) -> tuple[list[float], list[str]]:
    """Count all texts in one call."""
    shares, risen = watched.see(
        split_words([" ".join(sorted(words)) for words in texts], np.zeros(len(texts), dtype=bool))
    )
    return shares.tolist(), [RISEN[i] for i in risen.tolist()]


def see(watched: WordWatch, texts: list[set[str]]) -> tuple[list[float], Counter[str]]:
    """Count texts in groups of the gateway's size."""
    shares: list[float] = []
    risen: Counter[str] = Counter()
    for start in range(0, len(texts), 64):
        some, classes = at_once(watched, texts[start : start + 64])
        shares += some
        risen.update(classes)
    return shares, risen


@cache
def learned() -> Words:
    """Return the words learned from 5,000 texts."""
    watched = WordWatch(None)
    see(watched, Traffic(0).texts(5000))
    found = watched.usual()
    assert found is not None
    return found


def moved(watched: WordWatch) -> Moved:
    recent = watched.recent()
    assert recent is not None
    return recent.moved()


def test_frequent_words_are_learned_and_rare_ones_are_not() -> None:
    found = learned()
    assert set(USUAL) == set(found.counts)
    assert abs(found.shares()[USUAL[0]] - 0.5) < 0.05


def test_nothing_is_counted_before_it_is_known_what_is_usual() -> None:
    watched = WordWatch(None)
    assert ([], Counter()) == see(watched, Traffic(0).texts(900))
    assert watched.usual() is None


def test_what_was_counted_with_other_words_is_begun_anew() -> None:
    begun: list[int] = []
    watched = WordWatch(None, lambda: begun.append(1))
    see(watched, Traffic(0).texts(5000))
    assert [1, 1] == begun
    with_reference = WordWatch(learned(), lambda: begun.append(1))
    see(with_reference, Traffic(0).texts(5000))
    assert [1, 1] == begun


def test_the_share_of_unusual_words_is_equal_in_reference_and_traffic() -> None:
    """It is measured with words learned from other texts; otherwise a reference would know its own texts too well."""
    collected: list[float] = []
    learning = WordWatch(None, lambda: collected.clear())
    traffic = Traffic(1)
    for _ in range(100):
        collected += at_once(learning, traffic.texts(64))[0]
    live, _ = see(WordWatch(learning.usual()), Traffic(2).texts(3000))
    assert abs(sum(collected) / len(collected) - sum(live) / len(live)) < 0.01


def test_like_traffic_names_no_word() -> None:
    watched = WordWatch(learned())
    _, risen = see(watched, Traffic(3).texts(10_000))
    assert {"rose": {}, "fell": {}} == moved(watched)
    assert risen["none"] / risen.total() > 0.99


def test_a_word_that_comes_in_one_text_of_a_hundred_is_named() -> None:
    for seed in range(5):
        watched = WordWatch(learned())
        _, risen = see(watched, Traffic(seed).texts(3000, injected=0.01))
        rose = moved(watched)["rose"]
        assert ["flimmer"] == list(rose)
        now, was = rose["flimmer"]
        assert 0.004 < now < 0.02
        assert was is None
        assert risen["unseen"] > 10
        _, by_shares = see(
            WordWatch(Words(learned().texts, learned().counts)), Traffic(seed).texts(3000, injected=0.01)
        )
        assert by_shares["new"] > 10, "of a reference that does not know what was never seen"
        assert "unseen" not in by_shares


def test_a_word_that_was_never_seen_counts_from_the_fourth_text_on() -> None:
    """In one call or one by one; a word that occurred once before the capture does not count."""
    before = Traffic(1).texts(3000)
    before[100] |= {"seldom"}
    learning = WordWatch(None)
    see(learning, before)
    usual = learning.usual()
    some = Traffic(2).texts(40)
    for i in (3, 4, 9, 20, 21, 30):
        some[i] |= {"flimmer", "seldom"}
    found = at_once(WordWatch(usual), some)[1]
    watched = WordWatch(usual)
    assert found == [kind for one in some for kind in at_once(watched, [one])[1]]
    assert [20, 21, 30] == [i for i, kind in enumerate(found) if kind == "unseen"]


def test_a_word_that_was_never_seen_is_forgotten_when_it_does_not_come_for_long() -> None:
    watched, traffic = WordWatch(learned()), Traffic(5)
    assert ["none"] * 3 == at_once(watched, [{"flimmer"}] * 3)[1]
    see(watched, traffic.texts(600))
    assert ["unseen"] == at_once(watched, [{"flimmer"}])[1]
    see(watched, traffic.texts(1600))
    assert ["none"] == at_once(watched, [{"flimmer"}])[1]


def test_a_word_that_was_never_seen_is_named_from_five_texts_on() -> None:
    watched, texts = WordWatch(learned()), Traffic(6).texts(600)
    for i in (0, 100, 200, 300):
        texts[i] |= {"flimmer"}
    see(watched, texts)
    assert {} == moved(watched)["rose"]
    at_once(watched, [{"flimmer"}])
    assert ["flimmer"] == list(moved(watched)["rose"])


def test_what_came_while_a_reference_was_in_use_is_in_the_next_one() -> None:
    watched, traffic = WordWatch(learned()), Traffic(7)
    see(watched, traffic.texts(1500, injected=0.05))
    see(watched, traffic.texts(3000))
    following = watched.usual()
    assert following is not None
    assert len(following.seen) == VOCABULARY_BYTES
    assert ["none"] * 10 == at_once(WordWatch(following), [{"flimmer"}] * 10)[1]


def test_a_word_that_does_not_come_any_more_is_named() -> None:
    watched = WordWatch(learned())
    see(watched, Traffic(4).texts(2000, without=USUAL[5]))
    fell = moved(watched)["fell"]
    assert [USUAL[5]] == list(fell)
    now, was = fell[USUAL[5]]
    assert now < 0.002
    assert was == learned().shares()[USUAL[5]]


def test_a_usual_word_that_becomes_four_times_as_frequent_is_more_and_an_unusual_one_new() -> None:
    reference = Words(5000.0, {"a": 10.0, "b": 3000.0})
    watched = WordWatch(reference)
    see(watched, [{"b"}] * 450 + [{"a", "b"}] * 50 + [{"c"}] * 50)
    at_once(watched, [set()])
    assert ["more", "new", "none", "new"] == at_once(watched, [{"a", "b"}, {"c", "b"}, {"b"}, {"a", "c"}])[1]


def test_texts_without_words_are_not_counted() -> None:
    watched = WordWatch(Words(10.0, {"a": 5.0}))
    assert ([0.0, 0.5], ["none", "none"]) == at_once(watched, [{"a"}, set(), {"a", "b"}])


def test_memory_is_bounded() -> None:
    """Frequent words are still known after any number of rare ones."""
    watched, chance = WordWatch(None), random.Random(5)
    for _ in range(150):
        at_once(watched, [{"".join(chance.choices("abcdefgh", k=5)) for _ in range(40)} | {"often"} for _ in range(64)])
        assert len(watched._names) <= words.MOST
        assert len(set(watched._names)) == len(watched._names)
    assert abs(watched._tally.counts[watched._names.index("often")] - 150 * 64) < 64


def test_a_day_of_texts_is_learned_once_and_counts_half_later() -> None:
    begun: list[int] = []
    watched = WordWatch(None, lambda: begun.append(1))
    for _ in range(1300):
        at_once(watched, [{"a", "b"}] * 64)
    assert 3 == len(begun)
    assert watched._tally.texts <= words._OLD + words._LOOKED + 64
    assert {"a", "b"} == set((watched.usual() or learned()).counts)


def test_what_workers_tell_is_one_list_with_the_mean_of_their_shares(tmp_path: Path) -> None:
    first: Moved = {"rose": {"x": (0.02, None)}, "fell": {}}
    second: Moved = {"rose": {"x": (0.04, None), "y": (0.01, 0.001)}, "fell": {"z": (0.0, 0.2)}}
    words.share({("e", "1"): second}, tmp_path / "two.numbers")
    words.share({("e", "1"): first}, tmp_path / "one.numbers")
    (tmp_path / "broken.words").write_text("{")
    found = words.gathered(tmp_path, {("e", "1"): first}, tmp_path / "one.numbers")[("e", "1")]
    assert {"x": (0.03, None), "y": (0.01, 0.001)} == found["rose"]
    assert [{"word": "z", "now": 0.0, "was": 0.2}] == words.described(found)["fell"]
    words.share({}, tmp_path / "two.numbers")
    assert {("e", "1"): first} == words.gathered(tmp_path, {("e", "1"): first}, tmp_path / "one.numbers")


def test_a_worker_without_news_writes_no_file(tmp_path: Path) -> None:
    words.share({}, tmp_path / "one.numbers")
    assert [] == list(tmp_path.iterdir())


@given(st.dictionaries(st.text(), st.integers(1, 1000), min_size=1, max_size=20))
def test_a_reference_keeps_its_words(counts: dict[str, int]) -> None:
    bins = drift.enum_bins({"a": 1})
    kept = Words(1000.0, {word: float(count) for word, count in counts.items()}, learned().seen)
    found = drift.decode(drift.encode({"x": bins}, words=kept))
    assert (kept, {"x": bins}) == (found.words, found)
