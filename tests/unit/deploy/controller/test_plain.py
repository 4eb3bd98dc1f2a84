"""What is stored is read again as it was, over JSON; anything else is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from deploy.controller.plain import plain, read


@dataclass(frozen=True, slots=True)
class Inner:
    """Of both kinds of tuples, and of a mapping whose keys are numbers."""

    pair: tuple[int, str] = (1, "a")
    many: tuple[float, ...] = (0.12345,)
    by: Mapping[float, tuple[int, int]] = field(default_factory=lambda: {0.5: (1, 2)})


@dataclass(frozen=True, slots=True)
class Outer:
    """With others in it."""

    name: str
    phase: Literal["on", "off"] = "on"
    is_new: bool = True
    inner: tuple[Inner, ...] = (Inner(), Inner(many=()))
    last: Inner | None = None
    rest: Any = None


@pytest.mark.parametrize("value", [Outer("a"), Outer("b", "off", False, (), Inner(), {"x": [1, None]})])
def test_a_value_survives_being_stored(value: Outer) -> None:
    """But for the fifth decimal place; a field more is no harm."""
    again = read(Outer, {**json.loads(json.dumps(plain(value))), "more": 1})
    assert plain(value) == plain(again)
    assert (value.name, value.phase, value.is_new, value.rest) == (again.name, again.phase, again.is_new, again.rest)
    assert [{0.5: (1, 2)} for _ in value.inner] == [one.by for one in again.inner]
    assert (0.1235,) == read(Inner, plain(Inner(many=(0.12345678,)))).many


@pytest.mark.parametrize(
    "changed",
    [{"phase": "between"}, {"inner": [3]}, {"inner": 3}, {"inner": [{**plain(Inner()), "pair": [1]}]},
     {"inner": [{**plain(Inner()), "pair": ["x", "a"]}]}, {"last": {**plain(Inner()), "by": []}}],
)  # fmt: skip
def test_what_was_not_stored_by_it_is_refused(changed: Mapping[str, Any]) -> None:
    """Somebody edited the record in ClearML."""
    with pytest.raises(ValueError, match="validation error"):
        read(Outer, {**plain(Outer("a")), **changed})
    with pytest.raises(ValueError, match="name"):
        read(Outer, {})
