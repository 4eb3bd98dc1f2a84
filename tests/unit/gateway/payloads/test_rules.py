"""Shares, dropped fields and redaction: valid rules, invalid rules, and limited time for any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.payloads.rules import RULES, names, redaction, share_of, shares


def test_the_first_matching_pattern_counts() -> None:
    """Exceptions come first, the default last."""
    read = shares("toxic/2=1, sentiment=0.1 *=0.01")
    assert [1.0, 0.1, 0.1, 0.01] == [share_of(url, read) for url in ("toxic/2", "sentiment", "sentiment/7", "toxic/1")]
    assert 0.0 == share_of("other", shares("sentiment=1"))


@pytest.mark.parametrize("text", ["sentiment", "sentiment=2", "sentiment=-1", "=1", "/=0.5", "a=b", "a=nan"])
def test_invalid_shares_are_refused(text: str) -> None:
    """With the right form."""
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
def test_matches_of_a_rule_are_replaced_by_its_name(rule: str, text: str, kept: str) -> None:
    """Anywhere in a text."""
    redact = redaction(rule)
    assert redact is not None
    assert {"text": kept, "n": [kept, 1, None]} == redact({"text": text, "n": [text, 1, None]})


def test_rules_are_applied_in_a_fixed_order() -> None:
    """A rough rule does not match the replacement of a precise one."""
    text = "mail a@b.org, card 4111111111111111"
    assert {"mail [email], card [card]"} == {
        redact(text) for rules in ("number card email", "email card number") if (redact := redaction(rules)) is not None
    }


def test_keys_and_long_numbers_are_redacted_too() -> None:
    """Answers can contain callers' texts as keys, and card numbers may be sent as numbers."""
    redact = redaction("email card number")
    assert redact is not None
    assert {"[email]": 0.5, "n": "[card]", "ids": [101, 2023]} == redact(
        {"a@b.org": 0.5, "n": 4111111111111111, "ids": [101, 2023]}
    )


def test_dropped_fields_are_gone_at_any_depth() -> None:
    """Only fields with exactly this name."""
    redact = redaction("", names("user, token"))
    assert redact is not None
    assert {"a": [{"text": "t"}]} == redact({"user": 1, "a": [{"token": "x", "text": "t", "user": {}}]})


def test_without_rules_no_content_is_read() -> None:
    """The common case costs nothing."""
    assert redaction("  ") is None


@pytest.mark.parametrize(
    ("rule", "said"),
    [("mail", "there are url, email"), (r"/(a)\1/", "RE2"), ("/(/", "RE2"), ("/a*/", "everywhere"), ("//", "no rule")],
)
def test_invalid_rules_are_refused(rule: str, said: str) -> None:
    """When the gateway starts."""
    with pytest.raises(ValueError, match=said):
        redaction(rule)


@given(st.text(alphabet="ab@. 0123456789-+:/äß", max_size=200))
def test_replacements_are_not_matched_again(text: str) -> None:
    """By the patterns of any rule."""
    for rule in RULES:
        redact = redaction(rule)
        assert redact is not None
        assert redact(text) == redact(redact(text))


def test_no_pattern_takes_long() -> None:
    """A backtracking engine would take practically for ever."""
    redact = redaction("/(a|a)*(a|a)*b/ email phone")
    assert redact is not None
    text = "a" * 100_000
    assert text == redact(text)
