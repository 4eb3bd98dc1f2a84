"""Keys whose hashes are stored beside the serving Task, so that one command reaches every gateway.

A key is one record, also when it is revoked; the later change counts. No stock tool writes it (``registry/ledger``).

Public: ``deploy`` may import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from gateway.callers.keys import FILE_S, BadKeys, Key, Keys, Stored, read_pepper, stored_in, usable
from gateway.registry.ledger import Record
from gateway.spec import ServingTask

KEY: Final = "caller_key"
"""The kind of record."""


def keys_in(records: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Key]:
    """Return the recorded keys. Raises ``BadKeys``."""
    found = [{**item, "id": name} for name, item in records.get(KEY, {}).items()]
    return sorted(stored_in({"keys": found}).keys, key=lambda key: (key.created, key.id))


def records_of(before: Iterable[Key], after: Iterable[Key], by: str = "") -> list[Record]:
    """Return the records that turn the keys ``before`` into those ``after``; ``by``: the author of the change."""
    author = {"changed_by": by} if by else {}
    known = {key.id: key for key in before}
    return [Record(KEY, key.id, {**key.to_json(), **author}) for key in after if known.get(key.id) != key]


class RegistryKeys:
    """A source of callers (``following.Source``): the keys in the records of the newest serving Task.

    Whoever follows the Task gives it here, also the last good one from disk, so that keys are known while the registry
    is away.
    """

    def __init__(self, pepper: str) -> None:
        self._pepper = Path(pepper)
        self._task: ServingTask | None = None
        self._seen: object = None
        self.period = FILE_S

    def learn(self, task: ServingTask) -> None:
        """Take over the records of a serving Task that was just read."""
        self._task = task

    def look(self) -> Keys | None:
        """See ``Source.look``."""
        task = self._task
        try:
            pepper = read_pepper(self._pepper.read_bytes())
        except (OSError, BadKeys) as error:
            raise BadKeys(f"{self._pepper} cannot be used: {error}") from error
        if task is None:
            return None
        if task.problem:
            raise BadKeys(task.problem)
        seen = (task.records.get(KEY), pepper)
        if seen == self._seen:
            return None
        found = usable(Stored(keys_in(task.records)), pepper)
        self._seen = seen
        return found
