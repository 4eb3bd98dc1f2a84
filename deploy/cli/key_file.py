"""Stores of API keys for the command line: a file (written atomically, one writer at a time), or the registry."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from deploy.tools import folders
from deploy.tools.errors import DeployError
from gateway import durable, locks, registry
from gateway.callers import keys as callers

_DURATION: Final = re.compile(r"([0-9]+)\s*([mhdw])$")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(slots=True)
class Stored:
    """What a store holds. ``peppers``: names of those that the keys were made with; empty if it is not known."""

    keys: list[callers.Key]
    peppers: set[str] = field(default_factory=set)


class KeyStore:
    """What both stores share: the pepper at ``pepper_path``.

    Methods raise ``DeployError`` if the keys cannot be used.
    """

    def __init__(self, place: str, pepper_path: Path | None) -> None:
        self._place = place
        self.pepper_path = pepper_path

    def __str__(self) -> str:
        return self._place

    def read(self) -> Stored:
        """Return the keys, revoked ones too; none if there is no file."""
        raise NotImplementedError

    def editing(self) -> contextlib.AbstractContextManager[Stored]:
        """Return a context with the same for changes, which are written if it ends without an error."""
        raise NotImplementedError

    def pepper(self) -> bytes:
        """Return the pepper. It is created if there is neither a pepper nor a key."""
        if self.pepper_path is None:
            raise DeployError("a new key needs the gateways' pepper", hint="name its file with --pepper-file")
        with self._errors():
            known = self.read().peppers
            if not known and not self.pepper_path.exists():
                folders.create_file(self.pepper_path, callers.new_pepper)  # unless another process has just done so
            pepper = callers.read_pepper(self.pepper_path.read_bytes())
            if known - {"", callers.name_of(pepper)}:
                raise DeployError(
                    f"the keys in {self} were made with another pepper than {self.pepper_path}",
                    hint="gateways accept the keys of one pepper only: give its file with --pepper-file",
                )
            return pepper

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except callers.BadKeys as error:
            raise DeployError(f"the keys in {self} cannot be used: {error}") from error
        except OSError as error:
            raise DeployError(f"{error.filename or self}: {error.strerror}") from error


class KeyFileStore(KeyStore):
    """Keys in a file, with the pepper beside it or at ``pepper``. What else is in the file stays (quotas)."""

    def __init__(self, path: Path, pepper: Path | None = None) -> None:
        super().__init__(str(path), pepper or Path(callers.default_pepper(path)))
        self.path = path

    def read(self) -> Stored:
        """See ``KeyStore.read``."""
        with self._errors():
            content, keys = self._content()
        return Stored(keys, {str(content.get("pepper", ""))} if keys else set())

    @contextlib.contextmanager
    def editing(self) -> Iterator[Stored]:
        """See ``KeyStore.editing``."""
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locks.held(self.path.with_name(f"{self.path.name}.lock")):
                stored, pepper = self.read(), self.pepper()
                yield stored
                content = {
                    **self._content()[0], "keys": [key.to_json() for key in stored.keys],
                    "pepper": callers.name_of(pepper),
                }  # fmt: skip
                callers.stored_in(content)
                _replace(self.path, json.dumps(content, indent=1) + "\n")

    def _content(self) -> tuple[dict[str, Any], list[callers.Key]]:
        if not self.path.exists():
            return {}, []
        content, stored = callers.read_file(self.path.read_bytes())
        return content, list(stored.keys)


class RegistryKeyStore(KeyStore):
    """Keys beside the serving Task, with the pepper at ``pepper``. The history names who changed them: ``by``."""

    def __init__(self, store: registry.RegistryWriter, pepper: Path | None = None, *, by: str = "") -> None:
        super().__init__("the registry", pepper)
        self._registry = store
        self._by = by

    def read(self) -> Stored:
        """See ``KeyStore.read``. A revoked key may have had another pepper."""
        with self._errors():
            keys = callers.keys_in(self._registry.ledger.read())
        return Stored(keys, peppers={key.pepper for key in keys if not key.revoked})

    @contextlib.contextmanager
    def editing(self) -> Iterator[Stored]:
        """See ``KeyStore.editing``."""
        stored = self.read()
        before = list(stored.keys)
        yield stored
        self._registry.ledger.write(callers.records_of(before, stored.keys, self._by))


def new_key(store: KeyStore, rights: callers.Key) -> tuple[str, callers.Key]:
    """Return a new key with these rights: its text, which is shown once, and its record. Nothing is stored.

    Raises ``DeployError`` if a key cannot have these rights.
    """
    text, name = callers.new_key()
    pepper = store.pepper()
    made_with = callers.name_of(pepper) if isinstance(store, RegistryKeyStore) else ""
    key = replace(rights, id=name, hash=callers.digest(pepper, text.encode()).hex(), pepper=made_with)
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
