"""Shares, dropped fields and redaction: what is read, what is refused, and that no text can take long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.payloads.rules import KNOWN, names, redaction, share_of, shares


def test_the_first_pattern_that_fits_counts() -> None:
    """As it is written: exceptions first, the rest last."""
    read = shares("toxic/2=1, sentiment=0.1 *=0.01")
    assert [1.0, 0.1, 0.1, 0.01] == [share_of(url, read) for url in ("toxic/2", "sentiment", "sentiment/7", "toxic/1")]
    assert 0.0 == share_of("other", shares("sentiment=1"))


@pytest.mark.parametrize("text", ["sentiment", "sentiment=2", "sentiment=-1", "=1", "/=0.5", "a=b", "a=nan"])
def test_a_share_that_cannot_be_meant_is_refused(text: str) -> None:
    """With what to write instead."""
    with pytest.raises(ValueError, match=r"write sentiment=0\.1"):
        shares(text)


@pytest.mark.parametrize(
    ("rule", "text", "kept"),
    [
        ("email", "write to jürgen.groß+x@mail.example.org, please", "write to [email], please"),
        ("card", "card 4111 1111 1111 1111.", "card [card]."),
        ("card", "card 4111111111111111", "card [card]"),
        ("iban", "pay DE89 3704 0044 0532 0130 00 now", "pay [iban] now"),
        ("phone", "call +49 (170) 123-4567 or 0170 1234567", "call [phone] or [phone]"),
        ("ip", "from 192.168.0.1 and 2001:db8::1", "from [ip] and [ip]"),
        ("ip", "at 12:34:56, to 2001:db8:0:0:1:2:3:4", "at 12:34:56, to [ip]"),
        ("url", "see https://example.org/a?b=c.", "see [url]"),
        ("number", "order 1234567, 12 pieces", "order [number], 12 pieces"),
        (r"/ACC-\d+/", "of ACC-99", "of [redacted]"),
    ],
)
def test_what_a_rule_finds_is_replaced(rule: str, text: str, kept: str) -> None:
    """Inside any text, by the rule's name."""
    redact = redaction(rule)
    assert redact is not None
    assert {"text": kept, "n": [kept, 1, None]} == redact({"text": text, "n": [text, 1, None]})


def test_rules_are_applied_in_one_order_however_they_are_listed() -> None:
    """What a precise rule has replaced a rough one does not find."""
    text = "mail a@b.org, card 4111111111111111"
    assert {"mail [email], card [card]"} == {
        redact(text) for rules in ("number card email", "email card number") if (redact := redaction(rules)) is not None
    }


def test_keys_and_long_numbers_are_texts_too() -> None:
    """Answers name what callers sent as keys, and card numbers are sent as numbers."""
    redact = redaction("email card number")
    assert redact is not None
    assert {"[email]": 0.5, "n": "[card]", "ids": [101, 2023]} == redact(
        {"a@b.org": 0.5, "n": 4111111111111111, "ids": [101, 2023]}
    )


def test_dropped_fields_are_gone_at_any_depth() -> None:
    """By their name; nothing else is."""
    redact = redaction("", names("user, token"))
    assert redact is not None
    assert {"a": [{"text": "t"}]} == redact({"user": 1, "a": [{"token": "x", "text": "t", "user": {}}]})


def test_without_rules_nothing_is_looked_at() -> None:
    """The common case costs nothing."""
    assert redaction("  ") is None


@pytest.mark.parametrize(
    ("rule", "said"),
    [("mail", "there are url, email"), (r"/(a)\1/", "RE2"), ("/(/", "RE2"), ("/a*/", "everywhere"), ("//", "no rule")],
)
def test_a_rule_that_cannot_be_used_is_refused(rule: str, said: str) -> None:
    """When the gateway starts, not when a text comes."""
    with pytest.raises(ValueError, match=said):
        redaction(rule)


@given(st.text(alphabet="ab@. 0123456789-+:/äß", max_size=200))
def test_what_was_replaced_is_not_found_again(text: str) -> None:
    """Each rule's own patterns match nothing of what it has left."""
    for rule in KNOWN:
        redact = redaction(rule)
        assert redact is not None
        assert redact(text) == redact(redact(text))


def test_no_pattern_makes_a_text_take_long() -> None:
    """What would take an engine that backtracks longer than the universe has lasted."""
    redact = redaction("/(a|a)*(a|a)*b/ email phone")
    assert redact is not None
    text = "a" * 100_000
    assert text == redact(text)
