"""The history of a key file, in a file beside it: one JSON object per line, the oldest first.

The command that changes the key file writes it, while it holds the key file's lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deploy.controller.history import changes
from deploy.controller.history.changes import Entry, Known, Thing
from deploy.controller.history.recorder import BLOCK, KEPT, History
from deploy.tools.folders import replace_file


def beside(path: Path) -> Path:
    """Return the path of the history of a key file."""
    return path.with_name(f"{path.name}.history")


def add(
    path: Path, before: Mapping[str, Any], after: Mapping[str, Any], *, by: str, clock: Callable[[], float] = time.time
) -> None:
    """Record how the contents of a key file differ. Raises ``OSError``."""
    known = {thing: Known(*thing, says) for thing, says in _says(before).items()}
    facts = {thing: changes.Fact(says, by) for thing, says in _says(after).items()}
    found = [
        Entry(one.kind, one.subject, one.before, one.after, one.at, by, "", is_seen=False, place=one.place)
        for one in changes.changed(known, facts, {}, now=clock())
    ]  # fmt: skip
    if not found:
        return
    entries, place = [*read(path).entries, *found], beside(path)
    if len(entries) >= KEPT + BLOCK:
        lines = [{"dropped_until": entries[BLOCK - 1].at}, *map(changes.to_json, entries[BLOCK:])]
        replace_file(place, "".join(json.dumps(line) + "\n" for line in lines))
        return
    descriptor = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(changes.to_json(entry)) + "\n" for entry in found)


def read(path: Path) -> History:
    """Return the history of a key file; unreadable lines are skipped. Raises ``OSError``."""
    place = beside(path)
    entries, until = [], 0.0
    for line in place.read_text(encoding="utf-8", errors="replace").splitlines() if place.exists() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            stored = json.loads(line)
            if "dropped_until" in stored:
                until = float(stored["dropped_until"])
            else:
                entries.append(changes.from_json(stored))
    return History(tuple(entries), 0.0, until)


def _says(content: Mapping[str, Any]) -> dict[Thing, str]:
    return {thing: fact.says for thing, fact in changes.facts_of_key_file(content).items()}
