"""Turns ``--aux-config`` into a ModelConfig message: a whole config.pbtxt, or key=value pairs as users type them.

Pure: text and nested values in, a protobuf message out. Only ``model_config.py`` calls it. Pairs are written as
protobuf text, so protobuf's own parser reads both and says what is wrong. Nothing is dropped silently: a field that
Triton does not have is a ``BadModel`` that names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import text_encoding, text_format
from google.protobuf.descriptor import FieldDescriptor
from tritonclient.grpc import model_config_pb2

from deploy.sync.errors import BadModel

_QUOTES = (('\\"', '\\"'), ("\\'", "\\'"), ('"', '"'), ("'", "'"), ("\\", "\\"))


def unquote(value: str) -> str:
    r"""Remove every layer of quotes that shells, HOCON and clearml-serving leave around a value.

    ``"x"``, ``\"x\"``, ``'x'``, ``\'x\'`` and clearml-serving's mangled ``\x\`` all mean ``x``.
    """
    text = value.strip()
    while True:
        for left, right in _QUOTES:
            if len(text) >= len(left) + len(right) and text.startswith(left) and text.endswith(right):
                text = text[len(left) : len(text) - len(right)]
                break
        else:
            return text


def parse_pbtxt(text: str, where: str = "config.pbtxt") -> Any:
    """Parse a config.pbtxt. Raises ``BadModel`` with the line and the field."""
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise BadModel(
            f"{where} cannot be parsed: {str(error).splitlines()[0][:300]}",
            hint="check it against Triton's model configuration",
        ) from error


def parse_pairs(pairs: Mapping[str, Any]) -> Any:
    """Read nested pairs: numbered or listed elements, maps, enums, bools, numbers, strings. Raises ``BadModel``."""
    return parse_pbtxt("\n".join(_lines(model_config_pb2.ModelConfig.DESCRIPTOR, pairs)), "--aux-config")


def is_numbered(value: Any) -> bool:
    """Return whether ``value`` names its elements by their numbers, as ``input.0.format=…`` does."""
    return isinstance(value, Mapping) and all(unquote(str(key)).isdigit() for key in value)


def _lines(kind: Any, pairs: Mapping[str, Any]) -> list[str]:
    """Return ``pairs`` as protobuf text for a message of ``kind``, one line for each value."""
    found: list[str] = []
    for raw_name, value in pairs.items():
        name = unquote(str(raw_name))
        field = kind.fields_by_name.get(name)
        for one in _elements(field, value) if field is not None and field.is_repeated else [value]:
            found += _field(name, field, one)
    return found


def _field(name: str, field: Any, value: Any) -> list[str]:
    kind = field.message_type if field is not None else None
    if kind is not None and isinstance(value, Mapping):
        return [f"{name} {{", *_lines(kind, value), "}"]
    word = "true" if value is True else "false" if value is False else unquote(str(value))
    if kind is not None and "string_value" in kind.fields_by_name:  # parameters.threads=2
        return [f"{name} {{ string_value: {_quoted(word)} }}"]
    if kind is not None and (word in ("", "{}", "[]", "None") or word.lower() == "true"):
        return [f"{name} {{}}"]
    if kind is not None and word.lower() == "false":
        return []
    if field is not None and field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        word = word.lower()
    is_text = field is None or field.cpp_type == FieldDescriptor.CPPTYPE_STRING
    return [f"{name}: {_quoted(word)}" if is_text else f"{name}: {word}"]


def _elements(field: Any, value: Any) -> Sequence[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, Mapping):
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return [{"key": key, "value": one} for key, one in value.items()]
        if is_numbered(value):  # preferred_batch_size.0=4
            return [value[key] for key in sorted(value, key=lambda key: int(unquote(str(key))))]
    if isinstance(value, Mapping) or field.message_type is not None:
        return [value]
    words = unquote(str(value)).removeprefix("[").removesuffix("]").split(",")
    return [word.strip() for word in words if word.strip()]


def _quoted(text: str) -> str:
    return f'"{text_encoding.CEscape(text.encode(), as_utf8=True)}"'
