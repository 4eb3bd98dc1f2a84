"""The components of a loaded tokenizer as described in tokenizer.json, for `words.rules` and `framing`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

Description: TypeAlias = Mapping[str, Any]
"""A component's type and options."""


class NotUnderstood(Exception):
    """The tokenizer has a component for which no rule is known; the message says which."""


def describe(component: Any) -> Description | None:
    """Return the component's description in canonical form; None for no component. Raises NotUnderstood."""
    if component is None:
        return None
    try:
        description = json.loads(component.__getstate__())
    except Exception as error:  # components written in Python have no description
        raise NotUnderstood(f"{type(component).__name__} has no description") from error
    if not isinstance(description, dict) or "type" not in description:
        raise NotUnderstood(f"{type(component).__name__} has no description")
    return description


def flatten(description: Description | None, member: str) -> list[Description]:
    """Return a component's steps, with nested sequences flattened."""
    if description is None:
        return []
    if description["type"] != "Sequence":
        return [description]
    return [step for part in description[member] for step in flatten(part, member)]
