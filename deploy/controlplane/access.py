"""Identifies the caller by access keys (Basic) or a token (Bearer), and issues tokens.

`app` and `files` ask it before they do anything else with a request. A token is a JWT, because the clearml SDK reads
its claims (unverified). A refusal never says which part of a key was wrong.
"""

import base64
import hmac
import secrets
import time
from dataclasses import dataclass

import jwt

from deploy.controlplane.credentials import Credentials
from deploy.controlplane.envelope import API_VERSION, ApiError

SERVER_VERSION = "2.3.0"
ALGORITHM = "HS256"
DEFAULT_LIFETIME_S = 30 * 24 * 3600
# The SDK renews a token before each request if less than 60 s remain (3600 s with CLEARML_AUTH_TOKEN): shorter tokens
# would double the number of calls.
MIN_LIFETIME_S = 2 * 3600
MAX_LIFETIME_S = 366 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The caller."""

    user: str
    company: str


class Access:
    """Checks the `Authorization` header and issues tokens."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def identify(self, authorization: str | None) -> Identity:
        """The caller.

        Raises:
            ApiError: 401 with ClearML's subcode: 20 none given, 10 unknown scheme, 21 malformed, 22 wrong keys, 30
            bad token.
        """
        if not authorization:
            raise ApiError(401, 20, "Unauthorized (missing credentials)")
        scheme, _, value = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return self._bearer(value.strip())
        if scheme.lower() != "basic":
            raise ApiError(401, 10, "Unauthorized (bad authentication header type)")
        return self._basic(value.strip())

    def issue(self, identity: Identity, lifetime_s: int | None = None) -> str:
        """A new token. `lifetime_s` is clamped to values that clients can handle."""
        lifetime = min(MAX_LIFETIME_S, max(MIN_LIFETIME_S, lifetime_s or DEFAULT_LIFETIME_S))
        now = int(time.time())
        claims = {
            "iat": now, "exp": now + lifetime, "env": "<unknown>", "auth_type": "Bearer",
            "session_id": secrets.token_hex(16), "api_version": API_VERSION, "server_version": SERVER_VERSION,
            "server_build": "", "feature_set": "basic",
            "identity": {
                "user": identity.user, "company": identity.company, "company_name": "clearml", "role": "user",
                "user_name": identity.user,
            },
        }  # fmt: skip
        return jwt.encode(claims, self._credentials.token_secret, algorithm=ALGORITHM)

    def _basic(self, value: str) -> Identity:
        try:
            key, _, secret = base64.b64decode(value, validate=True).decode("utf-8").partition(":")
        except ValueError as exc:
            raise ApiError(401, 21, "Unauthorized (malformed credentials) (not base64 of key:secret)") from exc
        if not key or not secret:
            raise ApiError(401, 21, "Unauthorized (malformed credentials) (expected key:secret)")
        # both are always compared, in constant time
        right_key = hmac.compare_digest(key.encode(), self._credentials.access_key.encode())
        right_secret = hmac.compare_digest(secret.encode(), self._credentials.secret_key.encode())
        if not (right_key and right_secret):
            raise ApiError(401, 22, "Unauthorized (invalid credentials) (failed to locate provided credentials)")
        return Identity(user=self._credentials.user, company=self._credentials.company)

    def _bearer(self, token: str) -> Identity:
        try:
            claims = jwt.decode(
                token, self._credentials.token_secret, algorithms=[ALGORITHM], options={"require": ["exp"]}
            )
            return Identity(user=str(claims["identity"]["user"]), company=str(claims["identity"]["company"]))
        except (jwt.PyJWTError, KeyError, TypeError) as exc:
            raise ApiError(401, 30, f"Invalid token (failed decoding token: {exc})") from exc
