"""The default version of an endpoint, which its bare name means, according to our own records. Pure.

``/serve/faq`` of an endpoint that has only versions means its recorded default: the first version that was added, until
someone chooses another. The default is read with the serving Task, so all gateways, workers and model syncs agree,
whatever they have loaded. ``spec.decode`` reads it here; ``deploy/rollout/default_versions`` asks here what to write.

Several model syncs may record the first version at once, and there is no compare-and-set. So these records are only
ever added: a *first* names a version, and of several the earliest counts (then the smaller url). What a person *chose*
is one record per endpoint; the last one counts, before every first. If all versions of an endpoint are removed, its
*term* ends: earlier records do not count in the next one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

KIND: Final = "default_version"


@dataclass(frozen=True, slots=True)
class Default:
    """The default: ``url``, empty if there is none yet; ``by`` and ``why`` of a choice; ``at`` in Unix seconds."""

    url: str = ""
    term: int = 0
    at: float = 0.0
    by: str = ""
    why: str = ""


def read(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Default]:
    """Return the default of each endpoint from the records of this kind; unreadable records are skipped."""
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
    """Return key and value of the record that ``url`` was the first version; it is never changed."""
    return f"first {endpoint} {term} {url}", _value("first", endpoint, url, term, at)


def chosen(endpoint: str, url: str, term: int, at: float, by: str, why: str) -> tuple[str, dict[str, Any]]:
    """Return key and value of the record that someone chose ``url``; an empty url starts the term ``term``."""
    return f"chosen {endpoint}", {**_value("chosen", endpoint, url, term, at), "by": by, "why": why}


def _value(record: Literal["first", "chosen"], endpoint: str, url: str, term: int, at: float) -> dict[str, Any]:
    return {"record": record, "endpoint": endpoint, "url": url, "term": term, "at": round(at, 3)}
