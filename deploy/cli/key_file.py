"""Stores of API keys for the command line: a file (written atomically, one writer at a time), or the registry."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from deploy.tools.errors import DeployError
from gateway import durable, locks, registry
from gateway.callers import keys as callers

_DURATION: Final = re.compile(r"([0-9]+)\s*([mhdw])$")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


class KeyStore:
    """What both stores share. Methods raise ``DeployError`` if the keys cannot be used."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __str__(self) -> str:
        return self._place

    def read(self) -> list[callers.Key]:
        """Return the keys, revoked ones too; none if there is no file."""
        raise NotImplementedError

    def editing(self) -> contextlib.AbstractContextManager[list[callers.Key]]:
        """Return a context with the same for changes, which are written if it ends without an error."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except callers.BadKeys as error:
            raise DeployError(f"the keys in {self} cannot be used: {error}") from error
        except OSError as error:
            raise DeployError(f"{error.filename or self}: {error.strerror}") from error


class KeyFileStore(KeyStore):
    """Keys in a file. What else is in it stays (quotas)."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path

    def read(self) -> list[callers.Key]:
        """See ``KeyStore.read``."""
        with self._errors():
            return self._content()[1]

    @contextlib.contextmanager
    def editing(self) -> Iterator[list[callers.Key]]:
        """See ``KeyStore.editing``."""
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locks.held(self.path.with_name(f"{self.path.name}.lock")):
                content, keys = self._content()
                yield keys
                content = {**content, "keys": [key.to_json() for key in keys]}
                callers.stored_in(content)
                _replace(self.path, json.dumps(content, indent=1) + "\n")

    def _content(self) -> tuple[dict[str, Any], list[callers.Key]]:
        if not self.path.exists():
            return {}, []
        content, stored = callers.read_file(self.path.read_bytes())
        return content, list(stored.keys)


class RegistryKeyStore(KeyStore):
    """Keys beside the serving Task. The history names who changed them: ``by``."""

    def __init__(self, store: registry.RegistryWriter, *, by: str = "") -> None:
        super().__init__("the registry")
        self._registry = store
        self._by = by

    def read(self) -> list[callers.Key]:
        """See ``KeyStore.read``."""
        with self._errors():
            return callers.keys_in(self._registry.ledger.read())

    @contextlib.contextmanager
    def editing(self) -> Iterator[list[callers.Key]]:
        """See ``KeyStore.editing``."""
        keys = self.read()
        before = list(keys)
        yield keys
        self._registry.ledger.write(callers.records_of(before, keys, self._by))


def new_key(rights: callers.Key) -> tuple[str, callers.Key]:
    """Return a new key with these rights: its text, which is shown once, and its record. Nothing is stored.

    Raises ``DeployError`` if a key cannot have these rights.
    """
    text, name = callers.new_key()
    key = replace(rights, id=name, hash=callers.digest(text.encode()).hex())
    try:
        callers.stored_in({"keys": [key.to_json()]})
    except ValueError as error:
        raise DeployError(f"such a key cannot be created: {str(error).removeprefix(f'keys.{name}.')}") from error
    return text, key


def state_of(key: callers.Key, now: float) -> str:
    """Return ``good``, ``expired`` or ``revoked``: the state of a key at ``now`` (Unix seconds)."""
    if key.revoked:
        return "revoked"
    return "expired" if key.expires and callers.seconds(key.expires) <= now else "good"


def time_of(text: str, now: float) -> str:
    """Return a time given by a person (``90d``, ``2027-01-31T12:00Z``) as it is stored; empty for empty.

    Raises ``DeployError`` if it is none, or in the past.
    """
    if not text:
        return ""
    found = _DURATION.match(text.strip())
    try:
        end = now + int(found[1]) * _SECONDS[found[2]] if found else callers.seconds(text.strip())
        if end > now:
            return callers.written(end)
    except (ValueError, OverflowError):
        pass
    raise DeployError(f"{text!r} is not a time to come", hint="write 90d, 12h, 2027-01-31 or 2027-01-31T12:00Z")


def _replace(path: Path, text: str) -> None:
    """Replace the file at ``path``, and keep its owner and mode: a gateway may read it as another user."""
    path = path.resolve()  # a symbolic link stays a link
    if not path.exists():
        durable.replace(path, text)
    else:
        was = path.stat()
        durable.replace(path, text, mode=was.st_mode & 0o777, owner=(was.st_uid, was.st_gid))
