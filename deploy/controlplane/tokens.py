"""Bearer tokens: JWTs with the claims that the clearml SDK reads (unverified) from them.

`api/auth` issues them and `access` verifies them. Never sees access keys.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import jwt

from deploy.controlplane.envelope import API_VERSION, ApiError, invalid_token

SERVER_VERSION = "2.3.0"
ALGORITHM = "HS256"
DEFAULT_LIFETIME_S = 30 * 24 * 3600
# The SDK renews a token before a request if less than 60 s remain (3600 s with CLEARML_AUTH_TOKEN). Shorter tokens
# would double the number of calls (a 61 s token made 116 logins in 108 calls).
MIN_LIFETIME_S = 2 * 3600
MAX_LIFETIME_S = 366 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The caller."""

    user: str
    company: str


class Tokens:
    """Issues and verifies tokens with one secret."""

    def __init__(self, *, secret: str, new_id: Callable[[], str], time_s: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._new_id = new_id
        self._time_s = time_s

    def issue(self, *, user: str, company: str, lifetime_s: int | None = None) -> str:
        """A new token, i.e. a new session. `lifetime_s` is clamped to values that clients can handle."""
        lifetime = min(MAX_LIFETIME_S, max(MIN_LIFETIME_S, lifetime_s or DEFAULT_LIFETIME_S))
        now = int(self._time_s())
        claims = {
            "iat": now,
            "exp": now + lifetime,
            "env": "<unknown>",
            "auth_type": "Bearer",
            "session_id": self._new_id(),
            "api_version": API_VERSION,
            "server_version": SERVER_VERSION,
            "server_build": "",
            "feature_set": "basic",
            "identity": {
                "user": user,
                "company": company,
                "company_name": "clearml",
                "role": "user",
                "user_name": user,
            },
        }
        return jwt.encode(claims, self._secret, algorithm=ALGORITHM)

    def verify(self, token: str) -> Identity:
        """The identity in `token`.

        Raises:
            ApiError: 401/30 when it is expired, not ours, or not a token.
        """
        try:
            claims = jwt.decode(
                token, self._secret, algorithms=[ALGORITHM], options={"verify_exp": False, "verify_iat": False}
            )
            identity = claims["identity"]
            expires, user, company = int(claims["exp"]), str(identity["user"]), str(identity["company"])
        except jwt.PyJWTError as exc:
            raise _refused(f"failed decoding token: {exc}") from exc
        except (KeyError, TypeError, ValueError) as exc:
            raise _refused("claims are missing") from exc
        if expires <= self._time_s():
            raise _refused("token has expired")
        return Identity(user=user, company=company)


def _refused(why: str) -> ApiError:
    return invalid_token(why)
