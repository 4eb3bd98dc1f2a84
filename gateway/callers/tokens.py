"""Signed tokens (JWT, OpenID Connect): the caller that a token names, and the current keys of its issuer.

The only file that imports PyJWT. A token is verified once and then remembered by ``access.Access`` until it ends, is
revoked, or the issuer's keys change.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import jwt

from gateway.callers.keys import BadKeys
from gateway.callers.quotas import Limits
from gateway.callers.rights import ANYTHING, CLASSES, INFER, METADATA, OPERATIONS, Caller
from gateway.errors import NotAuthenticated

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Only signatures with a private key: with a shared secret, everything that verifies can also sign."""
CLAIMS: Final = ("tenant", "class", "endpoints", "operations")
"""Parts of a caller that can come from a claim."""
SOURCE: Final = "jwt"

_REFRESH_S: Final = 300.0
_AFTER_FAILURE_S: Final = 10.0
_TIMEOUT_S: Final = 5.0
_MAX_BYTES: Final = 1 << 20
_LEEWAY_S: Final = 30.0
_DISCOVERY: Final = "/.well-known/openid-configuration"
_MAX_TOKEN: Final = 16 << 10


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer whose tokens are accepted. ``claims``: names of ``CLAIMS`` to claims; ``a.b`` is a claim in another."""

    issuer: str
    audience: tuple[str, ...]
    keys: str = ""
    """Address or file of its keys (a JWKS); empty: found through the issuer's discovery document."""
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    claims: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """An issuer with its keys; see ``access.Known``."""

    issuer: Issuer
    keys: Mapping[str, jwt.PyJWK]
    """By their ids; those without one under the empty id."""
    certificates: tuple[tuple[str, Caller], ...] = ()
    ended: frozenset[str] = frozenset()
    quotas: Mapping[str, Limits] = field(default_factory=dict)

    def summary(self) -> str:
        """See ``Known.summary``."""
        return f"{len(self.keys)} keys of {self.issuer.issuer}"

    def ends(self) -> Iterable[float]:
        """See ``Known.ends``: tokens are not known before they are shown."""
        return ()

    def find(self, shown: bytes, now: float) -> Caller | None:
        """See ``Known.find``."""
        if shown.count(b".") != 2 or len(shown) > _MAX_TOKEN:
            return None
        issuer = self.issuer
        try:
            head = jwt.get_unverified_header(shown)
        except (jwt.InvalidTokenError, RecursionError):
            return None
        if "crit" in head:
            raise NotAuthenticated(
                "this token has a critical header (crit), which is not supported", because="bad_token"
            )
        key = self.keys.get(str(head.get("kid", "")))
        if key is None:
            raise NotAuthenticated(
                "this token's signing key is not known" if self.keys else "the issuer's keys could not be read yet",
                because="unknown_signing_key", ask_again=SOURCE, hint=f"send a token of {issuer.issuer}",
            )  # fmt: skip
        try:
            claims = jwt.decode(
                shown, key, algorithms=list(issuer.algorithms), issuer=issuer.issuer, audience=list(issuer.audience),
                leeway=_LEEWAY_S, options={"require": ["exp", "iss", "aud"], "verify_exp": False, "verify_nbf": False,
                                           "verify_iat": False},
            )  # fmt: skip
            ends, begins = int(claims["exp"]) + _LEEWAY_S, int(claims.get("nbf", 0)) - _LEEWAY_S
        except (jwt.InvalidTokenError, ValueError, TypeError, OverflowError, RecursionError) as error:
            said = f": {error}" if isinstance(error, jwt.InvalidTokenError) else ""
            raise NotAuthenticated(f"this token is not valid{said}", because="bad_token") from None
        if ends <= now:
            raise NotAuthenticated("this token has expired", because="expired", hint="ask for a new one")
        if begins > now:
            raise NotAuthenticated("this token is not valid yet (nbf)", because="bad_token")
        return caller_of(claims, issuer.claims or {}, ends)


def caller_of(claims: Mapping[str, Any], names: Mapping[str, str], ends: float) -> Caller:
    """Return the caller named by the claims of a verified token. Raises ``NotAuthenticated`` for unusable claims."""
    subject = str(claims.get("sub") or claims.get("client_id") or "")
    tenant = _at(claims, names["tenant"]) if "tenant" in names else subject
    if not isinstance(tenant, str) or not 0 < len(tenant) <= 100 or not tenant.isprintable():
        where = names.get("tenant", "sub")
        raise NotAuthenticated(
            "this token names no tenant", because="bad_token",
            hint=f"its claim {where} must be a text of 1 to 100 printable characters",
        )  # fmt: skip
    priority = _at(claims, names["class"]) if "class" in names else None
    # A right whose claim is configured and missing is not granted. Without a configured claim, keys' defaults apply.
    endpoints = _several(_at(claims, names["endpoints"])) if "endpoints" in names else ANYTHING
    operations = _several(_at(claims, names["operations"])) if "operations" in names else (INFER, METADATA)
    return Caller(
        subject or tenant, tenant, endpoints, frozenset(operations) & OPERATIONS.keys(),
        priority if priority in CLASSES else "default", ends, (str(claims["jti"]),) if "jti" in claims else (),
    )  # fmt: skip


class JwksSource:
    """The current keys of an issuer; see ``following.Source``.

    ``fetch(url)`` returns the content at an address, or raises ``OSError`` or ``ValueError``. ``clock``: monotonic
    seconds.
    """

    def __init__(
        self, issuer: Issuer, *, fetch: Callable[[str], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._issuer = issuer
        self._fetch = fetch or _fetched
        self._clock = clock
        self._due = 0.0
        self._seen = b""
        self._problem: BadKeys | None = None

    def at_first(self) -> Tokens:
        """See ``Source.at_first``: a token asks for the keys of an issuer that was away when the gateway started."""
        return Tokens(self._issuer, {})

    def hurry(self) -> None:
        """See ``Source.hurry``."""
        self._due = 0.0

    def look(self) -> Tokens | None:
        """See ``Source.look``: an address is fetched every five minutes, a file is read each time."""
        place = self._issuer.keys
        is_address = not place or "://" in place
        now = self._clock()
        if is_address and now < self._due:
            if self._problem is not None:
                raise self._problem
            return None
        self._due = now + _AFTER_FAILURE_S
        try:
            raw = self._asked() if is_address else Path(place).read_bytes()
            found = None if raw == self._seen else Tokens(self._issuer, read_keys(raw, self._issuer.algorithms))
        except (OSError, ValueError) as error:
            where = place or self._issuer.issuer
            self._problem = BadKeys(f"the keys of {self._issuer.issuer} cannot be read from {where}: {error}")
            raise self._problem from error
        self._due, self._problem, self._seen = now + _REFRESH_S, None, raw
        return found

    def _asked(self) -> bytes:
        address = self._issuer.keys
        if not address:
            issuer = self._issuer.issuer
            found = json.loads(self._fetch(issuer.rstrip("/") + _DISCOVERY))
            address = str(found["jwks_uri"]) if isinstance(found, dict) and "jwks_uri" in found else ""
            if not address:
                raise ValueError(f"{_DISCOVERY} names no jwks_uri")
            if found.get("issuer", issuer) != issuer:
                raise ValueError(f"{_DISCOVERY} names another issuer")
            _check_step(issuer, address)
        return self._fetch(address)


def read_keys(raw: bytes, algorithms: Iterable[str]) -> dict[str, jwt.PyJWK]:
    """Return the signing keys in a JWKS that one of ``algorithms`` can use. Raises ``BadKeys``."""
    try:
        content = json.loads(raw)
        items = content["keys"]
        if not isinstance(items, list):
            raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadKeys("the issuer's keys are not a JWKS: empty, half-written or something else") from None
    found = {}
    allowed = set(algorithms)
    for item in items:
        if not isinstance(item, dict) or item.get("use", "sig") != "sig" or item.get("kty") == "oct":
            continue
        try:
            key = jwt.PyJWK(item)
        except (jwt.PyJWKError, jwt.InvalidKeyError, ValueError, TypeError, KeyError):
            continue  # of an unsupported kind
        if item.get("alg") is None or item["alg"] in allowed:
            found[str(item.get("kid", ""))] = key
    if not found:
        raise BadKeys(f"the issuer has no key for {', '.join(sorted(allowed))}")
    return found


def _at(claims: Mapping[str, Any], name: str) -> Any:
    if name in claims:  # names of claims are often URLs, with dots
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _several(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def _check_step(before: str, after: str) -> None:
    """Raise ``ValueError`` if an https address leads to http: an attacker on the way could give keys."""
    if urlsplit(before).scheme == "https" and urlsplit(after).scheme != "https":
        raise ValueError("it leads to an address without TLS")


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """See ``HTTPRedirectHandler``. Raises ``ValueError``."""
        _check_step(req.full_url, newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetched(url: str) -> bytes:
    if urlsplit(url).scheme not in ("https", "http"):
        raise ValueError("it is not an http address")
    request = urllib.request.Request(url, headers={"accept": "application/json"})  # noqa: S310 - the scheme was checked
    opener = urllib.request.build_opener(Redirects(), urllib.request.HTTPSHandler(context=ssl.create_default_context()))
    with opener.open(request, timeout=_TIMEOUT_S) as reply:
        raw: bytes = reply.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise ValueError(f"there are more than {_MAX_BYTES} bytes")
    return raw
