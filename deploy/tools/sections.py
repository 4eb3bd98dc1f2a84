"""Renders one configuration section of a serving Task as text that gateways and the SDK read (``gateway.hocon``). Pure.

Called by rollouts, auto-update and `apply`.
"""

import json
from collections.abc import Mapping
from typing import Any

from gateway import hocon


def render(section: Mapping[str, Any]) -> str:
    """Return `section` as JSON, which is HOCON too, in a form that parses back to the same values.

    Raises:
        Unreadable: a key or value has no form that the SDK reads back unchanged (e.g. a key with a double quote).
        TypeError: a value is none of JSON's.
    """
    text = json.dumps(section, indent=2, ensure_ascii=False)
    if hocon.parse(text) != json.loads(text):
        raise hocon.Unreadable("the section has no text form that reads back unchanged")
    return text
