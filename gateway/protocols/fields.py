"""Checks the fields of JSON bodies, for all protocols; each raises ``InputRefused``. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from gateway.errors import InputRefused
from gateway.handlers.endpoint import Endpoint
from gateway.protocols.tensors import escaped
from preprocessing.types import Prepared

Body = Mapping[str, Any]

HARMLESS: Final = (
    "user", "metadata", "safety_identifier", "service_tier", "prompt_cache_key", "prompt_cache_retention", "request_id",
    "priority",
)  # fmt: skip
"""Fields of OpenAI's and vLLM's requests that say who asks, or how soon; they change no answer and are ignored."""


def object_of(body: object, form: str, *required: str) -> dict[str, Any]:
    """Return ``body`` if it is an object with the ``required`` fields. ``form``: an example of it."""
    if not isinstance(body, dict):
        raise InputRefused("the body must be an object", hint=f"send {form}")
    for name in required:
        if body.get(name) is None:
            raise InputRefused(f"the field {name} is missing", hint=f"send {form}")
    return body


def object_in(body: Body, name: str) -> Body:
    """Return a field that is an object; empty if it is missing or null."""
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise InputRefused(f"{name} must be an object")
    return value or {}


def refuse_other_fields(
    body: Body, known: Collection[str], neutral: Mapping[str, Sequence[object]] = {}, harmless: Collection[str] = ()
) -> None:
    """Refuse the first field of ``body`` that would be ignored.

    ``neutral``: fields that are not offered → their values that ask for nothing. ``harmless`` fields change no answer.
    Null asks for nothing in any field: clients send unset fields so.
    """
    for name, value in body.items():
        if value is None or name in known or name in harmless:
            continue
        if name not in neutral:
            raise InputRefused(f"unknown field {escaped(name)}", hint=f"known are {', '.join(known)}")
        if not is_among(value, neutral[name]):
            raise InputRefused(f"{name} is not offered here", hint=f"leave {name} out")


def is_among(value: object, choices: Sequence[object]) -> bool:
    """Return whether ``value`` is one of ``choices``; true does not count as 1, nor false as 0."""
    return any(value == choice and isinstance(value, bool) is isinstance(choice, bool) for choice in choices)


def whole_number(body: Body, name: str) -> int | None:
    """Return a field that is a whole number of at least 1, None if it is missing or null."""
    value = body.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InputRefused(f"{name} must be a whole number of at least 1")
    return value


def flag(body: Body, name: str, *, default: bool) -> bool:
    """Return a true/false field, ``default`` if it is missing or null."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InputRefused(f"{name} must be true or false")
    return value


def model_of(body: Body) -> str:
    """Return the field ``model``."""
    model = body.get("model")
    if not isinstance(model, str) or not model.strip("/ "):
        raise InputRefused("the field model must name an endpoint", hint="GET /v1/models lists them")
    return model


def require_task(endpoint: Endpoint, task: str, name: str, wanted: str) -> None:
    """Refuse an endpoint of another task than ``task``; the message calls them ``name`` and ``wanted``."""
    if endpoint.task != task:
        does = f"does {endpoint.task}" if endpoint.task else "has no text task"
        raise InputRefused(f"{name} {does}, not {wanted}", hint="GET /v1/status says which endpoint does what")


def texts_or_ids(value: object, field: str) -> tuple[list[str] | None, list[Sequence[int]] | None]:
    """Return (texts, None) or (None, lists of token ids) from the value of ``field``."""
    if isinstance(value, str):
        return [value], None
    if not isinstance(value, list) or not value:
        raise InputRefused(f"{field} must be a text, a list of texts, or token ids", hint='send a text or ["…", "…"]')
    if all(isinstance(item, str) for item in value):
        return value, None
    if are_ids(value):
        return None, [value]
    if all(isinstance(item, list) and item and are_ids(item) for item in value):
        return None, value
    raise InputRefused(f"{field} must be texts, or lists of token ids, not both", hint='send a text or ["…", "…"]')


def are_ids(items: Sequence[object]) -> bool:
    """Return whether all items are whole numbers."""
    return all(isinstance(item, int) and not isinstance(item, bool) for item in items)


def rows_of(endpoint: Endpoint, ids: Sequence[Sequence[int]], parameters: Body | None = None) -> Prepared:
    """Return texts that are given as token ids, which bypass the tokenizer. ``parameters`` are as in a body."""
    if endpoint.text is None:
        raise InputRefused("this endpoint does not take token ids", hint="send text")
    return endpoint.text.processor.prepare_ids(ids, parameters)
