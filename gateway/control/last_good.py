"""The plan of a served version, as stored on disk for a restart.

If a new version cannot be built, the version before it stays in service. To survive a restart, ``reconcile`` stores
that earlier version with the last-good state and restores it at start-up, until the new version serves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from gateway.control.compile import EndpointPlan
from gateway.spec import ModelRecord


@dataclass(frozen=True, slots=True)
class LastGood:
    """The plan of a served version, and its model's record if it has a model."""

    plan: EndpointPlan
    record: ModelRecord | None
    refused: str = ""
    """Fingerprint of the successor that failed on this version's requests; not tried while no request is known."""
    reason: str = ""


_STORED: Final = TypeAdapter(LastGood)


def decode(stored: Mapping[str, Any]) -> dict[str, LastGood]:
    """Return the saved versions by url; an entry that cannot be read is left out."""
    found = {}
    for url, item in stored.items():
        with contextlib.suppress(ValidationError):
            found[url] = _STORED.validate_python(item)
    return found
