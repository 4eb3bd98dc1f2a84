"""Keys: their form, what is stored of them, and where: in a file, or in records beside the serving Task, so that one
command reaches every gateway.

A key is ``tgk_ID_SECRET``: a prefix that scanners for leaked secrets know, an id that may be shown, and 160 random
bits. Only ``HMAC-SHA256(pepper, key)`` is stored, and the pepper is stored elsewhere. The key file alone therefore lets
nobody send requests or test guesses.

The file is a JSON object::

    {"keys": [{"id": "…", "hash": "…", "tenant": "acme", "class": "default", "endpoints": ["*"],
               "operations": ["infer", "metadata"], "expires": "2027-01-31T00:00:00Z", "revoked": "…"}],
     "pepper": "…"}

``pepper`` names the pepper that the hashes were made with. A revoked key stays in the list, with the time. In the
registry a key is one record, also when it is revoked; the later change counts. No stock tool writes it.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
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
_PEPPER_BYTES: Final = 32
_MIN_PEPPER: Final = 16
_MAX_KEY: Final = 200


class BadKeys(ValueError):
    """The key file or its pepper cannot be used; the message says why and contains no secret."""


def new_key() -> tuple[str, str]:
    """Return a new key and its id."""
    name = _letters(secrets.token_bytes(_ID_BYTES))
    return f"{PREFIX}{name}_{_letters(secrets.token_bytes(_SECRET_BYTES))}", name


def new_pepper() -> str:
    """Return a new pepper in the form of its file."""
    return f"{base64.b64encode(secrets.token_bytes(_PEPPER_BYTES)).decode()}\n"


def read_pepper(raw: bytes) -> bytes:
    """Return the pepper in a file's content. Raises ``BadKeys``."""
    pepper = raw.strip()
    if len(pepper) < _MIN_PEPPER:
        raise BadKeys(f"the pepper has {len(pepper)} bytes and could be guessed: at least {_MIN_PEPPER} are needed")
    return pepper


def name_of(pepper: bytes) -> str:
    """Return a name for a pepper that reveals nothing about it."""
    return hmac.digest(pepper, b"the name of this pepper", hashlib.sha256).hex()[:12]


def digest(pepper: bytes, key: bytes) -> bytes:
    """Return the hash of a key that is stored."""
    return hmac.digest(pepper, key, "sha256")


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
    pepper: str = ""
    """Name of the pepper it was hashed with; empty if that is said for a whole file, or unknown."""

    def to_json(self) -> dict[str, Any]:
        """Return the key in the form of the file."""
        found = {"id": self.id, "hash": self.hash, "tenant": self.tenant, "class": self.priority,
                 "endpoints": list(self.endpoints), "operations": list(self.operations)}  # fmt: skip
        rest = ("expires", "revoked", "created", "by", "note", "pepper")
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
    pepper: str = ""
    """Name of the pepper of all keys; empty if each says its own."""


_STORED: Final = TypeAdapter(Stored)


@dataclass(frozen=True, slots=True)
class Keys(Known):
    """Callers by the hashes of their keys, made with one pepper."""

    pepper: bytes = b""
    callers: Mapping[bytes, Caller] = field(default_factory=dict)
    revoked: frozenset[bytes] = frozenset()
    strange: int = 0
    """Keys that were hashed with another pepper, so that nobody is known by them here."""

    def summary(self) -> str:
        """See ``Known.summary``."""
        parts = [f"{len(self.callers)} keys", f"{len(self.revoked)} of them revoked"]
        if self.certificates:
            parts.append(f"{len(self.certificates)} names of certificates")
        if self.strange:
            parts.append(f"{self.strange} of another pepper, which are of no use here")
        return ", ".join(parts)

    def find(self, shown: bytes, now: float) -> Caller | None:
        """See ``Known.find``."""
        if not is_key(shown):
            return None
        # The lookup is by a hash that needs the pepper, so its duration reveals nothing about a key.
        found = digest(self.pepper, shown)
        caller = self.callers.get(found)
        if caller is None:
            return None
        if found in self.revoked:
            raise NotAuthenticated("this key was revoked", because="revoked", hint="ask for a new one")
        if caller.expires <= now:
            raise NotAuthenticated("this key has expired", because="expired", hint="ask for a new one")
        return caller


class KeyFile:
    """A source of callers (``following.Source``): a key file and its pepper.

    A file may be replaced by a rename, by the swap of a symlink above it (a mounted Secret), or be written in place and
    be read half-written. A file that cannot be used is reported, and read again until it can.

    ``pepper``: the pepper's file; empty: ``NAME.pepper`` beside the keys.
    """

    def __init__(self, path: str, pepper: str = "") -> None:
        self.path = Path(path)
        self.pepper = Path(pepper or default_pepper(path))
        self._seen: object = None
        self.period = FILE_S

    def look(self) -> Keys | None:
        """See ``Source.look``."""
        seen = pepper, content = _pepper_in(self.pepper), _content_of(self.path)
        if seen == self._seen:
            return None
        try:
            found = usable(read_file(content)[1], pepper)
        except BadKeys as error:
            raise BadKeys(f"{self.path} cannot be used: {error}") from error
        self._seen = seen
        return found


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
        pepper, task = _pepper_in(self._pepper), self._task
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


def default_pepper(path: str | Path) -> str:
    """Return the default pepper file of a key file."""
    return f"{path}.pepper"


def _content_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        made = "; `triton-gateway keys create` makes it" if isinstance(error, FileNotFoundError) else ""
        raise BadKeys(f"{path} cannot be read: {error.strerror}{made}") from error


def _pepper_in(path: Path) -> bytes:
    content = _content_of(path)
    try:
        return read_pepper(content)
    except BadKeys as error:
        raise BadKeys(f"{path} cannot be used: {error}") from error


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


def usable(stored: Stored, pepper: bytes) -> Keys:
    """Return the keys for lookups. Raises ``BadKeys`` if they were made with another pepper."""
    named = stored.pepper
    if stored.keys and named and named != name_of(pepper):
        raise BadKeys(f"its keys were made with the pepper {named}, and the pepper here is {name_of(pepper)}")
    usual = [key for key in stored.keys if key.pepper in ("", name_of(pepper))]
    return Keys(
        pepper,
        {bytes.fromhex(key.hash): key.caller() for key in usual},
        frozenset(bytes.fromhex(key.hash) for key in usual if key.revoked),
        len(stored.keys) - len(usual),
        certificates=tuple((one.name, one.caller()) for one in stored.certificates),
        ended=frozenset(stored.ended),
        quotas=stored.quotas,
    )


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
