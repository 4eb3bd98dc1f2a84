"""Which version of an endpoint a bare name means, as our own records say it. Pure.

``/serve/faq`` of an endpoint that has versions only means the recorded default: the first version that was added, until
somebody chooses another. It is read with the serving Task, so every gateway, worker and model sync says the same,
whatever it has loaded; ``spec.decode`` asks this file, ``deploy/rollout/defaults`` what to write.

Several model syncs may record the first version at once and nothing can be compared and set. So what they write is only
ever added: a *first* names a version, and of several the earliest counts, then the smaller url. What a person *chose*
is one record for each endpoint, the last one counts, and goes before every first. An endpoint whose versions are all
gone ends its *term*: nothing of before counts in the next one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

KIND: Final = "default_version"


@dataclass(frozen=True, slots=True)
class Default:
    """What a bare name means: ``url``, empty for nothing yet. ``by``, ``why``: of a choice. ``at``: Unix seconds."""

    url: str = ""
    term: int = 0
    at: float = 0.0
    by: str = ""
    why: str = ""


def read(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Default]:
    """Return what the records of this kind say, by endpoint; what cannot be read says nothing."""
    found: dict[str, Default] = {}
    firsts: dict[str, list[Default]] = {}
    for value in records.values():
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            endpoint, is_chosen = str(value["endpoint"]), value["record"] == "chosen"
            one = Default(
                str(value["url"]), int(value["term"]), float(value["at"]), str(value.get("by", "")),
                str(value.get("why", "")),
            )  # fmt: skip
            if is_chosen:
                found[endpoint] = one
            else:
                firsts.setdefault(endpoint, []).append(one)
    for endpoint, claims in firsts.items():
        last = found.get(endpoint, Default())
        now = [one for one in claims if one.term == last.term]
        if now and not last.url:
            found[endpoint] = min(now, key=lambda one: (one.at, one.url))
    return found


def first(endpoint: str, url: str, term: int, at: float) -> tuple[str, dict[str, Any]]:
    """Return key and value of the record that ``url`` was the first version added; never changed."""
    return f"first {endpoint} {term} {url}", _value("first", endpoint, url, term, at)


def chosen(endpoint: str, url: str, term: int, at: float, by: str, why: str) -> tuple[str, dict[str, Any]]:
    """Return key and value of the record that somebody chose ``url``; an empty one ends the term before ``term``."""
    return f"chosen {endpoint}", {**_value("chosen", endpoint, url, term, at), "by": by, "why": why}


def _value(record: Literal["first", "chosen"], endpoint: str, url: str, term: int, at: float) -> dict[str, Any]:
    return {"record": record, "endpoint": endpoint, "url": url, "term": term, "at": round(at, 3)}
