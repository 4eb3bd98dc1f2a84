"""OpenAPI schemas of an endpoint's request and answer, from its description. Pure.

The request of a task on texts has the fields of that task, and the parameters that it knows. Everything else follows
from the endpoint's example, the answer too. Tests post every example and check the answer's schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from preprocessing.heads import HEADS

Schema = dict[str, Any]
Details = Mapping[str, Any]

_TEXT: Final[Schema] = {"type": "string", "minLength": 1}
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "ranking": ("query", "documents"), "question-answering": ("question", "context"),
}  # fmt: skip
"""The texts that a task takes, if not ``text``."""


def request_schema(details: Details) -> Schema:
    """Return the schema of an endpoint's request body."""
    task = details.get("task")
    if task == "tensors":
        names = [str(described).split(" ", 1)[0] for described in details.get("inputs", ())]
        return _object({name: {"type": "array", "items": {}} for name in names}, names)
    if task not in HEADS:
        return of_value(details["example"]) if "example" in details else {}
    many: Schema = {"type": "array", "items": _TEXT, "minItems": 1}
    if isinstance(details.get("max_rows"), int):
        many["maxItems"] = details["max_rows"]
    required = _FIELDS.get(str(task), ("text",))
    fields: dict[str, Schema] = {name: {"anyOf": [_TEXT, many]} for name in required}
    if "documents" in fields:
        fields["documents"] = {"type": "array", "items": {}, "minItems": 1}
    if details.get("text_pairs") and "text" in fields:
        fields["text_pair"] = {**fields["text"], "nullable": True}
    if details.get("streams"):
        fields["stream"] = {"type": "boolean"}
    known: dict[str, Schema] = {str(name): {} for name in details.get("parameters", ())}
    fields["parameters"] = {"type": "object", "nullable": True, "properties": known, "additionalProperties": False}
    return {**_object(fields, required), "additionalProperties": False}


def response_schema(details: Details) -> Schema:
    """Return the schema of an endpoint's answer."""
    one = of_value(details["example_answer"]) if "example_answer" in details else {}
    if details.get("task") not in HEADS:
        return one
    counts: dict[str, Schema] = {"tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}}
    return {"anyOf": [one, {**_object(counts, ["tokens"]), "description": "Of a list of texts: docs/tasks.md"}]}


def of_value(value: object) -> Schema:
    """Return the schema of an example: types, the fields of objects, the first item of lists."""
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int | float):
        return {"type": "number"}
    if isinstance(value, str):
        return {"type": "string"}
    if isinstance(value, Mapping):
        return _object({str(name): of_value(item) for name, item in value.items()}, [])
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return {"type": "array", "items": of_value(value[0]) if value else {}}
    return {}


def _object(fields: Mapping[str, Schema], required: Sequence[str]) -> Schema:
    return {"type": "object", "properties": dict(fields), **({"required": list(required)} if required else {})}
