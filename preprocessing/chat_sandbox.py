"""The Jinja environment in which models' chat templates run: what transformers offers, in bounded time.

Templates come with models, and a thread that renders one cannot be stopped. So each turn of a loop and each call of a
macro checks a clock, and operators, filters and methods that make large values of a few characters are limited.
``chat`` imports this module when it needs it, because Jinja takes long to import.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_S: Final = 2.0
"""Seconds of CPU time for one prompt. Usual templates take milliseconds for a thousand messages."""
MAX_CHARS: Final = 4 << 20
"""The most characters of a prompt, and characters or items of a value that an operator makes."""
_MAX_PRODUCT: Final = 16 * MAX_CHARS
"""The largest product of the lengths of two texts, such as those of ``replace``."""
_MAX_NUMBER: Final = 1_000_000
"""The largest number that a filter or a method takes, such as the width of ``center``."""
_MAX_BITS: Final = 4096
_TURNS: Final = 64
"""The clock is read once in so many turns."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Raises ``jinja2.TemplateError`` in a template that takes too long or makes values that are too large."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = _to_json
        self.filters = {name: _checked(function) for name, function in self.filters.items()}
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = _strftime_now
        self._local = threading.local()

    def compiled(self, source: str) -> jinja2.Template:
        """Return a template that checks the clock. Raises what Jinja raises for one that it cannot compile."""
        tree = self.parse(source)
        for kind in (nodes.For, nodes.Macro, nodes.CallBlock):
            for found in list(tree.find_all(kind)):
                found.body.insert(0, nodes.ExprStmt(_call("check_time", [])))  # type: ignore[attr-defined] # all have one
        return self.from_string(_Joins().visit(tree))

    def rendered(self, template: jinja2.Template, **variables: object) -> str:
        """Return what a compiled template writes."""
        self._local.until, self._local.turns = time.thread_time() + MAX_S, 0
        pieces, size = [], 0
        for piece in template.generate(**variables):
            size += len(piece)
            _limit(size)
            pieces.append(piece)
        return "".join(pieces)

    def check_time(self) -> None:
        """Raise an error if this thread has worked on the prompt for too long."""
        local = self._local
        local.turns += 1
        if local.turns % _TURNS == 0 and time.thread_time() > local.until:
            _refuse(f"it did not end within {MAX_S:g} s")

    def joined(self, *parts: object) -> str:
        """Return the texts of values as one, as the operator ``~`` does."""
        texts = [str(part) for part in parts]
        _limit(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """See Jinja's sandbox."""
        if operator == "+":
            _limit(_length(left) + _length(right))
        elif isinstance(left, int) and isinstance(right, int):
            _limit(left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length(), _MAX_BITS)
        else:
            sizes = [one if isinstance(one, int) else _length(one) for one in (left, right)]
            _limit(sizes[0] * sizes[1])
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, *arguments: Any, **named: Any) -> Any:
        """See Jinja's sandbox."""
        _check((getattr(function, "__self__", None), *arguments, *named.values()))
        return super().call(context, function, *arguments, **named)


class _Joins(NodeTransformer):
    """Has values joined by ``BoundedEnvironment.joined``."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        return _call("joined", node.nodes)


class _Generation(Extension):
    """Reads `{% generation %}` blocks, with which templates mark an assistant's words for training.

    They change nothing in the prompt. As in transformers, a variable set inside is not known behind it.
    """

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Any) -> nodes.Node:
        """See Jinja's extensions."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller: Any) -> Any:
        return caller()


def _call(method: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that checks its arguments."""

    @functools.wraps(function)  # also copies what Jinja notes about it
    def checked(*arguments: Any, **named: Any) -> Any:
        _check((*arguments, *named.values()))
        return function(*arguments, **named)

    return checked


def _check(arguments: Iterable[object]) -> None:
    lengths = [1, 1]
    for argument in arguments:
        if isinstance(argument, str):
            lengths.append(len(argument))
        elif isinstance(argument, int):
            _limit(abs(argument), _MAX_NUMBER)
    lengths.sort()
    _limit(lengths[-1] * lengths[-2], _MAX_PRODUCT)


def _limit(size: float, most: int = MAX_CHARS) -> None:
    if size > most:
        _refuse("it makes a value that is too large")


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 1


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, but a prompt is not HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # local time, as in transformers
