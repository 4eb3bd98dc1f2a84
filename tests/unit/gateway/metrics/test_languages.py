"""The data that scripts and languages are told by."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import unicodedata
from itertools import pairwise

from gateway.metrics.languages import FUNCTION_WORDS, OF_SCRIPT, SCRIPTS


def script_of(letter: str) -> str:
    return "".join(name for name, ranges in SCRIPTS.items() if any(a <= ord(letter) <= b for a, b in ranges))


def test_no_character_is_of_two_scripts() -> None:
    ranges = sorted(one for ranges in SCRIPTS.values() for one in ranges)
    assert all(first <= last for first, last in ranges)
    assert all(last < first for (_, last), (first, _) in pairwise(ranges))


def test_every_letter_of_a_script_is_named_after_it() -> None:
    """Unicode's own names of letters begin with the script; those that do not are these."""
    others = {"latin": {"FEMININE", "MASCULINE", "FULLWIDTH"}, "han": {"CJK", "KANGXI", "IDEOGRAPHIC"},
              "kana": {"HIRAGANA", "KATAKANA", "HALFWIDTH"}, "hangul": {"HALFWIDTH"},
              "greek": {"COPTIC", "MICRO"}}  # fmt: skip
    for script, ranges in SCRIPTS.items():
        expected = {script.upper(), "MODIFIER", *others.get(script, ())}
        letters = [chr(code) for first, last in ranges for code in range(first, last + 1)]
        named = {unicodedata.name(c, "").split(" ")[0].split("-")[0] for c in letters if c.isalpha()}
        assert named - {""} <= expected, script


def test_function_words_are_written_in_their_script() -> None:
    for script, languages in FUNCTION_WORDS.items():
        for listed in languages.values():
            for word in listed.split():
                assert {script} == {of for letter in word if (of := script_of(letter))}, word
            assert len(set(listed.split())) > 10
    assert OF_SCRIPT.keys() <= SCRIPTS.keys()
