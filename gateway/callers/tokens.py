"""Signed tokens (JWT, OpenID Connect): the caller that a token names, and the current keys of its issuer.

The only file that imports PyJWT. A token is verified once and then remembered by ``access.Access`` until it ends, is
revoked, or the issuer's keys change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt

from gateway.callers.access import Known
from gateway.callers.keys import FILE_S, BadKeys
from gateway.callers.rights import ANYTHING, CLASSES, INFER, METADATA, OPERATIONS, Caller
from gateway.errors import NotAuthenticated

ALGORITHMS: Final = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Only signatures with a private key: with a shared secret, everything that verifies can also sign. Each of
an issuer's keys has one of them, and no other is accepted with it.
"""
CLAIMS: Final = ("tenant", "class", "endpoints", "operations")
"""Parts of a caller that can come from a claim."""
SOURCE: Final = "jwt"

_REFRESH_S: Final = 30.0
_TIMEOUT_S: Final = 5.0
_LEEWAY_S: Final = 30.0
_MAX_TOKEN: Final = 16 << 10


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer whose tokens are accepted. ``claims``: names of ``CLAIMS`` to claims; ``a.b`` is a claim in another."""

    issuer: str
    audience: tuple[str, ...]
    keys: str
    """Address or file of its keys (a JWKS)."""
    claims: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Tokens(Known):
    """An issuer with its keys."""

    issuer: Issuer
    keys: Mapping[str, jwt.PyJWK]
    """By their ids; those without one under the empty id."""

    def summary(self) -> str:
        """See ``Known.summary``."""
        return f"{len(self.keys)} keys of {self.issuer.issuer}"

    def find(self, shown: bytes, now: float) -> Caller | None:
        """See ``Known.find``."""
        if shown.count(b".") != 2 or len(shown) > _MAX_TOKEN:
            return None
        issuer = self.issuer
        try:
            head = jwt.get_unverified_header(shown)
        except (jwt.InvalidTokenError, RecursionError):
            return None
        key = self.keys.get(str(head.get("kid", "")))
        if key is None:
            raise NotAuthenticated(
                "this token's signing key is not known", because="unknown_signing_key",
                hint=f"send a token of {issuer.issuer}",
            )  # fmt: skip
        try:
            claims = jwt.decode(
                shown, key, algorithms=ALGORITHMS, issuer=issuer.issuer, audience=list(issuer.audience),
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


class IssuerKeys:
    """The current keys of an issuer; see ``following.Source``. An address is read twice a minute, a file often."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self._is_file = "://" not in issuer.keys
        self._seen = b""
        self.period = FILE_S if self._is_file else _REFRESH_S

    def look(self) -> Tokens | None:
        """See ``Source.look``."""
        issuer = self._issuer
        try:
            if self._is_file:
                raw = Path(issuer.keys).read_bytes()
                if raw == self._seen:
                    return None
                found = jwt.PyJWKSet.from_dict(json.loads(raw))
                self._seen = raw
            else:
                # Its cache stays unused: it would have one request wait for the issuer whenever it ends.
                client = jwt.PyJWKClient(issuer.keys, cache_jwk_set=False, timeout=_TIMEOUT_S)
                found = client.get_jwk_set()
        except Exception as error:
            # Whatever an issuer answers, its last keys stay. PyJWT does not check all that it reads.
            raise BadKeys(f"the keys of {issuer.issuer} cannot be read from {issuer.keys}: {error}") from error
        keys = {
            str(key.key_id or ""): key for key in found
            # Not those with a shared secret: whoever reads them could sign.
            if key.public_key_use in ("sig", None) and key.algorithm_name in ALGORITHMS
        }  # fmt: skip
        if not keys:
            raise BadKeys(f"the issuer {issuer.issuer} has no key for {', '.join(ALGORITHMS)}")
        return Tokens(issuer, keys)


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
