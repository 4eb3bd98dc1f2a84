"""What texts look like: each variable on ordinary and odd texts, and how many of them are looked at."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics import texts, variables
from gateway.metrics.texts import CASES, LANGUAGES, SCRIPT_NAMES, Duplicates, Runs, Sample, Text, TextCounter
from tests.words import names

SENTENCES = {
    "The weather was fine and we went to the lake.": ("latin", "en"),
    "Das Wetter war schön, und wir sind zum See gegangen.": ("latin", "de"),
    "Il faisait beau et nous sommes allés au bord du lac.": ("latin", "fr"),
    "Hacía buen tiempo y fuimos a la orilla del lago con los niños.": ("latin", "es"),
    "O tempo estava bom e nós não fomos ao lago com as crianças.": ("latin", "pt"),
    "Il tempo era bello e siamo andati al lago con gli amici.": ("latin", "it"),
    "Het weer was mooi en wij zijn naar het meer gegaan.": ("latin", "nl"),
    "Vädret var fint och vi gick till sjön för att bada.": ("latin", "sv"),
    "Pogoda była ładna i nie było już śniegu, ale jest zimno.": ("latin", "pl"),
    "Hava güzel değil ama göle gitmek için çok geç.": ("latin", "tr"),
    "Погода была хорошая, и мы пошли на озеро, чтобы купаться.": ("cyrillic", "ru"),
    "Погода була гарна, і ми пішли до озера, щоб купатися.": ("cyrillic", "uk"),
    "كان الطقس جميلا في البحيرة التي ذهبنا إلى شاطئها": ("arabic", "ar"),
    "मौसम अच्छा है और हम झील के पास हैं": ("devanagari", "hi"),
    "Ο καιρός ήταν καλός και πήγαμε στη λίμνη.": ("greek", "el"),
    "天气很好，我们去了湖边。": ("han", "zh"),
    "天気が良かったので湖に行きました。": ("kana", "ja"),
    "날씨가 좋아서 호수에 갔다.": ("hangul", "ko"),
    "อากาศดีเราจึงไปทะเลสาบ": ("thai", "th"),
    "Zxq vrrk": ("latin", "none"),
    "12:30, 4 €": ("none", "none"),
    "😀👍🏽": ("none", "none"),
    "": ("none", "none"),
    "привет from Moscow, как дела у вас": ("cyrillic", "ru"),
    "ok 😀": ("latin", "none"),
}


def look(text: str) -> tuple[str, str]:
    """Script and language of one text."""
    found = texts.examine([text]).numbers
    return SCRIPT_NAMES[found[variables.SCRIPT][0]], LANGUAGES[found[variables.LANGUAGE][0]]


def words(text: str) -> set[str]:
    return names(texts.examine([text]).words)[0]


@pytest.mark.parametrize("text", SENTENCES)
def test_script_and_language_of_a_sentence(text: str) -> None:
    assert SENTENCES[text] == look(text)


def test_a_text_looks_the_same_alone_and_among_others() -> None:
    """Emoji take two places in the encoding that scripts are found in; they must not move their neighbours' letters."""
    listed = list(SENTENCES)
    found = texts.examine(listed).numbers
    seen = zip(found[variables.SCRIPT].tolist(), found[variables.LANGUAGE].tolist(), strict=True)
    assert [SENTENCES[text] for text in listed] == [(SCRIPT_NAMES[i], LANGUAGES[j]) for i, j in seen]


@given(st.lists(st.text(max_size=300), max_size=8))
def test_whatever_the_text_it_has_one_of_the_values(listed: list[str]) -> None:
    """Lone surrogates, marks and control characters included."""
    beginnings = [texts.beginning(text) for text in listed]
    together, alone = texts.examine(beginnings), [texts.examine([text]) for text in beginnings]
    for name, numbers in together.numbers.items():
        assert numbers.tolist() == [one.numbers[name][0] for one in alone]
        assert sum(texts.counted(name, numbers).values()) == len(listed)
    assert names(together.words) == [words for one in alone for words in names(one.words)]


@pytest.mark.parametrize(
    ("text", "case"),
    [
        ("all small, with 3 things", "lower"), ("ALL LARGE", "upper"), ("Every Word Of It", "title"),
        ("The usual sentence.", "mixed"), ("iPhone", "mixed"), ("A", "upper"), ("", "none"), ("12 €", "none"),
        ("天气很好", "none"), ("ПРИВЕТ", "upper"), ("straße", "lower"), ("😀", "none"),
    ],
)  # fmt: skip
def test_letter_case(text: str, case: str) -> None:
    assert case == CASES[texts.letter_case(text)]


def test_words_are_small_letters_without_punctuation_and_every_digit_is_a_0() -> None:
    assert {"don", "t", "pay", "0", "000", "euros"} == words("Don't pay 1,500 (EUROS)!")
    assert {"straße", "in", "köln"} == words("Straße „in“ KÖLN…")
    assert words("the fine weather") == words("The FINE, weather;")


def test_words_of_scripts_without_spaces_are_pairs_of_letters() -> None:
    assert {"天气", "气很", "很好", "我们"} == words("天气很好，我们")
    assert {"好"} == words("好")


def test_of_a_very_long_text_the_beginning_is_looked_at() -> None:
    assert texts.MAX_CHARS == len(texts.beginning("x" * 10_000_000))
    assert texts.MAX_CHARS + 1 == len(texts.beginning(("x" * 1_000_000, "y" * 1_000_000)))
    assert "question answer" == texts.beginning(("question", "answer"))


def see(recent: Duplicates, listed: Sequence[Text]) -> list[int]:
    return recent.see([texts.key(text) for text in listed]).tolist()


def test_a_text_is_a_duplicate_while_few_others_came_in_between() -> None:
    recent = Duplicates()
    assert [] == see(recent, [f"warm up {i}" for i in range(1024)])
    assert [0, 1, 0, 1] == see(recent, ["new", "new", ("new", "pair"), ("new", "pair")])
    see(recent, [f"other {i}" for i in range(10_000)])
    assert [0] == see(recent, ["new"])


def test_texts_that_are_looked_at_together_are_duplicates_as_they_are_one_by_one() -> None:
    random_ = random.Random(3)
    traffic = [f"{random_.randrange(2000)}" for _ in range(6000)]
    one, many = Duplicates(), Duplicates()
    single = [found for text in traffic for found in see(one, [text])]
    assert single == [found for i in range(0, 6000, 256) for found in see(many, traffic[i : i + 256])]
    assert 0.1 < sum(single) / len(single) < 0.5


def test_long_texts_are_the_same_if_beginning_and_length_are() -> None:
    recent = Duplicates()
    see(recent, [f"warm up {i}" for i in range(1024)])
    long = "y" * 100_000
    assert [0, 1, 0] == see(recent, [long, "y" * 100_000, long + "y"])


def test_a_share_of_repeated_texts_is_found_alike_by_one_worker_and_by_several() -> None:
    """Of traffic with popular texts, a worker that sees a quarter of it finds the same share of duplicates."""
    random_ = random.Random(0)
    popular = [f"popular {i}" for i in range(40)]
    traffic = [random_.choice(popular) if random_.random() < 0.3 else f"{i}" for i in range(40_000)]
    workers = [Duplicates() for _ in range(4)]
    whole = see(Duplicates(), traffic)
    parts = [seen for i, worker in enumerate(workers) for seen in see(worker, traffic[i::4])]
    assert abs(sum(whole) / len(whole) - sum(parts) / len(parts)) < 0.02
    assert 0.2 < sum(whole) / len(whole) < 0.3


def test_all_texts_are_looked_at_while_few_come_and_a_share_by_chance_when_many_do() -> None:
    """Of one request's texts, too, never more than of two seconds."""
    now = itertools.count().__next__
    chance = random.Random(1).random
    few = Sample(200, chance, lambda: now() / 10)
    assert 100 == sum(len(few.of(["x"])) for _ in range(100))
    clock = iter([0.0, 0.0, 1.0, 2.0])
    many = Sample(200, chance, lambda: next(clock))
    assert 200 == len(many.of(["x"] * 2000))
    assert 150 < len(many.of(["x"] * 2000)) < 250
    assert 150 < len(many.of(["x"] * 2000)) < 250


@pytest.mark.parametrize("at_once", [1, 7, 500])
def test_every_one_is_as_likely_to_be_drawn_however_many_come_at_once(at_once: int) -> None:
    now = 0.0
    sample, traffic, drawn = Sample(1000, random.Random(2).random, lambda: now), range(60_000), Counter[int]()
    for start in range(0, len(traffic), at_once):
        now = start / 10_000  # ten thousand a second, of which a thousand are drawn
        drawn.update(number // 10_000 for number in sample.of(traffic[start : start + at_once]))
    assert 2_000 <= drawn[0] < 3_300  # nobody knew at first that so many would come
    assert all(900 < drawn[second] < 1100 for second in range(1, 6))


def test_a_large_request_does_not_keep_the_next_seconds_from_being_looked_at() -> None:
    clock = iter([0.0, 0.0, 0.01, *[1.5 + i for i in range(9)]])
    sample = Sample(100, random.Random(1).random, lambda: next(clock))
    assert 100 <= len(sample.of(range(1000))) < 200
    assert len(sample.of(range(90))) < 10
    assert all(90 == len(sample.of(range(90))) for _ in range(9))


def test_many_rows_of_few_requests_count_for_the_share() -> None:
    clock = iter([0.0, 0.0, 1.0])
    sample = Sample(100, random.Random(1).random, lambda: next(clock))
    assert 100 == len(sample.of(range(100), 10_000))
    assert len(sample.of(range(1000), 1000)) < 30


def test_runs_follow_each_other_while_few_texts_come_and_are_a_share_when_many_do() -> None:
    now = 0.0
    few, many = Runs(1000, lambda: now), Runs(1000, lambda: now)
    for number in range(10_000):
        now = number / 900
        assert (True, False) == (few.has(1), few.is_first)
    began, found, firsts = now, 0, 0
    for number in range(30_000):
        now = began + number / 1000
        if many.has(10):
            found, firsts = found + 10, firsts + many.is_first
    assert 0.95 < found / 30_000 < 1.2
    assert 6 <= firsts <= 8


def test_duplicates_are_as_frequent_of_runs_as_of_all() -> None:
    """Texts before a run are not held against it: what came between is not known."""
    random_ = random.Random(0)
    traffic = [random_.choice("abc") if random_.random() < 0.3 else f"{i}" for i in range(60_000)]
    shares = []
    for runs in ([traffic], [traffic[start : start + 4096] for start in range(0, 60_000, 12_000)]):
        counted = Counted([variables.DUPLICATE])
        for run in runs:
            counted.looks.follow(run, is_first=True)
        counted.looks.flush()
        found = counted.found[variables.DUPLICATE]
        assert sum(map(len, runs)) - 1024 * len(runs) == found.total()
        shares.append(found["true"] / found.total())
    assert 0.25 < shares[0] < 0.32
    assert abs(shares[0] - shares[1]) < 0.02


class Counted:
    """What `TextCounter` counts."""

    def __init__(self, names: Sequence[str] = (variables.SCRIPT, variables.LANGUAGE, variables.CASE)) -> None:
        self.found: dict[str, Counter[str]] = {name: Counter() for name in names}
        takes: dict[str, texts.Take] = {name: counter.update for name, counter in self.found.items()}
        self.looks = TextCounter(takes, Sample(1_000_000, random.random))

    def see(self, seen: Sequence[Text]) -> dict[str, Counter[str]]:
        """Count these, whole."""
        self.looks.see(seen)
        self.looks.follow(seen)
        self.looks.flush()
        return self.found


@given(st.lists(st.text(max_size=60), max_size=200), st.integers(1, 4))
def test_what_workers_count_adds_up_to_what_one_would_have_counted(listed: list[str], number: int) -> None:
    whole = Counted().see(listed)
    parts = [Counted().see(listed[i::number]) for i in range(number)]
    assert whole == {name: sum((part[name] for part in parts), Counter()) for name in whole}


def test_only_what_is_asked_for_is_counted() -> None:
    """A declared variable takes a built-in one's place."""
    assert {"letter_case": Counter({"lower": 1})} == Counted([variables.CASE]).see(["small"])
    assert {} == Counted([]).see(["small"])


def test_long_texts_do_not_wait_whole_until_many_have_come() -> None:
    counted = Counted()
    for long in (["short"], ["short", "x" * 100_000], [("x" * 100_000, "y")]):
        counted.looks.see(long)
    assert 4 == len(counted.looks._drawn)
    assert max(map(len, counted.looks._drawn)) <= texts.MAX_CHARS + 1


def test_pairs_are_looked_at_as_one_text() -> None:
    found = Counted().see([("Wo ist das Haus", "Das ist nicht weit"), ("", "")])
    assert ({"latin": 1, "none": 1}, {"de": 1, "none": 1}) == (found[variables.SCRIPT], found[variables.LANGUAGE])


def test_a_python_that_hashes_otherwise_counts_the_same() -> None:
    """Sets are gone through in an order of their own in each process: ties must not follow it."""
    listed = ["de la", "en de", "men vi", "da du", "der de"]
    code = f"from gateway.metrics import texts\nprint(texts.examine({listed}).numbers)"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert 1 == len(runs)
