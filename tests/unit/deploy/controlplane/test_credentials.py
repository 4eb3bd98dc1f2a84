"""Rules of generated credentials, and of the tokens that are made with them."""

# ruff: noqa: D103 - a test's name states its rule

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jwt
import pytest

from deploy.controlplane.access import MIN_LIFETIME_S, Access, Identity
from deploy.controlplane.credentials import FILE_NAME, Credentials
from deploy.controlplane.envelope import ApiError
from deploy.tools.errors import DeployError


def test_credentials_are_generated_once_and_kept(tmp_path: Path) -> None:
    first = Credentials.load_or_create(tmp_path / "state")
    assert Credentials.load_or_create(tmp_path / "state") == first
    assert Credentials.load(tmp_path / "state") == first != Credentials.load_or_create(tmp_path / "other")
    assert stat.S_IMODE((tmp_path / "state" / FILE_NAME).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert not any(secret in repr(first) for secret in (first.secret_key, first.token_secret))


def test_starters_at_the_same_time_get_the_same_credentials(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: Credentials.load_or_create(tmp_path).access_key, range(16)))
    assert len(found) == 1
    assert {path.name for path in tmp_path.iterdir()} == {FILE_NAME, f".{FILE_NAME}.lock"}


@pytest.mark.parametrize("text", ["", "{", "{}", '{"access_key": "x"}', "[]"])
def test_damaged_file_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(DeployError, match="not a credentials file"):
        Credentials.load_or_create(tmp_path)


def test_keys_chosen_elsewhere_are_kept_and_tokens_stay_valid(tmp_path: Path) -> None:
    first = Credentials.load_or_create(tmp_path)
    for _ in range(2):
        chosen = Credentials.load_or_create(tmp_path, access_key="A" * 20, secret_key="s" * 40)
        assert (chosen.access_key, chosen.secret_key, chosen.token_secret) == ("A" * 20, "s" * 40, first.token_secret)
        assert Credentials.load(tmp_path) == chosen
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600
    for access, secret in (("A" * 20, ""), ("", "s" * 40), ("short", "s" * 40)):
        with pytest.raises(DeployError, match="16 characters"):
            Credentials.load_or_create(tmp_path, access_key=access, secret_key=secret)


# --- tokens


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
