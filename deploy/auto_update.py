"""Auto-update, the part that acts: asks the registry what the rules select and writes the versions to the serving Task.

Runs inside model sync, beside each Triton. Any number of writers may do so at once: they assign numbers by the same
rule to the same models, every write is followed by a look at what became of it, and whoever lost a race takes over what
the Task says. Must never make model sync wait or fail: a rule that cannot be asked keeps what it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from deploy import monitoring
from deploy.registry import TaskStore, section_text
from gateway.errors import GatewayError
from gateway.spec import decode

log = logging.getLogger("triton_gateway.sync")


class AutoUpdate:
    """Called after every look at the serving Task; asks the registry every ``every_s`` seconds, or when rules change.

    ``clock`` counts seconds. One thread at a time.
    """

    def __init__(self, store: TaskStore, *, clock: Callable[[], float], every_s: float = 5.0) -> None:
        self._store = store
        self._clock = clock
        self._every_s = every_s
        self._due = 0.0
        self._rules = ""
        self._said: tuple[str, ...] = ()

    def __call__(self, task: Mapping[str, Any]) -> bool:
        """Bring the versions up to date; True when the Task was changed and has to be read again."""
        rules = section_text(task, monitoring.RULES)
        if len(rules.strip()) <= 2 and len(section_text(task, monitoring.SERVED).strip()) <= 2:
            return False  # no rule, nothing left of one
        now = self._clock()
        if rules == self._rules and now < self._due:
            return False
        notes: list[str] = []
        found = {}
        for endpoint, rule in decode(task).monitoring.items():
            try:
                found[endpoint] = self._store.models(monitoring.query_of(rule))
            except GatewayError as error:
                notes.append(f"auto-update of {endpoint}: {error}")
        update = monitoring.update(task, found)
        if update.sections:
            try:
                self._store.write(update.sections)
            except GatewayError as error:
                notes.append(f"auto-update could not write its versions: {error}")
            else:
                log.info("auto-update: versions are %s", _shown(update.sections))
                return True  # the next look checks what became of it
        self._say((*notes, *update.notes))
        self._rules, self._due = rules, now + self._every_s
        return False

    def _say(self, notes: tuple[str, ...]) -> None:
        for note in notes:
            if note not in self._said:
                log.warning("%s", note)
        self._said = notes


def _shown(changed: Mapping[str, str]) -> str:
    text = changed.get(monitoring.SERVED)
    if text is None:
        return "as before"
    auto = decode({"configuration": {monitoring.SERVED: {"value": text}}}).endpoints
    return ", ".join(f"{url}={endpoint.model_id}" for url, endpoint in sorted(auto.items())) or "none"
