"""Keys: their form, what is stored of them, and the key file.

A key is ``tgk_ID_SECRET``: a prefix that scanners for leaked secrets know, an id that may be shown, and 160 random
bits. Only ``HMAC-SHA256(pepper, key)`` is stored, and the pepper is stored elsewhere. The key file alone therefore lets
nobody send requests or test guesses.

The file is a JSON object::

    {"keys": [{"id": "…", "hash": "…", "tenant": "acme", "class": "default", "endpoints": ["*"],
               "operations": ["infer", "metadata"], "expires": "2027-01-31T00:00:00Z", "revoked": "…"}],
     "pepper": "…"}

``pepper`` names the pepper that the hashes were made with. A revoked key stays in the list, with the time.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gateway.callers.quotas import Limits, limits_of
from gateway.callers.rights import ANYTHING, INFER, METADATA, Caller, checked
from gateway.errors import NotAuthenticated

PREFIX: Final = "tgk_"
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


@dataclass(frozen=True, slots=True)
class Key:
    """One key as it is stored. ``expires``, ``revoked``, ``created``: times in the form of ``written``; empty for never
    or unknown.
    """

    id: str
    hash: str
    tenant: str
    priority: str = "default"
    endpoints: tuple[str, ...] = ANYTHING
    operations: tuple[str, ...] = (INFER, METADATA)
    expires: str = ""
    revoked: str = ""
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
class Keys:
    """Callers by the hashes of their keys, made with one pepper; see ``access.Known``."""

    pepper: bytes = b""
    callers: Mapping[bytes, Caller] = field(default_factory=dict)
    revoked: frozenset[bytes] = frozenset()
    certificates: tuple[tuple[str, Caller], ...] = ()
    """Patterns of names in clients' certificates, each with its caller; the first that matches counts."""
    ended: frozenset[str] = frozenset()
    """Revoked names (subjects, token ids), whatever source knows them."""

    quotas: Mapping[str, Limits] = field(default_factory=dict)
    """Limits by tenant."""
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
    """A key file and its pepper, read again when they change; see ``following.Source``.

    A file may be replaced by a rename, by the swap of a symlink above it (a mounted Secret), or be written in place and
    be read half-written. A file that cannot be used is reported, and read again until it can.

    ``pepper``: the pepper's file; empty: ``NAME.pepper`` beside the keys.
    """

    def __init__(self, path: str, pepper: str = "") -> None:
        self.path = Path(path)
        self.pepper = Path(pepper or default_pepper(path))
        self._seen: object = None
        self.period = FILE_S
        self.at_first = Keys()

    def look(self) -> Keys | None:
        """See ``Source.look``."""
        try:
            now = (_mark(self.path), _mark(self.pepper))
            if now == self._seen:
                return None
            pepper, content = self.pepper.read_bytes(), self.path.read_bytes()
        except OSError as error:
            made = "; `triton-gateway keys create` makes it" if isinstance(error, FileNotFoundError) else ""
            raise BadKeys(f"{error.filename or self.path} cannot be read: {error.strerror}{made}") from error
        try:
            found = usable(*read_file(content), read_pepper(pepper))
        except BadKeys as error:
            raise BadKeys(f"{self.path} cannot be used: {error}") from error
        self._seen = now
        return found


def default_pepper(path: str | Path) -> str:
    """Return the default pepper file of a key file."""
    return f"{path}.pepper"


def _mark(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def key_of(item: object) -> Key:
    """Return the key in an entry of the file. Raises ``BadKeys``."""
    if not isinstance(item, dict):
        raise BadKeys("an entry is not an object")
    name = str(item.get("id", ""))
    try:
        if not name:
            raise ValueError("it has no id")
        if len(bytes.fromhex(str(item.get("hash", "")))) != hashlib.sha256().digest_size:
            raise ValueError("its hash is not 64 hexadecimal digits")
        tenant, priority, endpoints, operations = _rights(item)
        for field_name in ("expires", "revoked"):
            if item.get(field_name):
                seconds(str(item[field_name]))
    except (ValueError, TypeError) as error:
        raise BadKeys(f"key {ascii(name)[1:-1][:40] or '?'}: {error}") from None
    return Key(
        name, str(item["hash"]), tenant, priority, endpoints, operations, str(item.get("expires") or ""),
        str(item.get("revoked") or ""), str(item.get("created", "")), str(item.get("by", "")),
        str(item.get("note", "")), str(item.get("pepper", "")),
    )  # fmt: skip


def read_file(raw: bytes) -> tuple[dict[str, Any], list[Key]]:
    """Return the file's object and the keys in it. Raises ``BadKeys``; an empty or half-written file is one."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        raise BadKeys("it is not JSON: empty, half-written or something else") from None
    if not isinstance(content, dict) or not isinstance(content.get("keys", []), list):
        raise BadKeys('it is not an object with a list of "keys"')
    keys = [key_of(item) for item in content.get("keys", [])]
    names = [key.id for key in keys]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadKeys(f"two keys have the id {twice}")
    return content, keys


def usable(content: Mapping[str, Any], keys: Sequence[Key], pepper: bytes) -> Keys:
    """Return the keys for lookups. Raises ``BadKeys`` if they were made with another pepper."""
    named = content.get("pepper")
    if keys and named and named != name_of(pepper):
        raise BadKeys(f"its keys were made with the pepper {named}, and the pepper here is {name_of(pepper)}")
    usual = [key for key in keys if key.pepper in ("", name_of(pepper))]
    return Keys(
        pepper,
        {bytes.fromhex(key.hash): key.caller() for key in usual},
        frozenset(bytes.fromhex(key.hash) for key in usual if key.revoked),
        tuple(certificate_of(item) for item in _list(content, "certificates")),
        frozenset(str(name) for name in _list(content, "ended")),
        quotas_of(content),
        len(keys) - len(usual),
    )


def certificate_of(item: object) -> tuple[str, Caller]:
    """Return the pattern of names and the caller in an entry of ``certificates``. Raises ``BadKeys``."""
    if not isinstance(item, dict) or not isinstance(item.get("name"), str) or not item["name"]:
        raise BadKeys("an entry of certificates has no name")
    try:
        tenant, priority, endpoints, operations = _rights(item)
    except (ValueError, TypeError) as error:
        raise BadKeys(f"certificate {ascii(item['name'])[1:-1][:60]}: {error}") from None
    return item["name"], Caller(item["name"], tenant, endpoints, frozenset(operations), priority)


def quotas_of(content: Mapping[str, Any]) -> dict[str, Limits]:
    """Return the limits of tenants in the file's object. Raises ``BadKeys``."""
    found = content.get("quotas", {})
    if not isinstance(found, dict):
        raise BadKeys('"quotas" is not an object')
    limits = {}
    for tenant, item in found.items():
        try:
            limits[tenant] = limits_of(item)
        except ValueError as error:
            raise BadKeys(f"the quota of {ascii(tenant)[1:-1][:60]}: {error}") from None
    return limits


def _rights(item: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...], tuple[str, ...]]:
    """Return tenant, class, endpoints and operations. Raises ``ValueError``."""
    tenant = item.get("tenant")
    if not isinstance(tenant, str) or not 0 < len(tenant) <= 100 or not tenant.isprintable():
        raise ValueError("it has no tenant")
    endpoints, operations = _texts(item, "endpoints", ANYTHING), _texts(item, "operations", (INFER, METADATA))
    priority = str(item.get("class", "default"))
    checked(operations, endpoints, priority)
    return tenant, priority, endpoints, operations


def _list(content: Mapping[str, Any], name: str) -> list[Any]:
    found = content.get(name, [])
    if not isinstance(found, list):
        raise BadKeys(f'"{name}" is not a list')
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


def _texts(item: Mapping[str, Any], name: str, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    found = item.get(name)
    if found is None:
        return otherwise
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError(f"{name} is not a list of texts")
    return tuple(found)


def _letters(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=").lower()
