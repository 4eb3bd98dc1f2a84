"""Reads the text of a configuration section: the HOCON that the clearml SDK writes, and JSON.

HOCON as people may write it has more: comments, unquoted strings, merging, substitutions, includes, durations. The SDK
writes none of them, and a text from outside must not read files, addresses or the environment, so they are refused with
the line. What is read has the value that the SDK reads (checked by a property test).

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, Final

MAX_CHARS: Final = 8 << 20
MAX_DEPTH: Final = 64
MAX_ENTRIES: Final = 10_000
_FORM: Final = "write it as JSON, or as the clearml SDK does: one entry per line, strings in quotes, no comments"

Entries = dict[str, Any]


class Unreadable(ValueError):
    """The text has another form than the SDK's and JSON, or exceeds a limit (size, depth); the message says which."""


def parse(text: str) -> Entries:
    """Return the text's entries as plain dicts, lists, strings, numbers, booleans and None. Raises ``Unreadable``."""
    if len(text) > MAX_CHARS:
        raise Unreadable(f"it has {len(text):,} characters; at most {MAX_CHARS:,} are allowed")
    text = _PERIOD.sub(_seconds, text) if "= relativedelta(" in text else text
    return _Reader(text.expandtabs() if "\t" in text else text).read()


@functools.lru_cache(32)
def read(text: str) -> Mapping[str, Any]:
    """Return ``parse(text)``. The result is shared: do not change it. Raises ``Unreadable``."""
    return parse(text)


_PERIOD = re.compile(
    r"(?m)^( *[^\s\"{}=][^\"{}=\n]* = )relativedelta\(([a-z]+=[+-][0-9.]+(?:, [a-z]+=[+-][0-9.]+)*)\)$"
)
"""``--aux-config gateway.unload_after=30m`` makes the stock CLI write ``relativedelta(minutes=+30)``, which the SDK
cannot read: without this nothing could read the section again. It is read as a string: ``1800s``.
"""
_PERIOD_S: Final = {
    "years": 365 * 86400, "months": 30 * 86400, "days": 86400, "hours": 3600, "minutes": 60, "seconds": 1,
    "microseconds": 1e-6,
}  # fmt: skip


def _seconds(found: re.Match[str]) -> str:
    parts = (part.split("=") for part in found[2].split(", "))
    try:
        return f'{found[1]}"{sum(_PERIOD_S[unit] * float(number) for unit, number in parts):.15g}s"'
    except (KeyError, ValueError):
        return found[0]


_GAP = re.compile(r"[ ,\n\r]*")
_KEY = re.compile(r'(?:(?P<bare>[\w-](?:[\w -]|/(?!/))*)|"(?P<quoted>[^"\\\x00-\x1f]+)" *)(?:(?P<open>\{)|[=:] *)')
_VALUE = re.compile(
    r'"""(?P<long>.*?"*)"""|"(?P<string>(?:[^"\\\n]|\\[^\n])*)"'
    r"|(?P<number>[+-]?[0-9]{1,300}(?P<real>(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?))"
    r"|(?P<word>true|false|null|-?inf\b|nan\b)|(?P<open>[\[{])",
    re.DOTALL,
)
_END = re.compile(r" *(?:[,\n\r]|(?=[}\]]))|\Z")
_ESCAPE = re.compile(r"\\.")
_ESCAPES: Final = {r"\\": "\\", r"\n": "\n", r"\r": "\r", r"\t": "\t", r"\=": "=", r"\#": "#", r"\!": "!", r"\"": '"'}
_WORDS: Final = {"true": True, "false": False, "null": None}
"""Other words, which the SDK writes for numbers that JSON lacks, are strings to it."""


class _Reader:
    """One pass over the SDK's dialect. Anything else is refused, so what is read here is read exactly."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> Entries:
        text = self._text
        self._gap()
        is_braced = text.startswith("{", self._at)
        self._at += is_braced
        found = self._block(1, closes=is_braced)
        self._gap()
        if self._at != len(text):
            raise self._fault()
        return found

    def _fault(self, what: str = "") -> Unreadable:
        line = self._text.count("\n", 0, self._at) + 1
        return Unreadable(f"line {line}: {what or _FORM}")

    def _gap(self) -> None:
        gap = _GAP.match(self._text, self._at)
        self._at = gap.end() if gap else self._at

    def _block(self, depth: int, *, closes: bool) -> Entries:
        if depth > MAX_DEPTH:
            raise self._fault(f"its brackets are nested more than {MAX_DEPTH} deep")
        found: Entries = {}
        text = self._text
        while True:
            self._gap()
            if closes and text.startswith("}", self._at):
                self._at += 1
                return found
            if not closes and self._at == len(text):
                return found
            start = _KEY.match(text, self._at)
            if start is None:
                raise self._fault()
            key = start["quoted"] or start["bare"].strip()
            if key in found:
                raise self._fault(f"{key} is there twice")
            self._at = start.end()
            found[key] = self._block(depth + 1, closes=True) if start["open"] else self._value(depth + 1)
            self._end()
            if depth == 1 and len(found) > MAX_ENTRIES:
                raise Unreadable(f"it has more than {MAX_ENTRIES:,} entries")

    def _list(self, depth: int) -> list[Any]:
        if depth > MAX_DEPTH:
            raise self._fault(f"its brackets are nested more than {MAX_DEPTH} deep")
        found: list[Any] = []
        while True:
            self._gap()
            if self._text.startswith("]", self._at):
                self._at += 1
                return found
            value = self._value(depth + 1)
            if value != "":  # the SDK leaves such entries out
                found.append(value)
            self._end()

    def _value(self, depth: int) -> Any:
        token = _VALUE.match(self._text, self._at)
        if token is None:
            raise self._fault()
        self._at = token.end()
        kind = token.lastgroup
        if kind == "string":
            value = token["string"]
            return _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        if kind == "open":
            return self._block(depth, closes=True) if token["open"] == "{" else self._list(depth)
        if kind == "long":
            return token["long"]
        if kind == "word":
            return _WORDS.get(token["word"], token["word"])
        return float(token["number"]) if token["real"] else int(token["number"])

    def _end(self) -> None:
        end = _END.match(self._text, self._at)
        if end is None:
            raise self._fault()
        self._at = end.end()


def _unescaped(match: re.Match[str]) -> str:
    # As for the SDK, unknown escapes stay as they are, with their backslash.
    return _ESCAPES.get(match[0], match[0])
