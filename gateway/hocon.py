"""Reads the HOCON text of a configuration section safely and fast.

There are two readers. The clearml SDK writes a narrow dialect (one entry per line, quoted strings, JSON lists), and
JSON is close to it. ``parse`` reads both in a single pass, some hundred times as fast as pyhocon. All other texts go to
pyhocon in a separate process, which is killed if it takes too long: pyhocon needs seconds for hundreds of endpoints and
a minute for deep nesting, all under the interpreter lock. Both readers return equal values (checked by a property
test). Includes, substitutions and durations are refused, because a foreign text must not read files, addresses or the
environment.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

MAX_CHARS: Final = 8 << 20
MAX_DEPTH: Final = 64
MAX_ENTRIES: Final = 10_000
MAX_S: Final = 20.0
"""Time limit of pyhocon for one text."""
_AGAIN_S: Final = 300.0
"""A text that took too long is tried again after this time."""
_MAX_KNOWN: Final = 32
_BOOT: Final = "import sys; sys.path.append(sys.argv[1]); from gateway.hocon import answer; answer(int(sys.argv[2]))"

Entries = dict[str, Any]


class Unreadable(ValueError):
    """The text is not HOCON, or exceeds a limit (size, depth, time); the message says which."""


class Dynamic(Unreadable):
    """The text is HOCON but uses a feature that is never evaluated here: an include, a substitution or a duration."""


class Unsettled(Unreadable):
    """Reading took too long, or pyhocon could not run. The machine may be the cause, so another try may succeed."""


class _Unusual(Exception):
    """Outside the dialect of the fast reader: pyhocon decides."""


def parse(text: str, *, seconds: float = MAX_S) -> Entries:
    """Return the text's entries as plain dicts, lists, strings, numbers, booleans and None.

    Raises ``Unreadable``; takes hardly longer than ``seconds``.
    """
    if len(text) > MAX_CHARS:
        raise Unreadable(f"it has {len(text):,} characters; at most {MAX_CHARS:,} are allowed")
    try:
        return _Reader(text.expandtabs() if "\t" in text else text).read()
    except _Unusual:
        return _asked(text, seconds)


_PERIOD = re.compile(
    r"(?m)^( *[^\s\"{}=][^\"{}=\n]* = )relativedelta\(([a-z]+=[+-][0-9.]+(?:, [a-z]+=[+-][0-9.]+)*)\)$"
)
_PERIOD_S: Final = {
    "years": 365 * 86400, "months": 30 * 86400, "days": 86400, "hours": 3600, "minutes": 60, "seconds": 1,
    "microseconds": 1e-6,
}  # fmt: skip


def mended(text: str) -> str:
    """Return ``text`` with periods written as strings: ``"1800s"``.

    ``--aux-config gateway.unload_after=30m`` makes the stock CLI write ``relativedelta(minutes=+30)``. pyhocon cannot
    read that, so without this nothing, not even the stock CLI, could read the section again.
    """
    return _PERIOD.sub(_seconds, text) if "= relativedelta(" in text else text


def _seconds(found: re.Match[str]) -> str:
    parts = (part.split("=") for part in found[2].split(", "))
    try:
        return f'{found[1]}"{sum(_PERIOD_S[unit] * float(number) for unit, number in parts):.15g}s"'
    except (KeyError, ValueError):
        return found[0]


_known: dict[str, tuple[float, Entries | Unreadable]] = {}
"""What was read of a text, and until when that is so."""


def read(text: str) -> Mapping[str, Any]:
    """Return ``parse(mended(text))``, from a cache if possible.

    A text that could not be read for lack of time or memory is tried again after five minutes. The result is shared: do
    not change it. Raises ``Unreadable``.
    """
    until, found = _known.get(text, (0.0, None))
    if found is None or time.monotonic() >= until:
        until = math.inf
        try:
            found = parse(mended(text))
        except Unreadable as error:
            found = error
            if isinstance(error, Unsettled):
                until = time.monotonic() + _AGAIN_S
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[text] = until, found
    if isinstance(found, Unreadable):
        raise found.with_traceback(None)
    return found


_GAP = re.compile(r"[ ,\n\r]*")
_KEY = re.compile(
    r'(?:(?P<bare>[A-Za-z0-9_-][A-Za-z0-9_/ -]*)|"(?P<quoted>[^"\\\x00-\x1f]+)" *)(?:(?P<open>\{)|[=:] *)'
)
_VALUE = re.compile(
    r'"""(?P<long>.*?"*)"""|"(?P<string>(?:[^"\\\n]|\\[^\n])*)"'
    r"|(?P<number>[+-]?[0-9]{1,300}(?P<real>(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?))"
    r"|(?P<word>true|false|null)|(?P<open>[\[{])",
    re.DOTALL,
)
_END = re.compile(r" *(?:[,\n\r]|(?=[}\]]))|\Z")
_ESCAPE = re.compile(r"\\.")
_ESCAPES: Final = {r"\\": "\\", r"\n": "\n", r"\r": "\r", r"\t": "\t", r"\=": "=", r"\#": "#", r"\!": "!", r"\"": '"'}
_WORDS: Final = {"true": True, "false": False, "null": None}


class _Reader:
    """One pass over the SDK's dialect. Anything else raises ``_Unusual``, so what is read here is read exactly."""

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
            raise _Unusual
        return found

    def _gap(self) -> None:
        gap = _GAP.match(self._text, self._at)
        self._at = gap.end() if gap else self._at

    def _block(self, depth: int, *, closes: bool) -> Entries:
        if depth > MAX_DEPTH:
            raise _too_deep()
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
                raise _Unusual
            key = start["quoted"] or start["bare"].strip()
            if key in found or (start["quoted"] is None and key[:7].lower() == "include"):
                raise _Unusual
            self._at = start.end()
            found[key] = self._block(depth + 1, closes=True) if start["open"] else self._value(depth + 1)
            self._end()
            if depth == 1 and len(found) > MAX_ENTRIES:
                raise _too_many()

    def _list(self, depth: int) -> list[Any]:
        if depth > MAX_DEPTH:
            raise _too_deep()
        found: list[Any] = []
        while True:
            self._gap()
            if self._text.startswith("]", self._at):
                self._at += 1
                return found
            value = self._value(depth + 1)
            if value == "":  # pyhocon leaves such entries out
                raise _Unusual
            found.append(value)
            self._end()

    def _value(self, depth: int) -> Any:
        token = _VALUE.match(self._text, self._at)
        if token is None:
            raise _Unusual
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
            return _WORDS[token["word"]]
        return float(token["number"]) if token["real"] else int(token["number"])

    def _end(self) -> None:
        end = _END.match(self._text, self._at)
        if end is None:
            raise _Unusual
        self._at = end.end()


def _unescaped(match: re.Match[str]) -> str:
    # As in pyhocon, unknown escapes stay as they are, with their backslash.
    return _ESCAPES.get(match[0], match[0])


def _too_deep() -> Unreadable:
    return Unreadable(f"its brackets are nested more than {MAX_DEPTH} deep")


def _too_many() -> Unreadable:
    return Unreadable(f"it has more than {MAX_ENTRIES:,} entries")


def _asked(text: str, seconds: float) -> Entries:
    """Return what pyhocon reads, in a process of its own. Raises ``Unreadable``."""
    # The process parses foreign texts, so it gets no credentials.
    environ = {k: v for k, v in os.environ.items() if k in ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")}
    command = [sys.executable, "-P", "-c", _BOOT, str(Path(__file__).parents[1]), f"{seconds:.0f}"]
    try:
        done = subprocess.run(
            command, input=text.encode("utf-8", "surrogatepass"), env=environ, timeout=seconds, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unsettled(
            f"reading it took more than {seconds:g} s; write it as the clearml SDK does, or as JSON: "
            "quoted strings, one entry per line, no comments"
        ) from None
    except OSError as error:
        raise Unsettled(f"pyhocon cannot be started: {error.strerror or error}") from error
    if not done.stdout:
        raise Unsettled("pyhocon ended without an answer: it needs too much memory")
    kind, found = json.loads(done.stdout)
    if kind != "entries":
        raise (Dynamic if kind == "dynamic" else Unreadable)(found)
    entries: Entries = found
    return entries


# --- code in the process of pyhocon ---

_QUOTED = re.compile(r'""".*?"*"""|"(?:[^"\\\n]|\\.)*"', re.DOTALL)


def _judge(text: str) -> Entries:
    """Read any HOCON text with pyhocon in this process, without a time limit. Raises ``Unreadable``."""
    import pyhocon
    from pyhocon.config_parser import ConfigParser

    depth = 0
    for bracket in re.findall(r"[\[\]{}]", _QUOTED.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise _too_deep()
    for place, name in (
        (pyhocon.ConfigFactory, "parse_file"),
        (pyhocon.ConfigFactory, "parse_URL"),
        (ConfigParser, "resolve_package_path"),
    ):
        setattr(place, name, _refuse_include)
    try:
        tree = pyhocon.ConfigFactory.parse_string(text, resolve=False)
        found = _plain(tree)
    except Unreadable:
        raise
    except Exception as error:
        # pyhocon raises errors of several libraries for invalid texts; callers need not tell them apart.
        raise Unreadable((str(error).splitlines() or [type(error).__name__])[0][:200]) from error
    if not isinstance(found, dict):
        raise Unreadable("it is a list, not a set of named entries")
    if len(found) > MAX_ENTRIES:
        raise _too_many()
    return found


def _refuse_include(*_: Any, **__: Any) -> Any:
    raise Dynamic("it includes another file or address, which is never followed; write the entries themselves")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_unquoted(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    kind = type(value).__name__
    if kind == "NoneValue":
        return None
    if kind in ("ConfigValues", "ConfigSubstitution"):
        raise Dynamic("it has a substitution (${…}), which is never evaluated; write the value itself")
    raise Dynamic("it has a value with a unit, such as 5 seconds; write a number")


def _unquoted(key: str) -> str:
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key


def answer(seconds: int) -> None:
    """Write what pyhocon reads from stdin to stdout, as JSON: the kind of answer, and the entries or a reason."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    signal.alarm(seconds + 2)  # ends this process if the asking process is gone
    found: tuple[str, object]
    try:
        found = "entries", _judge(sys.stdin.buffer.read().decode("utf-8", "surrogatepass"))
    except Unreadable as error:
        found = "dynamic" if isinstance(error, Dynamic) else "unreadable", str(error)
    sys.stdout.write(json.dumps(found))
