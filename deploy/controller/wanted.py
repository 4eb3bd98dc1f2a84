"""What a duty of the controller wants written, and the one place that writes it.

A duty decides from the serving Task as it was read. Who has written since must not be overwritten: if the Task or its
records are not what they were, nothing is written, and the duty decides anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.registry import Kind, Record, RegistryWriter
from gateway.spec import ServingTask


@dataclass(frozen=True, slots=True)
class Wanted:
    """Records and sections to write, and keys of records to remove."""

    records: Sequence[Record] = ()
    sections: Mapping[str, str] = field(default_factory=dict)
    gone: Mapping[Kind, Collection[str]] = field(default_factory=dict)


Duty = Callable[[ServingTask], Wanted | None]
"""Called with the serving Task (and our records) after every look. Raises ``GatewayError`` if it could not decide."""


def carry_out(store: RegistryWriter, task: ServingTask, duty: Duty) -> bool:
    """Write what ``duty`` wants. Return True if the Task or its records must be read again. Raises ``GatewayError``."""
    wanted = duty(task)
    if wanted is None or not (wanted.records or wanted.sections or any(wanted.gone.values())):
        return False
    again = store.task()
    if (again.sections, again.records) != (task.sections, task.records):
        return True
    if wanted.records or wanted.sections:
        store.write(wanted.sections, wanted.records)
    for kind, keys in wanted.gone.items():
        store.ledger.remove(kind, keys)
    return True
