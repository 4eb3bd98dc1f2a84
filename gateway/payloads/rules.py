"""The rules of the payload log, from settings: shares, dropped fields and redaction. Pure.

Patterns use RE2, whose time is linear in the text for every pattern. Python's ``re`` could hang the whole process
with a bad pattern or a prepared text, and neither is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from gateway.callers.rights import matches

_LETTERS: Final = r"[\pL\pN._%+-]"
_GROUP: Final = "[0-9A-Fa-f]{1,4}"
RULES: Final = {
    "url": r"\bhttps?://[^\s\"'<>]+",
    "email": rf"{_LETTERS}+@[\pL\pN-]+(?:\.[\pL\pN-]+)+",
    "iban": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b",
    "card": r"\b\d(?:[ -]?\d){12,18}\b",
    "ip": r"\b\d{1,3}(?:\.\d{1,3}){3}\b"
    rf"|\b(?:{_GROUP}:){{7}}{_GROUP}\b|\b(?:{_GROUP}:){{1,6}}(?::{_GROUP}){{1,6}}\b",
    "phone": r"(?:\+|\b0)\d(?:[ ()/.-]{0,2}\d){6,14}\b",
    "number": r"\d{5,}",
}
"""Rules by name, in the order of application: a later rule does not see what an earlier one has replaced."""
_REDACTED: Final = "[redacted]"
"""Replaces the matches of a pattern; the name of a rule replaces the matches of the rule."""
_MAX_DEPTH: Final = 256
_LONG_NUMBER: Final = 10**7
"""Integers of at least this size are searched like texts, because card numbers are also sent as numbers."""

Redact = Callable[[Any], Any]
"""Returns a JSON value without dropped fields and with every match replaced."""


@dataclass(frozen=True, slots=True)
class Share:
    """The share of requests, from 0 to 1, that is logged for endpoints that match ``pattern``."""

    pattern: str
    share: float


def shares(text: str) -> tuple[Share, ...]:
    """Parse ``sentiment=0.1 toxic/2=1 *=0.01``. Raises ``ValueError`` with the reason."""
    parsed = []
    for item in text.replace(",", " ").split():
        pattern, _, share = item.rpartition("=")
        try:
            number = float(share)
        except ValueError:
            number = -1.0
        if not pattern.strip("/") or not 0 <= number <= 1:
            raise ValueError(f"{item[:100]!r} is not ENDPOINT=SHARE with a share from 0 to 1: write sentiment=0.1")
        parsed.append(Share(pattern, number))
    return tuple(parsed)


def share_of(url: str, rules: Iterable[Share]) -> float:
    """Return the share for an endpoint version: that of the first matching pattern, or 0."""
    return next((one.share for one in rules if matches(one.pattern, url)), 0.0)


def names(text: str) -> frozenset[str]:
    """Parse a comma-separated list of field names."""
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def redaction(rules: str, dropped: frozenset[str] = frozenset()) -> Redact | None:
    """Return a function that drops fields of JSON and replaces matches of rules; None if it would do nothing.

    ``rules`` are names of ``RULES`` and patterns ``/…/``, separated by white space. Raises ``ValueError``.
    """
    patterns = _patterns(rules)
    if not patterns and not dropped:
        return None

    def cleaned(text: str) -> str:
        for replacement, pattern in patterns:
            text = pattern.sub(replacement, text)
        return text

    def redact(value: Any, depth_left: int = _MAX_DEPTH) -> Any:
        if type(value) is str:
            return cleaned(value)
        if type(value) is int and abs(value) >= _LONG_NUMBER:
            text = str(value)
            return value if (redacted := cleaned(text)) == text else redacted
        if not depth_left:
            return _REDACTED  # nested deeper than the JSON parser allows
        if type(value) is dict:
            return {cleaned(key): redact(inner, depth_left - 1) for key, inner in value.items() if key not in dropped}
        return [redact(inner, depth_left - 1) for inner in value] if type(value) is list else value

    return redact


def _patterns(rules: str) -> list[tuple[str, Any]]:
    chosen = rules.split()
    if not chosen:
        return []
    # Imported here, because few gateways redact and RE2 is a separate library.
    import re2

    options = re2.Options()
    options.log_errors = False
    patterns = []
    for name in chosen:
        if name not in RULES and not (len(name) > 2 and name[0] == name[-1] == "/"):
            raise ValueError(f"{name[:100]!r} is no rule: there are {', '.join(RULES)}, and patterns written /…/")
    for name in sorted(chosen, key=lambda one: [*RULES, one].index(one)):
        try:
            pattern = re2.compile(RULES[name] if name in RULES else name[1:-1], options)
        except re2.error as error:
            message = error.args[0] if error.args else ""
            reason = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
            raise ValueError(f"the pattern {name[:100]} cannot be used: {reason} (RE2's syntax)") from error
        if pattern.fullmatch("") or pattern.search("") is not None:
            raise ValueError(f"the pattern {name[:100]} matches no characters at all: it would be found everywhere")
        patterns.append((f"[{name}]" if name in RULES else _REDACTED, pattern))
    return patterns
