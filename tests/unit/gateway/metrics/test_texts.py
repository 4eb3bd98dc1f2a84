"""What texts look like: each variable on ordinary and odd texts, and how many of them are looked at."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics import catalog, texts
from gateway.metrics.observer import Observer
from gateway.metrics.texts import CASES, LANGUAGES, LEARNED, Draws, UsualWords
from gateway.metrics.watch import Served
from gateway.trace import Trace
from preprocessing.types import Encoded, ParsedRequest, Prepared
from tests import expositions
from tests.unit.gateway.metrics.summed import counted

SENTENCES = {
    "The weather was fine and we went to the lake.": "en",
    "Das Wetter war schön, und wir sind zum See gegangen.": "de",
    "Il faisait beau et nous sommes allés au bord du lac.": "fr",
    "Hacía buen tiempo y fuimos a la orilla del lago con los niños.": "es",
    "O tempo estava bom e nós não fomos ao lago com as crianças.": "pt",
    "Il tempo era bello e siamo andati al lago con gli amici.": "it",
    "Het weer was mooi en wij zijn naar het meer gegaan.": "nl",
    "Vädret var fint och vi gick till sjön för att bada.": "sv",
    "Pogoda była ładna i nie było już śniegu, ale jest zimno.": "pl",
    "Hava güzel değil ama göle gitmek için çok geç.": "tr",
    "Погода была хорошая, и мы пошли на озеро, чтобы купаться.": "ru",
    "Погода була гарна, і ми пішли до озера, щоб купатися.": "uk",
    "كان الطقس جميلا في البحيرة التي ذهبنا إلى شاطئها": "ar",
    "मौसम अच्छा है और हम झील के पास हैं": "hi",
    "Ο καιρός ήταν καλός και πήγαμε στη λίμνη.": "el",
    "天气很好，我们去了湖边。": "zh",
    "天気が良かったので湖に行きました。": "ja",
    "날씨가 좋아서 호수에 갔다.": "ko",
    "อากาศดีเราจึงไปทะเลสาบ": "th",
    "Zxq vrrk": "none",
    "12:30, 4 €": "none",
    "😀👍🏽": "none",
    "": "none",
    "привет from Moscow, как дела у вас": "ru",
    "ok 😀": "none",
    # Of two with as many words the first that is listed, in whatever order a set is gone through.
    "de la": "fr",
    "en de": "fr",
    "men vi": "sv",
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


def drawn(number: int, seed: int, words: int = 3000) -> list[str]:
    """Return texts of Zipf-distributed words."""
    source = random.Random(seed)
    weights = [1 / (rank + 3) for rank in range(words)]
    return [" ".join(f"w{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)}"
                     for n in source.choices(range(words), weights, k=12)) for _ in range(number)]  # fmt: skip


def test_usual_words_are_learned_from_the_first_texts() -> None:
    """Only later texts are measured. What a capture takes measures them alike."""
    usual = UsualWords(())
    assert [None] * LEARNED == [usual.unusual(texts.words_of(text)) for text in drawn(LEARNED, 1)]
    learned = usual.words
    assert learned
    later = drawn(3000, 2)
    shares = [usual.unusual(texts.words_of(text)) for text in later]
    assert learned == usual.words, "what was learned does not change with what was measured"
    again = UsualWords(usual.words)
    assert shares == [again.unusual(texts.words_of(text)) for text in later]
    assert usual.unusual(frozenset()) is None
    assert 1.0 == usual.unusual(frozenset({"unheard"}))


@pytest.mark.parametrize("at_once", [1, 7, 500])
def test_every_one_is_as_likely_to_be_drawn_however_many_come_at_once(at_once: int) -> None:
    now = 0.0
    draws, traffic = Draws(1000.0, random.Random(2).random, lambda: now), range(60_000)
    by_second, by_place = Counter[int](), Counter[int]()
    for start in range(0, len(traffic), at_once):
        now = start / 10_000  # ten thousand a second, of which a thousand are drawn
        for number in draws.of(traffic[start : start + at_once]):
            by_second[number // 10_000] += 1
            by_place[(number - start) * 2 // at_once] += 1
    assert all(900 < by_second[second] < 1100 for second in range(1, 6))
    assert at_once == 1 or abs(by_place[0] / by_place.total() - ((at_once + 1) // 2) / at_once) < 0.05


def test_a_worker_looks_at_twenty_texts_a_second() -> None:
    """However many texts come, of whichever version. Tokens are counted of all."""
    now, source = 0.0, random.Random(4)
    served = {f"e{n}/1": Served(f"e{n}", "1", is_text=True) for n in range(2)}
    observer = Observer(clock=lambda: now, chance=source.random)
    observer.watch.configure(served, {}, 1.0)
    for step in range(300):
        now = step / 10
        for url in served:
            trace = Trace("id")
            trace.endpoint, trace.version, trace.url = url[:2], "1", url
            trace.prepared = Prepared([], ParsedRequest(["a text"] * 50, is_batch=True))
            trace.encoded = [Encoded(np.zeros(4, np.int64), None, 0, False)] * 50
            observer.started()
            observer.finished(trace)
        observer.settle()
    found = {of: n for of, n in counted(observer.snapshot(), catalog.VARIABLE_ENUM).items() if of[2] == "letter_case"}
    assert 590 < sum(found.values()) <= 620
    text = expositions.render(observer.snapshot()).decode()
    assert 'gateway_variable_scalar_count{endpoint="e0",variable="token_length",version="1"} 15000.0' in text


@pytest.mark.parametrize("script", texts.FUNCTION_WORDS)
def test_function_words_are_words_of_their_script(script: str) -> None:
    for listed in texts.FUNCTION_WORDS[script].values():
        for word in listed.split():
            assert frozenset({word}) == texts.words_of(word)
            assert {script} == {of for letter in word if (of := texts._script_of(letter))}, word
