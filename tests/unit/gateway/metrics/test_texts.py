"""What texts and embeddings look like: each variable on ordinary and odd ones, and how many of them are looked at."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics import catalog, embeddings, texts
from gateway.metrics.embeddings import Cosines
from gateway.metrics.mirrored import groups_of
from gateway.metrics.observer import Observer
from gateway.metrics.texts import CASES, LANGUAGES, LEARNED, Draws, UsualWords
from gateway.metrics.watch import Served
from gateway.trace import Trace
from preprocessing.types import Encoded, ParsedRequest, Prepared
from tests.expositions import counted, histograms

SENTENCES = {
    "The weather was fine and we went to the lake.": "en",
    "Das Wetter war schön, und wir sind zum See gegangen.": "de",
    "Il faisait beau et nous sommes allés au bord du lac.": "fr",
    "Hacía buen tiempo y fuimos a la orilla del lago con los niños.": "es",
    "Pogoda była ładna i nie było już śniegu, ale jest zimno.": "pl",
    "Hava güzel değil ama göle gitmek için çok geç.": "tr",
    "Погода была хорошая, и мы пошли на озеро, чтобы купаться.": "ru",
    "كان الطقس جميلا في البحيرة التي ذهبنا إلى شاطئها": "ar",
    "मौसम अच्छा है और हम झील के पास हैं": "hi",
    "Ο καιρός ήταν καλός και πήγαμε στη λίμνη.": "el",
    "天气很好，我们去了湖边。": "zh",
    "天気が良かったので湖に行きました。": "ja",
    "날씨가 좋아서 호수에 갔다.": "ko",
    "อากาศดีเราจึงไปทะเลสาบ": "th",
    "😀👍🏽": "none",
    "": "none",
    "привет from Moscow, как дела у вас": "ru",
    # Of two with as many words the first that is listed, in whatever order a set is gone through.
    "de la": "fr",
    "da du": "fr",
    "der de": "da",
}


def look(text: str) -> str:
    return texts.language(text, texts.words_of(text))


@pytest.mark.parametrize("text", SENTENCES)
def test_language_of_a_sentence(text: str) -> None:
    assert SENTENCES[text] == look(text)


@given(st.text(max_size=300))
def test_whatever_the_text_it_has_one_of_the_values(text: str) -> None:
    """Lone surrogates, marks and control characters included."""
    begun = texts.beginning(text)
    assert look(begun) in LANGUAGES
    assert texts.letter_case(begun) in CASES
    assert all(word and word == word.lower() for word in texts.words_of(begun))


@pytest.mark.parametrize(
    ("text", "case"),
    [
        ("all small, with 3 things", "lower"), ("ALL LARGE", "upper"), ("Every Word Of It", "title"),
        ("The usual sentence.", "mixed"), ("iPhone", "mixed"), ("A", "upper"), ("", "none"), ("12 €", "none"),
        ("天气很好", "none"), ("ПРИВЕТ", "upper"), ("straße", "lower"), ("😀", "none"),
    ],
)  # fmt: skip
def test_letter_case(text: str, case: str) -> None:
    assert case == texts.letter_case(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't pay 1,500 (EUROS)!", {"don", "t", "pay", "0", "euros"}),
        ("Straße „in“ KÖLN…", {"straße", "in", "köln"}),
        ("है हैं", {"है", "हैं"}),  # a vowel sign is a part of its word
        ("天气很好，我们", {"天气", "很好", "我们"}), ("好", {"好"}),  # pairs of letters where there are no spaces
    ],
)  # fmt: skip
def test_words_are_small_letters_without_punctuation_and_every_number_is_a_0(text: str, words: set[str]) -> None:
    assert words == texts.words_of(text)


def test_of_a_very_long_text_the_beginning_is_looked_at() -> None:
    assert texts.MAX_CHARS == len(texts.beginning("x" * 10_000_000))
    assert texts.MAX_CHARS + 1 == len(texts.beginning(("x" * 1_000_000, "y" * 1_000_000)))
    assert "question answer" == texts.beginning(("question", "answer"))


def test_usual_words_are_learned_from_the_first_texts() -> None:
    """Only later texts are measured; what few texts had is not usual. What a capture takes measures them alike."""
    usual = UsualWords(())
    for number in range(LEARNED):
        assert usual.unusual(frozenset({"the", "a" if number % 2 else "an", f"rare{number // 4}"})) is None
    assert ("the", "a", "an") == usual.words
    for one in (usual, UsualWords(usual.words)):
        assert [0.0, 0.5, 1.0, None] == [
            one.unusual(frozenset(words.split())) for words in ("the an", "the unheard", "rare1", "")
        ]
    assert ("the", "a", "an") == usual.words, "what was learned does not change with what was measured"


@pytest.mark.parametrize("at_once", [1, 7, 500])
def test_every_one_is_as_likely_to_be_drawn_however_many_come_at_once(at_once: int) -> None:
    now = 0.0
    draws, traffic = Draws(1000.0, random.Random(2).random, lambda: now), range(60_000)
    by_second, by_place = Counter[int](), Counter[int]()
    for start in range(0, len(traffic), at_once):
        now = start / 10_000  # ten thousand a second, of which a thousand are drawn
        for number in draws.of(partial(traffic.__getitem__, slice(start, start + at_once))):
            by_second[number // 10_000] += 1
            by_place[(number - start) * 2 // at_once] += 1
    assert all(900 < by_second[second] < 1100 for second in range(1, 6))
    assert at_once == 1 or abs(by_place[0] / by_place.total() - ((at_once + 1) // 2) / at_once) < 0.05


def test_a_worker_looks_at_twenty_texts_a_second() -> None:
    """However many texts come, of whichever version. Tokens are counted of all."""
    now, source = 0.0, random.Random(4)
    observer = Observer(clock=lambda: now, chance=source.random)
    observer.watch.configure({f"e{n}/1": Served(f"e{n}", "1", is_text=True) for n in range(2)}, {}, 1.0)
    for step in range(300):
        now = step / 10
        for name in ("e0", "e1"):
            trace = Trace("id")
            trace.endpoint, trace.version, trace.url = name, "1", f"{name}/1"
            trace.prepared = Prepared([], ParsedRequest(["a text"] * 50, is_batch=True))
            trace.encoded = [Encoded(np.zeros(4, np.int64), None, 0, False)] * 50
            observer.finished(trace)
        observer.settle()
    found = observer.snapshot()
    assert 590 < sum(n for of, n in counted(found, catalog.VARIABLE_ENUM).items() if of[2] == "letter_case") <= 620
    (tokens,) = (one for of, (_, one) in histograms(found).items() if of == ("e0", "1", "token_length"))
    assert (15_000, 60_000) == (sum(tokens[:-1]), tokens[-1])


def drawn(number: int, towards: float = 2.0, size: int = 8, seed: int = 0) -> list[object]:
    """Return vectors around a direction."""
    random = np.random.default_rng(seed)
    return [*(random.normal(size=(number, size)) + np.eye(size)[0] * towards)]


def test_a_cosine_is_to_the_references_mean_and_length_does_not_count() -> None:
    vectors = [np.array([0.0, 7.0]), np.array([3.0, 0.0]), [0.0, -1.0], np.array([1.0, 1.0])]
    assert np.allclose([1, 0, -1, 0.5**0.5], Cosines((0.0, 2.0)).of(vectors))


def test_without_a_reference_the_first_vectors_make_the_mean_and_are_not_counted() -> None:
    """What a capture then takes counts the same cosines as those that it counted itself."""
    cosines = Cosines(())
    assert ([], ()) == (cosines.of(drawn(embeddings.LEARNED - 1)), cosines.mean)
    assert [] == cosines.of(drawn(1, seed=1))
    later = drawn(50, seed=2)
    assert np.allclose(cosines.of(later), Cosines(cosines.mean).of(later))
    assert np.mean(cosines.of(later)) > 0.4 > -0.4 > np.mean(cosines.of(drawn(50, towards=-2.0)))


@pytest.mark.parametrize("mean", [(1.0,) * 4, ()])
def test_vectors_that_cannot_be_compared_are_skipped(mean: tuple[float, ...]) -> None:
    """Zero vectors, vectors that are not finite, and truncated ones."""
    cosines = Cosines(mean)
    cosines.of([np.ones(4)] * embeddings.LEARNED)
    odd = [np.zeros(4), np.full(4, np.nan), np.ones(2), np.ones((1, 4)), []]
    assert [1.0] == cosines.of([np.ones(4), *odd])


@pytest.mark.parametrize("answer", [{"results": 5}, {"label": np.ones(2)}, {"label": ["A"]}, [1]], ids=repr)
def test_an_answer_of_users_own_form_is_in_the_groups_of_its_text(answer):
    trace = Trace("id")
    trace.answer, trace.prepared = answer, Prepared([], ParsedRequest(["der Film"], is_batch=False))
    assert ["up to 8 tokens", "language de"] == [*groups_of(trace, ("A",))]
