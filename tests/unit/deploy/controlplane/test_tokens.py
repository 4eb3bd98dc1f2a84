"""Rules of bearer tokens."""

# ruff: noqa: D103 - a test's name states its rule

import jwt
import pytest

from deploy.controlplane.envelope import ApiError
from deploy.controlplane.tokens import DEFAULT_LIFETIME_S, MIN_LIFETIME_S, Tokens

SECRET = "s" * 48


class Time:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def tokens(clock: Time) -> Tokens:
    ids = iter(f"{number:032x}" for number in range(100))
    return Tokens(secret=SECRET, new_id=lambda: next(ids), time_s=clock)


def test_token_is_a_jwt_with_the_claims_the_sdk_reads(tokens: Tokens) -> None:
    claims = jwt.decode(tokens.issue(user="u", company="c"), options={"verify_signature": False})
    assert claims["exp"] - claims["iat"] == 30 * 24 * 3600
    assert tuple(map(int, claims["api_version"].split("."))) >= (2, 23)
    assert claims["feature_set"] == "basic"
    assert claims["identity"]["user"] == "u"


def test_token_expires(tokens: Tokens, clock: Time) -> None:
    token = tokens.issue(user="u", company="c")
    clock.now += DEFAULT_LIFETIME_S - 1
    assert tokens.verify(token).company == "c"
    clock.now += 1
    with pytest.raises(ApiError) as error:
        tokens.verify(token)
    assert (error.value.code, error.value.subcode) == (401, 30)


def test_short_lifetimes_are_raised_to_what_the_sdk_can_live_with(tokens: Tokens, clock: Time) -> None:
    """The SDK logs in before every request when little time is left."""
    token = tokens.issue(user="u", company="c", lifetime_s=40)
    clock.now += MIN_LIFETIME_S - 1
    assert tokens.verify(token).user == "u"


@pytest.mark.parametrize("token", ["", "opaque", "a.b.c", jwt.encode({"exp": 9e9}, "x" * 48, algorithm="HS256")])
def test_foreign_tokens_are_refused(tokens: Tokens, token: str) -> None:
    with pytest.raises(ApiError) as error:
        tokens.verify(token)
    assert (error.value.code, error.value.subcode) == (401, 30)


def test_unsigned_token_is_refused(tokens: Tokens) -> None:
    claims = jwt.decode(tokens.issue(user="u", company="c"), options={"verify_signature": False})
    with pytest.raises(ApiError):
        tokens.verify(jwt.encode(claims, None, algorithm="none"))


def test_token_without_our_claims_is_refused(tokens: Tokens) -> None:
    with pytest.raises(ApiError):
        tokens.verify(jwt.encode({"exp": 2_000_000_000}, SECRET, algorithm="HS256"))
