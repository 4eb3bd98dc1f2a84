"""Rules of generated credentials."""

# ruff: noqa: D103 - a test's name states its rule

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.controlplane.credentials import FILE_NAME, BadCredentials, Credentials, fixed


def test_credentials_are_generated_once_and_kept(tmp_path: Path) -> None:
    first = Credentials.load_or_create(tmp_path / "state")
    assert Credentials.load_or_create(tmp_path / "state") == first
    assert Credentials.load(tmp_path / "state") == first


def test_credentials_are_readable_by_the_owner_only(tmp_path: Path) -> None:
    Credentials.load_or_create(tmp_path / "state")
    assert stat.S_IMODE((tmp_path / "state" / FILE_NAME).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_starters_at_the_same_time_get_the_same_credentials(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: Credentials.load_or_create(tmp_path).access_key, range(16)))
    assert len(found) == 1
    assert {path.name for path in tmp_path.iterdir()} == {FILE_NAME, f".{FILE_NAME}.lock"}


def test_two_state_directories_have_different_secrets(tmp_path: Path) -> None:
    one, two = (Credentials.load_or_create(tmp_path / name) for name in "ab")
    assert {one.access_key, one.secret_key, one.token_secret}.isdisjoint(
        {two.access_key, two.secret_key, two.token_secret}
    )


def test_representation_shows_no_secret(tmp_path: Path) -> None:
    credentials = Credentials.load_or_create(tmp_path)
    assert credentials.secret_key not in repr(credentials)
    assert credentials.token_secret not in repr(credentials)


@pytest.mark.parametrize("text", ["", "{", "{}", '{"access_key": "x"}', "[]"])
def test_damaged_file_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(BadCredentials, match="remove it"):
        Credentials.load_or_create(tmp_path)


def test_keys_chosen_elsewhere_are_kept_and_tokens_stay_valid(tmp_path: Path) -> None:
    first = Credentials.load_or_create(tmp_path)
    chosen = fixed(tmp_path, access_key="A" * 20, secret_key="s" * 40)
    assert (chosen.access_key, chosen.secret_key, chosen.token_secret) == ("A" * 20, "s" * 40, first.token_secret)
    assert Credentials.load(tmp_path) == chosen == fixed(tmp_path, access_key="A" * 20, secret_key="s" * 40)
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


@pytest.mark.parametrize(("access", "secret"), [("A" * 20, ""), ("", "s" * 40), ("short", "s" * 40)])
def test_half_or_weak_keys_are_refused(tmp_path: Path, access: str, secret: str) -> None:
    with pytest.raises(BadCredentials, match="16 characters"):
        fixed(tmp_path, access_key=access, secret_key=secret)
