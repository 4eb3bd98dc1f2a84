"""Rules of bearer tokens."""

# ruff: noqa: D103 - a test's name states its rule

import jwt
import pytest

from deploy.controlplane.access import MIN_LIFETIME_S, Access, Identity
from deploy.controlplane.credentials import Credentials
from deploy.controlplane.envelope import ApiError

KEYS = Credentials.generate()
ACCESS = Access(KEYS)
CALLER = Identity(user="u", company="c")


def test_short_lifetimes_are_raised_to_what_the_sdk_can_live_with() -> None:
    """The SDK logs in before every request when little time is left."""
    claims = jwt.decode(ACCESS.issue(CALLER, lifetime_s=40), options={"verify_signature": False})
    assert claims["exp"] - claims["iat"] == MIN_LIFETIME_S


def signed(**changes: object) -> str:
    claims = jwt.decode(ACCESS.issue(CALLER), options={"verify_signature": False}) | changes
    return jwt.encode({key: value for key, value in claims.items() if value}, KEYS.token_secret, algorithm="HS256")


@pytest.mark.parametrize(
    "token",
    [
        "opaque",
        "a.b.c",
        jwt.encode({"exp": 9e9}, "x" * 48, algorithm="HS256"),
        jwt.encode(jwt.decode(ACCESS.issue(CALLER), options={"verify_signature": False}), None, algorithm="none"),
        signed(exp=1),
        signed(exp=None),
        signed(identity=None),
        signed(identity="u"),
    ],
    ids=["opaque", "parts", "foreign", "unsigned", "expired", "endless", "nobody", "no-object"],
)
def test_foreign_expired_and_incomplete_tokens_are_refused(token: str) -> None:
    with pytest.raises(ApiError) as error:
        ACCESS.identify(f"Bearer {token}")
    assert (error.value.code, error.value.subcode) == (401, 30)
