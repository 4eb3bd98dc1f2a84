"""A loaded tokenizer's components as tokenizer.json describes them: what `word_rules` and `framing` read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

Description: TypeAlias = Mapping[str, Any]
"""A component's type and options."""


class NotUnderstood(Exception):
    """The tokenizer has something for which no rule is known; the message says what."""


def describe(component: Any) -> Description | None:
    """What the component is, in its canonical form; None for none. Raises NotUnderstood."""
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
    """A component's steps, sequences in sequences unfolded."""
    if description is None:
        return []
    if description["type"] != "Sequence":
        return [description]
    return [step for part in description[member] for step in flatten(part, member)]
