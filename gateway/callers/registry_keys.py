"""Keys whose hashes are stored beside the serving Task, so that one command reaches every gateway.

A key is one record, and its revocation another that is never changed: writing an old copy of the key back does not undo
the revocation. Stock tools write neither (``registry/ledger``).

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gateway import durable
from gateway.callers.keys import BadKeys, Key, Keys, key_of, read_file, read_pepper, usable
from gateway.errors import GatewayError
from gateway.registry.ledger import Ledger, Record

_log = logging.getLogger("triton_gateway.callers")

KEY: Final = "caller_key"
END: Final = "caller_key_end"
"""Kinds of records."""


def keys_in(records: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Key]:
    """Return the recorded keys, with their revocations. Raises ``BadKeys``."""
    ends = records.get(END, {})
    found = []
    for name, item in records.get(KEY, {}).items():
        key = key_of({**item, "id": name})
        if name in ends:
            key = replace(key, revoked=str(ends[name].get("at") or "1970-01-01"))
        found.append(key)
    return sorted(found, key=lambda key: (key.created, key.id))


def records_of(before: Iterable[Key], after: Iterable[Key], by: str = "") -> list[Record]:
    """Return the records that turn the keys ``before`` into those ``after``; ``by``: the author of the change."""
    author, ender = ({"changed_by": by}, {"by": by}) if by else ({}, {})
    known = {key.id: key for key in before}
    found = []
    for key in after:
        old = known.get(key.id)
        if old is None or replace(old, revoked="") != replace(key, revoked=""):
            found.append(Record(KEY, key.id, {**replace(key, revoked="").to_json(), **author}))
        if key.revoked and (old is None or not old.revoked):
            found.append(Record(END, key.id, {"at": key.revoked, **ender}))
    return found


class RegistryKeys:
    """A source of callers (``following.Source``): the recorded keys, read every ``period`` seconds.

    ``last_good``: the file with the last good state, for a start while the registry is away. It holds hashes only.
    """

    def __init__(self, ledger: Ledger, pepper: str, *, period: float, last_good: Path) -> None:
        self._ledger = ledger
        self._pepper = Path(pepper)
        self._last_good = last_good
        self._seen: object = None
        self.period = period
        self.at_first = Keys()

    def look(self) -> Keys | None:
        """See ``Source.look``."""
        try:
            pepper = read_pepper(self._pepper.read_bytes())
            seen = (self._ledger.marker(), pepper)
            if seen == self._seen:
                return None
            keys = keys_in(self._ledger.read())
            found = usable({}, keys, pepper)
        except OSError as error:
            raise BadKeys(f"{self._pepper} cannot be read: {error.strerror}") from error
        except BadKeys as error:
            raise BadKeys(f"a recorded key cannot be used: {error}") from error
        except GatewayError as error:
            if self._seen is None:
                self._seen = ()
                known = self._read_last_good()
                if known is not None:
                    return known
            raise BadKeys(f"the recorded keys cannot be read: {error.message}") from error
        self._save(keys)
        self._seen = seen
        return found

    def _save(self, keys: Iterable[Key]) -> None:
        try:
            durable.replace(self._last_good, json.dumps({"keys": [key.to_json() for key in keys]}))
        except OSError as error:
            _log.warning("the recorded keys cannot be saved for the next start: %s", error)

    def _read_last_good(self) -> Keys | None:
        try:
            found = usable(*read_file(self._last_good.read_bytes()), read_pepper(self._pepper.read_bytes()))
        except (OSError, BadKeys):
            return None
        _log.warning("the registry cannot be reached: the keys of the last successful read are used")
        return found
