"""Keys: their form, what is stored of them, and where: in a file, or in records beside the serving Task, so that one
command reaches every gateway.

A key is ``tgk_ID_SECRET``: a prefix that scanners for leaked secrets know, an id that may be shown, and 160 random
bits. Only its SHA-256 is stored. Nobody can compute or guess a key of so many random bits from it.

The file is a JSON object::

    {"keys": [{"id": "…", "hash": "…", "tenant": "acme", "class": "default", "endpoints": ["*"],
               "operations": ["infer", "metadata"], "expires": "2027-01-31T00:00:00Z", "revoked": "…"}]}

A revoked key stays in the list, with the time. In the registry a key is one record, also when it is revoked; the later
change counts. No stock tool writes it.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from gateway.callers.access import Known
from gateway.callers.quotas import Limits
from gateway.callers.rights import ANYTHING, INFER, METADATA, Caller, Operations, Patterns, PriorityClass
from gateway.errors import NotAuthenticated
from gateway.registry.ledger import Record
from gateway.spec import ServingTask

PREFIX: Final = "tgk_"
KEY: Final = "caller_key"
"""The kind of record."""
FILE_S: Final = 1.0
"""Seconds between two looks at a file."""
_ID_BYTES: Final = 5
_SECRET_BYTES: Final = 20
_MAX_KEY: Final = 200


class BadKeys(ValueError):
    """The keys cannot be used; the message says why and contains no secret."""


def new_key() -> tuple[str, str]:
    """Return a new key and its id."""
    name = _letters(secrets.token_bytes(_ID_BYTES))
    return f"{PREFIX}{name}_{_letters(secrets.token_bytes(_SECRET_BYTES))}", name


def digest(key: bytes) -> bytes:
    """Return the hash of a key that is stored."""
    return hashlib.sha256(key).digest()


def is_key(text: bytes) -> bool:
    """Return whether ``text`` has the prefix and the length of a key."""
    return len(text) <= _MAX_KEY and text.startswith(PREFIX.encode())


def _at(text: str) -> str:
    if text:
        seconds(text)
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it must be printable")
    return text


_Tenant = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_printable)]
_Class = Annotated[PriorityClass, Field(alias="class")]
_Time = Annotated[str, AfterValidator(_at)]


@dataclass(frozen=True, slots=True)
class Key:
    """One key as it is stored. ``expires``, ``revoked``, ``created``: times in the form of ``written``; empty for never
    or unknown.
    """

    id: Annotated[str, Field(min_length=1)]
    hash: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]
    tenant: _Tenant
    priority: _Class = "default"
    endpoints: Patterns = ANYTHING
    operations: Operations = (INFER, METADATA)
    expires: _Time = ""
    revoked: _Time = ""
    created: str = ""
    by: str = ""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the key in the form of the file."""
        found = {"id": self.id, "hash": self.hash, "tenant": self.tenant, "class": self.priority,
                 "endpoints": list(self.endpoints), "operations": list(self.operations)}  # fmt: skip
        rest = ("expires", "revoked", "created", "by", "note")
        return found | {name: getattr(self, name) for name in rest if getattr(self, name)}

    def caller(self) -> Caller:
        """Return the caller that has this key."""
        return Caller(
            self.id, self.tenant, self.endpoints, frozenset(self.operations), self.priority,
            seconds(self.expires) if self.expires else math.inf,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Certificate:
    """The rights of callers with a certificate in which a name matches the pattern ``name``."""

    name: Annotated[str, Field(min_length=1)]
    tenant: _Tenant
    priority: _Class = "default"
    endpoints: Patterns = ANYTHING
    operations: Operations = (INFER, METADATA)

    def caller(self) -> Caller:
        """Return the caller with such a certificate."""
        return Caller(self.name, self.tenant, self.endpoints, frozenset(self.operations), self.priority)


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored of callers: a key file, or the records of the registry."""

    keys: Sequence[Key] = ()
    certificates: Sequence[Certificate] = ()
    ended: Sequence[str] = ()
    quotas: Mapping[str, Limits] = field(default_factory=dict)

    def known(self) -> Keys:
        """Return the same for lookups."""
        return Keys(
            {bytes.fromhex(key.hash): key.caller() for key in self.keys},
            frozenset(bytes.fromhex(key.hash) for key in self.keys if key.revoked),
            certificates=tuple((one.name, one.caller()) for one in self.certificates),
            ended=frozenset(self.ended),
            quotas=self.quotas,
        )


_STORED: Final = TypeAdapter(Stored)


@dataclass(frozen=True, slots=True)
class Keys(Known):
    """Callers by the hashes of their keys."""

    callers: Mapping[bytes, Caller] = field(default_factory=dict)
    revoked: frozenset[bytes] = frozenset()

    def summary(self) -> str:
        """See ``Known.summary``."""
        parts = [f"{len(self.callers)} keys", f"{len(self.revoked)} of them revoked"]
        if self.certificates:
            parts.append(f"{len(self.certificates)} names of certificates")
        return ", ".join(parts)

    def find(self, shown: bytes, now: float) -> Caller | None:
        """See ``Known.find``."""
        if not is_key(shown):
            return None
        found = digest(shown)
        caller = self.callers.get(found)
        if caller is None:
            return None
        if found in self.revoked:
            raise NotAuthenticated("this key was revoked", because="revoked", hint="ask for a new one")
        if caller.expires <= now:
            raise NotAuthenticated("this key has expired", because="expired", hint="ask for a new one")
        return caller


class KeyFile:
    """A source of callers (``following.Source``): a key file.

    A file may be replaced by a rename, by the swap of a symlink above it (a mounted Secret), or be written in place and
    be read half-written. A file that cannot be used is reported, and read again until it can.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._seen: bytes | None = None
        self.period = FILE_S

    def look(self) -> Keys | None:
        """See ``Source.look``."""
        try:
            content = self.path.read_bytes()
            if content == self._seen:
                return None
            found = read_file(content)[1].known()
        except OSError as error:
            made = "; `triton-gateway keys create` makes it" if isinstance(error, FileNotFoundError) else ""
            raise BadKeys(f"{self.path} cannot be read: {error.strerror}{made}") from error
        except BadKeys as error:
            raise BadKeys(f"{self.path} cannot be used: {error}") from error
        self._seen = content
        return found


class RegistryKeys:
    """A source of callers (``following.Source``): the keys in the records of the newest serving Task.

    Whoever follows the Task gives it here, also the last good one from disk, so that keys are known while the registry
    is away.
    """

    def __init__(self) -> None:
        self._task: ServingTask | None = None
        self._seen: object = None
        self.period = FILE_S

    def learn(self, task: ServingTask) -> None:
        """Take over the records of a serving Task that was just read."""
        self._task = task

    def look(self) -> Keys | None:
        """See ``Source.look``."""
        task = self._task
        if task is None:
            return None
        if task.problem:
            raise BadKeys(task.problem)
        seen = (task.records.get(KEY),)
        if seen == self._seen:
            return None
        found = Stored(keys_in(task.records)).known()
        self._seen = seen
        return found


def keys_in(records: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Key]:
    """Return the recorded keys. Raises ``BadKeys``."""
    found = [{**item, "id": name} for name, item in records.get(KEY, {}).items()]
    return sorted(stored_in({"keys": found}).keys, key=lambda key: (key.created, key.id))


def records_of(before: Iterable[Key], after: Iterable[Key], by: str = "") -> list[Record]:
    """Return the records that turn the keys ``before`` into those ``after``; ``by``: the author of the change."""
    author = {"changed_by": by} if by else {}
    known = {key.id: key for key in before}
    return [Record(KEY, key.id, {**key.to_json(), **author}) for key in after if known.get(key.id) != key]


def read_file(raw: bytes) -> tuple[dict[str, Any], Stored]:
    """Return the file's object and what it says. Raises ``BadKeys``; an empty or half-written file is one."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        raise BadKeys("it is not JSON: empty, half-written or something else") from None
    if not isinstance(content, dict):
        raise BadKeys('it is not an object with a list of "keys"')
    return content, stored_in(content)


def stored_in(content: Mapping[str, Any]) -> Stored:
    """Return what the file's object says of callers. Raises ``BadKeys``, with the entry, and no hash in it."""
    try:
        found = _STORED.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place, said = [str(part) for part in first["loc"]], first["msg"].removeprefix("Value error, ")
        with contextlib.suppress(LookupError, TypeError, ValueError):
            place[1] = ascii(content[place[0]][int(place[1])]["id"])[1:-1][:40]
        raise BadKeys(f"{'.'.join(place)[:100]}: {said}") from None
    names = [key.id for key in found.keys]
    if len(set(names)) != len(names):
        raise BadKeys(f"two keys have the id {next(name for name in names if names.count(name) > 1)}")
    return found


def seconds(text: str) -> float:
    """Return a written time in Unix seconds. Raises ``ValueError``."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write 2027-01-31 or 2027-01-31T12:00:00Z") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def written(at: float) -> str:
    """Return Unix seconds as a time in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _letters(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=").lower()
