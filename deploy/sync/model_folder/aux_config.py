"""Turns ``--aux-config`` into a ModelConfig message: a whole config.pbtxt, or key=value pairs as users type them.

Pure: text and nested values in, a protobuf message out. Only ``model_config.py`` calls it. Nothing is dropped silently:
a field that Triton does not have is a ``BadModel`` that names it and the nearest known one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2

from deploy.sync.errors import BadModel

_PAIRS = (('\\"', '\\"'), ("\\'", "\\'"), ('"', '"'), ("'", "'"), ("\\", "\\"))
_INTEGERS = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT32,
             FieldDescriptor.CPPTYPE_UINT64)  # fmt: skip
_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)


def unquote(value: str) -> str:
    r"""Remove every layer of quotes that shells, HOCON and clearml-serving leave around a value.

    ``"x"``, ``\"x\"``, ``'x'``, ``\'x\'`` and clearml-serving's mangled ``\x\`` all mean ``x``.
    """
    text = value.strip()
    while True:
        for left, right in _PAIRS:
            if len(text) >= len(left) + len(right) and text.startswith(left) and text.endswith(right):
                text = text[len(left) : len(text) - len(right)]
                break
        else:
            return text


def parse_pbtxt(text: str) -> Any:
    """Parse a config.pbtxt. Raises ``BadModel`` with the line, the field and a suggestion."""
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        message = str(error)
        unknown = re.search(r'Message type "inference\.([\w.]+)" has no field named "([^"]+)"', message)
        if unknown:
            descriptor = model_config_pb2.DESCRIPTOR.message_types_by_name["ModelConfig"].file
            kind: Any = descriptor
            for part in unknown[1].split("."):
                kind = (kind.message_types_by_name if kind is descriptor else kind.nested_types_by_name)[part]
            raise _unknown_field(unknown[2], kind, "config.pbtxt", message.split(" : ")[0]) from error
        raise BadModel(f"config.pbtxt cannot be parsed: {message.splitlines()[0][:300]}",
                        hint="check it against Triton's model configuration") from error  # fmt: skip


def apply_pairs(message: Any, pairs: Mapping[str, Any], path: str = "") -> None:
    """Set nested ``pairs`` on a message: names, numbered or listed elements, maps, enums, bools, numbers, strings."""
    for raw_key, value in pairs.items():
        key = unquote(str(raw_key))
        field = message.DESCRIPTOR.fields_by_name.get(key)
        where = f"{path}.{key}" if path else key
        if field is None:
            raise _unknown_field(key, message.DESCRIPTOR, where)
        if _is_map(field):
            _apply_map(message, field, value, where)
        elif field.is_repeated:
            _apply_repeated(message, field, value, where)
        elif field.message_type is not None:
            _apply_message(message, field, value, where)
        else:
            setattr(message, key, _scalar(field, value, where))


def _apply_message(message: Any, field: Any, value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        inner = getattr(message, field.name)
        inner.SetInParent()
        apply_pairs(inner, value, where)
    elif value in ([], None) or (not isinstance(value, list) and _word(value) in ("", "true", "{}", "[]")):
        getattr(message, field.name).SetInParent()
    elif not isinstance(value, list) and _word(value) == "false":
        message.ClearField(field.name)
    else:
        raise BadModel(f"--aux-config {where} is a group of fields, not {value!r}: write {where}.FIELD=value")


def _apply_repeated(message: Any, field: Any, value: Any, where: str) -> None:
    target = getattr(message, field.name)
    if field.message_type is not None:
        numbered = isinstance(value, Mapping) and all(unquote(str(k)).isdigit() for k in value)
        if numbered:
            # input.0.format=…: the element with that number; it is created if it is the next one.
            for number, element in sorted((int(unquote(str(k))), v) for k, v in value.items()):
                if number > len(target):
                    raise BadModel(f"--aux-config {where}.{number} is given without {where}.{len(target)}")
                inner = target[number] if number < len(target) else target.add()
                apply_pairs(inner, _fields_of(element, f"{where}.{number}"), f"{where}.{number}")
            return
        del target[:]
        for number, element in enumerate(value if isinstance(value, list) else [value]):
            apply_pairs(target.add(), _fields_of(element, f"{where}.{number}"), f"{where}.{number}")
        return
    del target[:]
    target.extend(_scalar(field, item, where) for item in _items(value))


def _apply_map(message: Any, field: Any, value: Any, where: str) -> None:
    if isinstance(value, list):
        value = {str(_fields_of(v, where).get("key")): _fields_of(v, where).get("value") for v in value}
    target = getattr(message, field.name)
    inner = field.message_type.fields_by_name["value"]
    for raw_key, item in _fields_of(value, where).items():
        key = unquote(str(raw_key))
        if inner.message_type is None:
            target[key] = _scalar(inner, item, f"{where}.{key}")
        elif isinstance(item, Mapping):
            apply_pairs(target[key], item, f"{where}.{key}")
        elif "string_value" in inner.message_type.fields_by_name:  # parameters.threads=2
            target[key].string_value = _text(item)
        else:
            raise BadModel(f"--aux-config {where}.{key} is a group of fields, not {item!r}")


def _scalar(field: Any, value: Any, where: str) -> Any:
    if isinstance(value, Mapping | list):
        raise BadModel(f"--aux-config {where} takes one value, not {value!r}")
    word = _text(value)
    if field.enum_type is not None:
        return _enum(field.enum_type, word, where)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if word.lower() in ("true", "1", "yes", "on"):
            return True
        if word.lower() in ("false", "0", "no", "off"):
            return False
        raise BadModel(f"--aux-config {where} must be true or false, not {word!r}")
    if field.cpp_type in _INTEGERS or field.cpp_type in _FLOATS:
        try:
            return int(word) if field.cpp_type in _INTEGERS else float(word)
        except ValueError as error:
            raise BadModel(f"--aux-config {where} must be a number, not {word!r}") from error
    return word


def _enum(enum: EnumDescriptor, word: str, where: str) -> int:
    if word in enum.values_by_name:
        return int(enum.values_by_name[word].number)
    if word.isdigit() and int(word) in enum.values_by_number:
        return int(word)
    raise BadModel(f"--aux-config {where}={word}: no such value{_suggest(word, enum.values_by_name)}; "
                    f"one of {', '.join(enum.values_by_name)}")  # fmt: skip


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _fields_of(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadModel(f"--aux-config {where} is a group of fields, not {value!r}: write {where}.FIELD=value")
    return value


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, Mapping):  # preferred_batch_size.0=4
        return [value[k] for k in sorted(value, key=lambda k: int(unquote(str(k))) if unquote(str(k)).isdigit() else 0)]
    word = _text(value)
    if word.startswith("[") and word.endswith("]"):
        return [w for w in (part.strip() for part in word[1:-1].split(",")) if w]
    return [w for w in (part.strip() for part in word.split(",")) if w]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return unquote(str(value))


def _word(value: Any) -> str:
    return _text(value).lower()


def _unknown_field(name: str, descriptor: Any, where: str, at: str = "") -> BadModel:
    known = [f.name for f in descriptor.fields]
    place = f" (line:column {at})" if re.fullmatch(r"\d+:\d+", at) else ""
    return BadModel(
        f"{where}: Triton's {descriptor.name} has no field {name!r}{place}{_suggest(name, known)}",
        hint="see Triton's model configuration" if len(known) > 8 else f"known fields: {', '.join(known)}",
    )


def _suggest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
