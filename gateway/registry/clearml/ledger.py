"""Our records in a companion Task of the serving Task, which no stock tool writes.

``clearml-serving`` reads the whole configuration of the serving Task, waits, and writes all of it back: changes that
others made meanwhile are lost. Records are therefore kept in a child of the serving Task with a system tag of ours.
Only ``tasks.edit_hyper_params`` writes to it; the server applies it key by key. The companion's status stays
``created``: ClearML's watchdog stops only Tasks in progress.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gateway.errors import RegistryRefused
from gateway.registry.clearml.models import Call
from gateway.registry.ledger import Kind, Record, Records

_log = logging.getLogger("triton_gateway.ledger")

SYSTEM_TAG: Final = "triton-gateway-records"
"""Marks the companion Task; its ``parent`` is the serving Task."""

HISTORY_TAG: Final = "triton-gateway-history"
"""Marks another companion, for the history of changes. It is long; gateways never read it."""

REPORTS_TAG: Final = "triton-gateway-reports"
"""Marks another companion: what model syncs report, what the controller judges, and who leads. It wakes nobody."""

_WRITTEN: Final = "Written by triton-gateway for the serving service that is this Task's parent. Keep it."
_MAX_COMPANIONS: Final = 100


class ClearMLLedger:
    """The ledger on a ClearML server, real or embedded.

    If two processes create the companion at the same time, there are two. Both are read and the oldest is written; if
    both have a key, the oldest one's value is used, so all readers agree.
    """

    def __init__(self, call: Call, followed: Callable[[], str], tag: str = SYSTEM_TAG) -> None:
        """``followed`` returns the id of the serving Task."""
        self._call, self._followed = call, followed
        self._tag = tag

    def marker(self) -> str:
        """See ``Ledger.marker``."""
        return " ".join(
            f"{task['id']}/{task.get('last_change')}/{task.get('last_update')}"
            for task in self._companions("last_change", "last_update")
        )

    def read(self) -> Records:
        """See ``Ledger.read``; an entry that someone made unreadable in ClearML is skipped and logged."""
        found: dict[str, dict[str, Mapping[str, Any]]] = {}
        for task in reversed(self._companions("hyperparams")):
            for kind, items in (task.get("hyperparams") or {}).items():
                for name, item in (items or {}).items():
                    try:
                        stored = json.loads(item["value"])
                        key, value = str(stored["key"]), dict(stored["value"])
                    except (ValueError, TypeError, KeyError, RecursionError):
                        _log.warning("record %s/%s of Task %s cannot be read, it is left out", kind, name, task["id"])
                        continue
                    found.setdefault(str(kind), {})[key] = value
        return found

    def write(self, records: Iterable[Record]) -> None:
        """See ``Ledger.write``; the first write creates the companion Task."""
        items = [
            {
                "section": record.kind, "name": _name_of(record.key), "type": "str",
                "value": json.dumps({"key": record.key, "value": dict(record.value)}, sort_keys=True),
            }
            for record in records
        ]  # fmt: skip
        if not items:
            return
        try:
            home = self._home() or self._created()
            body = {"task": home, "hyperparams": items, "replace_hyperparams": "none", "force": True}
            self._call("tasks", "edit_hyper_params", body)
        except RegistryRefused as error:
            raise RegistryRefused(
                f"triton-gateway's records of the serving Task cannot be written: {error.message}",
                hint="give it ClearML credentials that may create and edit Tasks in the serving Task's project",
            ) from error

    def remove(self, kind: Kind, keys: Iterable[str]) -> None:
        """See ``Ledger.remove``."""
        items = [{"section": kind, "name": _name_of(key)} for key in keys]
        for task in self._companions() if items else ():
            body = {"task": task["id"], "hyperparams": items, "force": True}
            self._call("tasks", "delete_hyper_params", body)

    def _companions(self, *fields: str) -> list[dict[str, Any]]:
        """Return the companion Tasks, the oldest first."""
        asked = {
            "parent": self._followed(), "system_tags": [self._tag], "search_hidden": True,
            "only_fields": ["id", "created", *fields],
            "order_by": ["created"], "page": 0, "page_size": _MAX_COMPANIONS,
        }  # fmt: skip
        found = self._call("tasks", "get_all", asked)["tasks"]
        return sorted(found, key=lambda task: (str(task.get("created")), str(task["id"])))

    def _home(self) -> str:
        companions = self._companions()
        return str(companions[0]["id"]) if companions else ""

    def _created(self) -> str:
        serving = self._call("tasks", "get_by_id", {"task": self._followed()})["task"]
        called = self._tag.rpartition("-")[2]  # records, history or reports
        body = {
            "name": f"{serving.get('name') or 'serving'}: {called} of triton-gateway", "type": "custom",
            "parent": self._followed(), "system_tags": [self._tag], "comment": _WRITTEN,
            **({"project": serving["project"]} if serving.get("project") else {}),
        }  # fmt: skip
        made = str(self._call("tasks", "create", body)["id"])
        # Another process may have created one first: all write to the oldest.
        return self._home() or made


def _name_of(key: str) -> str:
    """Return a name that every ClearML server stores unchanged: dots, dollars and double underscores get escaped."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", key).strip("-")[:60]
    return f"{readable}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
