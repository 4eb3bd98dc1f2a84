"""Stores of API keys for the command line: a file (written atomically, one writer at a time), or the registry."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

from deploy.controller.history import key_file as history
from deploy.tools.errors import DeployError
from deploy.tools.folders import held
from gateway import callers, registry

_DURATION: Final = re.compile(r"([0-9]+)\s*(m|h|d|w)$")
_UNITS: Final = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}

Key = callers.Key

_log = logging.getLogger("triton_gateway.callers")


class KeyFileStore:
    """Keys in a file, with the pepper beside it or at ``pepper``. Raises ``DeployError`` if they cannot be used.

    Changes are recorded in a history beside the file. ``by``: who makes them.
    """

    def __init__(self, path: Path, pepper: Path | None = None, *, by: str = "") -> None:
        self.path = path
        self._by = by
        self.pepper_path = pepper or Path(callers.default_pepper(path))

    def __str__(self) -> str:
        return str(self.path)

    def pepper(self) -> bytes:
        """Return the pepper. It is created if there is neither a pepper nor a key."""
        with _errors_of(self):
            if not self.pepper_path.exists():
                if self._content()["keys"]:
                    raise DeployError(
                        f"the pepper of {self.path} is not at {self.pepper_path}",
                        hint="give the path of the pepper with --pepper-file",
                    )
                return first_pepper(self.pepper_path)
            return callers.read_pepper(self.pepper_path.read_bytes())

    def keys(self) -> list[Key]:
        """Return the keys, revoked ones too. Raises ``DeployError`` if there is no file."""
        if not self.path.exists():
            raise DeployError(f"there is no file {self.path}", hint="`triton-gateway keys create` creates it")
        with _errors_of(self):
            return callers.read_file(json.dumps(self._content()).encode())[1]

    @contextlib.contextmanager
    def editing(self) -> Iterator[list[Key]]:
        """Yield the list of keys for changes. It is written if the context ends without an error."""
        with self._editing() as content:
            _, keys = callers.read_file(json.dumps(content).encode())
            yield keys
            content["keys"] = [key.to_json() for key in keys]

    def quotas(self) -> dict[str, Any]:
        """Return the limits of tenants, as the file has them."""
        with _errors_of(self):
            callers.quotas_of(content := self._content())
            return dict(content.get("quotas", {}))

    @contextlib.contextmanager
    def editing_quotas(self) -> Iterator[dict[str, Any]]:
        """Yield the limits of tenants for changes. They are written if the context ends without an error."""
        with self._editing() as content:
            found = content.setdefault("quotas", {})
            yield found
            callers.quotas_of(content)

    @contextlib.contextmanager
    def _editing(self) -> Iterator[dict[str, Any]]:
        with _errors_of(self):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with _errors_of(self), held(self.path.with_name(f"{self.path.name}.lock")):
            content = self._content()
            before = copy.deepcopy(content)
            secret = self.pepper()
            if content["keys"] and content.get("pepper", callers.name_of(secret)) != callers.name_of(secret):
                raise DeployError(
                    f"the keys in {self.path} were made with another pepper than {self.pepper_path}",
                    hint="give the path of their pepper with --pepper-file",
                )
            yield content
            content["pepper"] = callers.name_of(secret)
            _replace(self.path, json.dumps(content, indent=1).encode() + b"\n")
            try:
                history.add(self.path, before, content, by=self._by)
            except OSError as error:
                _log.warning("%s was changed, but the history could not be written: %s", self.path, error.strerror)

    def _content(self) -> dict[str, Any]:
        if not self.path.exists():
            return {"keys": []}
        content, _ = callers.read_file(self.path.read_bytes())
        return {"keys": [], **content}


class RegistryKeyStore:
    """Keys beside the serving Task, with the pepper at ``pepper``. Raises ``DeployError`` if they cannot be used.

    Changes are recorded in the history. ``by``: who makes them.
    """

    def __init__(self, store: registry.RegistryWriter, pepper: Path | None = None, *, by: str = "") -> None:
        self._registry = store
        self.pepper_path = pepper
        self._by = by

    def __str__(self) -> str:
        return "the registry"

    def pepper(self) -> bytes:
        """Return the pepper; the first time there is none, it is made."""
        if self.pepper_path is None:
            raise DeployError("a new key needs the gateways' pepper", hint="name its file with --pepper-file")
        with _errors_of(self):
            if not self.pepper_path.exists():
                if self.keys():
                    raise DeployError(
                        f"the pepper of the registry's keys is not at {self.pepper_path}",
                        hint="copy it from a gateway: TRITON_GATEWAY_PEPPER_FILE is its path there",
                    )
                return first_pepper(self.pepper_path)
            pepper = callers.read_pepper(self.pepper_path.read_bytes())
            others = {key.pepper for key in self.keys() if key.pepper and not key.revoked} - {callers.name_of(pepper)}
            if others:
                raise DeployError(
                    f"the registry's keys were made with another pepper than {self.pepper_path}",
                    hint="gateways accept the keys of one pepper only: use the file of their "
                    "TRITON_GATEWAY_PEPPER_FILE",
                )
            return pepper

    def keys(self) -> list[Key]:
        """Return the keys, revoked ones too."""
        with _errors_of(self):
            return callers.keys_in(self._registry.ledger.read())

    @contextlib.contextmanager
    def editing(self) -> Iterator[list[Key]]:
        """Yield the list of keys for changes. Changed keys are written if the context ends without an error."""
        keys = self.keys()
        before = list(keys)
        yield keys
        self._registry.ledger.write(callers.records_of(before, keys, self._by))


def new_key(
    store: KeyFileStore | RegistryKeyStore, *, tenant: str, priority: str, endpoints: tuple[str, ...],
    operations: tuple[str, ...], expires: str, by: str, note: str, now: float,
) -> tuple[str, Key]:  # fmt: skip
    """Return a new key: its text, which is shown once, and its record. Nothing is stored. ``now``: Unix seconds.

    No ``endpoints``: all endpoints. No ``operations``: inference and reading metadata. Raises ``DeployError`` if a key
    cannot have these rights.
    """
    text, name, kept, pepper = _new_key(store)
    key = callers.Key(
        name, kept, tenant, priority, endpoints or callers.ANYTHING,
        operations or (callers.INFER, callers.METADATA), expires, "", callers.written(now), by, note, pepper,
    )  # fmt: skip
    try:
        callers.key_of(key.to_json())
    except ValueError as error:
        raise DeployError(f"such a key cannot be created: {str(error).partition(': ')[2]}") from error
    return text, key


def successor(
    store: KeyFileStore | RegistryKeyStore, old: Key, end: str, expires: str, *, by: str, now: float
) -> tuple[str, callers.Key, Key]:
    """Return a new key with the rights of ``old`` (its text and its record), and ``old`` with the end ``end``.

    ``expires``: the end of the new key.
    """
    text, name, kept, pepper = _new_key(store)
    new = replace(old, id=name, hash=kept, created=callers.written(now), by=by, expires=expires, pepper=pepper)
    if not old.expires or callers.seconds(end) < callers.seconds(old.expires):
        old = replace(old, expires=end)
    return text, new, old


def revoked(key: Key, now: float) -> Key:
    """Return ``key`` revoked at ``now``; unchanged if it was revoked before."""
    return key if key.revoked else replace(key, revoked=callers.written(now))


def state_of(key: Key, now: float) -> Literal["good", "expired", "revoked"]:
    """Return the state of a key at ``now`` (Unix seconds)."""
    if key.revoked:
        return "revoked"
    return "expired" if key.expires and has_passed(key.expires, now) else "good"


def has_passed(written: str, now: float) -> bool:
    """Return True if a stored time is in the past at ``now``."""
    return callers.seconds(written) <= now


def time_of(text: str, now: float) -> str:
    """Return a time given by a person (``90d``, ``2027-01-31T12:00Z``) as it is stored; empty for empty."""
    if not text:
        return ""
    found = _DURATION.match(text.strip())
    try:
        return callers.written(
            now + int(found[1]) * _UNITS[found[2]].total_seconds() if found else callers.seconds(text.strip())
        )
    except (ValueError, OverflowError) as error:
        raise DeployError(f"{text!r} is not a time", hint="write 90d, 12h, 2027-01-31 or 2027-01-31T12:00Z") from error


def _new_key(store: KeyFileStore | RegistryKeyStore) -> tuple[str, str, str, str]:
    """Return the text of a key, its id, its hash, and for a registry the name of its pepper (otherwise empty)."""
    text, name = callers.new_key()
    pepper = store.pepper()
    return (
        text, name, callers.digest(pepper, text.encode()).hex(),
        callers.name_of(pepper) if isinstance(store, RegistryKeyStore) else "",
    )  # fmt: skip


@contextlib.contextmanager
def _errors_of(store: KeyFileStore | RegistryKeyStore) -> Iterator[None]:
    try:
        yield
    except callers.BadKeys as error:
        raise DeployError(f"the keys in {store} cannot be used: {error}") from error
    except OSError as error:
        raise DeployError(f"{error.filename}: {error.strerror}") from error


def first_pepper(path: Path) -> bytes:
    """Create a pepper at ``path`` unless another process has just done so; return the one that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _written(path, callers.new_pepper()) as new, contextlib.suppress(FileExistsError):
        path.hardlink_to(new)
    return callers.read_pepper(path.read_bytes())


def _replace(path: Path, content: bytes) -> None:
    """Replace the file at ``path``, and keep its owner and mode: a gateway may read it as another user."""
    path = path.resolve()  # a symbolic link stays a link
    with _written(path, content) as new:
        new.replace(path)


@contextlib.contextmanager
def _written(path: Path, content: bytes) -> Iterator[Path]:
    """Yield a temporary file beside ``path`` with ``content``, and the owner and mode of ``path``, or mode 0600."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if path.exists():
                was = path.stat()
                try:
                    os.fchown(file.fileno(), was.st_uid, was.st_gid)
                except PermissionError:
                    raise DeployError(
                        f"{path} belongs to another user, who could not read the new file",
                        hint="run this command as that user",
                    ) from None
                os.fchmod(file.fileno(), was.st_mode & 0o777)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
