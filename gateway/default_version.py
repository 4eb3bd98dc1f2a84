"""The default version of an endpoint, which its bare name means, according to our own records. Pure.

``/serve/faq`` of an endpoint that has only versions means its recorded default: the first version that was added, until
someone chooses another. The default is read with the serving Task, so all gateways, workers and model syncs agree,
whatever they have loaded. ``spec.decode`` reads it here; ``deploy`` asks here what to write.

An endpoint has up to two records: the *first* version, which the controller writes, and what a person or a promoted
rollout has *chosen*, which counts before it. The controller removes both some seconds after the endpoint is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

KIND: Final = "default_version"

Which = Literal["first", "chosen"]


@dataclass(frozen=True, slots=True)
class Default:
    """The default: ``url``; ``by`` and ``why`` of a choice; ``at`` in Unix seconds."""

    url: str
    at: float = 0.0
    by: str = ""
    why: str = ""


def read(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Default]:
    """Return the default of each endpoint from the records of this kind; unreadable records are skipped."""
    found: dict[Which, dict[str, Default]] = {"first": {}, "chosen": {}}
    for value in records.values():
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            found[value["record"]][str(value["endpoint"])] = Default(
                str(value["url"]), float(value["at"]), str(value.get("by", "")), str(value.get("why", ""))
            )
    return found["first"] | found["chosen"]


def record(which: Which, endpoint: str, one: Default) -> tuple[str, dict[str, Any]]:
    """Return key and value of a record of ``endpoint``."""
    value = {"record": which, "endpoint": endpoint, "url": one.url, "at": round(one.at, 3)}
    return key(which, endpoint), {**value, "by": one.by, "why": one.why} if one.by else value


def key(which: Which, endpoint: str) -> str:
    """Return the key of a record of ``endpoint``."""
    return f"{which} {endpoint}"
