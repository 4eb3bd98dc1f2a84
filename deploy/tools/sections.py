"""The HOCON text of one configuration section of a serving Task: parse, render. Pure.

Called by rollouts and by `apply`. A text parses here if
the clearml SDK can parse it (`gateway.hocon` uses pyhocon, within limits of size, depth and time). Substitutions are
never resolved and `include` is never followed: a text from outside must not read the server's environment, files or
network. Such texts are `Dynamic` and are passed on unchanged.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from gateway import hocon

Section = dict[str, Any]

_MAX_S = 5.0
_QUOTED = re.compile(r'""".*?"*"""|"(?:[^"\\\n]|\\.)*"', re.DOTALL)
_INCLUDE = re.compile(r"(?m)^\s*include\s*(?:$|url|file|package|required|\()")


class Unparsable(ValueError):
    """The text is not HOCON, or too large, deep or slow to read, so ClearML clients could not read the section."""


class Dynamic(Exception):
    """The text is valid but uses what this server does not evaluate: substitution, inclusion, durations."""


def parse(text: str) -> Section:
    """Return the section as a dict.

    Raises:
        Unparsable: ClearML clients could not read it.
        Dynamic: it contains `${…}`, `include` or durations.
    """
    bare = _QUOTED.sub("", text)
    if "${" in bare or _INCLUDE.search(bare):
        raise Dynamic("substitutions and includes are not evaluated here")
    try:
        return hocon.parse(text, seconds=_MAX_S)
    except hocon.Dynamic as exc:
        raise Dynamic(str(exc)) from exc
    except hocon.Unreadable as exc:
        raise Unparsable(str(exc)) from exc


def render(section: Mapping[str, Any]) -> str:
    """Return `section` as JSON, which is HOCON too, in a form that parses back to the same values.

    Raises:
        Unparsable: a key or value has no form that pyhocon reads back unchanged (e.g. a key with a double quote).
    """
    plain = _plain(section)
    text = json.dumps(plain, indent=2, ensure_ascii=False)
    if parse(text) != plain:
        raise Unparsable("the section has no text form that reads back unchanged")
    return text


def _plain(value: Any) -> Any:
    """Return what `parse` returns for `value`: dicts, lists and scalars, keys without outer quotes."""
    if isinstance(value, Mapping):
        return {_unquoted(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise Dynamic(f"unsupported value of type {type(value).__name__}")


def _unquoted(key: str) -> str:
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key
