"""``triton-gateway keys`` on a file, and a gateway that reads this file."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deploy.cli.commands.keys import command
from deploy.cli.commands.status import command as status
from deploy.cli.main import main
from deploy.tools.errors import DeployError
from gateway.callers.access import Access
from gateway.callers.keys import KeyFile
from gateway.errors import NotAuthenticated
from tests.sites import Asked, site


class Keyring:
    """A key file, the command that edits it, and a gateway that reads it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys.json"

    def run(self, name: str, *arguments: str) -> Any:
        result = CliRunner().invoke(command, [name, "--file", str(self.path), *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def create(self, *arguments: str) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(self.run("create", "--json", *arguments).stdout)
        return made

    def listed(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.run("list", "--json").stdout)
        return rows

    def ask(self, key: str, now: float | None = None) -> str:
        access = Access(clock=lambda: time.time() if now is None else now)
        found = KeyFile(str(self.path)).look()
        assert found is not None
        access.put("keys_file", found)
        try:
            return access.caller_of({b"x-api-key": key.encode()}).tenant
        except NotAuthenticated as error:
            return error.because


@pytest.fixture
def keyring(tmp_path: Path) -> Keyring:
    """Nothing yet."""
    return Keyring(tmp_path)


def test_a_key_is_shown_once_and_works(keyring: Keyring) -> None:
    """Only the key is on stdout; the files, which it makes, do not contain it, and only their owner can read them."""
    keyring.path = keyring.path.parent / "new" / "keys.json"
    result = keyring.run("create", "--tenant", "acme")
    key = result.stdout.strip()
    assert key.startswith("tgk_")
    assert "only this once" in result.stderr
    assert "acme" == keyring.ask(key)
    for file in keyring.path.parent.iterdir():
        assert key not in file.read_text()
    for name in ("keys.json", "keys.json.pepper"):
        assert 0o600 == keyring.path.with_name(name).stat().st_mode & 0o777
    assert key not in keyring.run("list").stdout
    assert not {"hash", "key"} & set(keyring.listed()[0])


def test_every_right_is_written(keyring: Keyring) -> None:
    """Comma separated, or several times."""
    made = keyring.create(
        "--tenant", "acme", "--class", "batch", "--endpoints", "a,b/*", "--endpoints", "c", "--operations",
        "infer,metrics", "--expires", "2030-01-31", "--note", "for tests",
    )  # fmt: skip
    [row] = keyring.listed()
    assert (made["id"], "acme", "batch", ["a", "b/*", "c"], ["infer", "metrics"], "2030-01-31T00:00:00Z", "good") == (
        row["id"], row["tenant"], row["class"], row["endpoints"], row["operations"], row["expires"], row["state"],
    )  # fmt: skip
    assert {"by", "created", "note"} <= set(row)
    line = keyring.run("list").stdout
    assert "infer,metrics on a,b/*,c until 2030-01-31" in line


def test_a_revoked_key_ends_and_stays_in_the_list(keyring: Keyring) -> None:
    """Other keys keep working; a second revocation keeps the first time."""
    first, second = keyring.create("--tenant", "a"), keyring.create("--tenant", "b")
    keyring.run("revoke", first["id"])
    assert ["revoked", "b"] == [keyring.ask(first["key"]), keyring.ask(second["key"])]
    assert ["revoked", "good"] == [row["state"] for row in keyring.listed()]
    before = keyring.listed()
    keyring.run("revoke", first["id"])
    assert before == keyring.listed()


def test_what_else_is_in_the_file_stays(keyring: Keyring) -> None:
    """Fields that people write, as quotas: gateways read them; limits that they could not use are refused."""
    keyring.create("--tenant", "a")
    content = json.loads(keyring.path.read_text())
    keyring.path.write_text(json.dumps({**content, "more": [1], "quotas": {"*": {"requests_per_minute": 60}}}))
    keyring.create("--tenant", "b")
    content = json.loads(keyring.path.read_text())
    assert ([1], 2) == (content["more"], len(content["keys"]))
    found = KeyFile(str(keyring.path)).look()
    assert found is not None
    assert 60 == found.quotas["*"].requests_per_minute
    keyring.path.write_text(json.dumps({**content, "quotas": {"*": {"requests": 60}}}))
    with pytest.raises(DeployError, match="quotas"):
        keyring.run("list")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["create", "--tenant", "a", "--operations", "infr"], "'infr' is not an operation"),
        (["create", "--tenant", "a", "--class", "urgent"], "'urgent' is not a priority class"),
        (["create", "--tenant", "a", "--expires", "soon"], "'soon' is not a time to come"),
        (["create", "--tenant", ""], "tenant: "),
        (["create", "--tenant", "a", "--endpoints", ""], "--endpoints is empty"),
        (["create", "--tenant", "a", "--operations", " , "], "--operations is empty"),
        (["create", "--tenant", "a", "--expires", "2020-01-01"], "'2020-01-01' is not a time to come"),
        (["revoke", "nobody"], "there is no key nobody"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(
    keyring: Keyring, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message lists what exists."""
    keyring.create("--tenant", "a")
    before = keyring.path.read_bytes()
    assert 1 == main(["keys", arguments[0], "--file", str(keyring.path), *arguments[1:]])
    error = capsys.readouterr().err
    assert why in error
    assert 1 == error.count("\n")
    assert before == keyring.path.read_bytes()


def test_a_file_without_its_pepper_is_not_given_another_one(
    keyring: Keyring, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a new pepper, existing keys would stop working."""
    keyring.create("--tenant", "a")
    pepper = keyring.path.with_name("keys.json.pepper")
    pepper.rename(pepper.with_name("elsewhere"))
    assert 1 == main(["keys", "create", "--file", str(keyring.path), "--tenant", "b"])
    assert "pepper" in capsys.readouterr().err
    pepper.write_text("x" * 40)
    assert 1 == main(["keys", "create", "--file", str(keyring.path), "--tenant", "b"])
    assert "another pepper" in capsys.readouterr().err
    arguments = ["--file", str(keyring.path), "--pepper-file", str(pepper.with_name("elsewhere")), "--tenant", "b"]
    assert 0 == main(["keys", "create", *arguments])


def test_a_half_written_file_is_left_as_it_is(keyring: Keyring, capsys: pytest.CaptureFixture[str]) -> None:
    """Another program is writing or has damaged the file, so it is not replaced."""
    keyring.path.write_text('{"keys": [')
    assert 1 == main(["keys", "create", "--file", str(keyring.path), "--tenant", "b"])
    error = capsys.readouterr().err
    assert "not JSON" in error
    assert str(keyring.path) in error
    assert '{"keys": [' == keyring.path.read_text()


def test_commands_show_the_key_in_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands send the key to gateways; a refusal names the right that is needed."""
    seen: list[str] = []

    def refuse(asked: Asked) -> tuple[int, bytes]:
        seen.append(asked.headers.get("authorization", ""))
        return 401, b""

    with site(refuse) as address:
        for key in ("", "tgk_a_b"):
            monkeypatch.setenv("TRITON_GATEWAY_KEY", key)
            with pytest.raises(DeployError, match="shows its status only to callers with a key") as error:
                CliRunner().invoke(status, ["--url", address], catch_exceptions=False, standalone_mode=False)
            assert "TRITON_GATEWAY_KEY" in error.value.line()
    assert ["", "Bearer tgk_a_b"] == seen


def test_a_change_reaches_a_gateway_that_reads_the_file_as_another_user(keyring: Keyring, tmp_path: Path) -> None:
    """What the file's owner has allowed stays allowed, and a link goes on leading to it: else an end would not come."""
    key = keyring.create("--tenant", "acme")
    real = tmp_path / "mounted"
    real.mkdir()
    for name in ("keys.json", "keys.json.pepper"):
        keyring.path.with_name(name).replace(real / name)
        (real / name).chmod(0o640)
    keyring.path.symlink_to(real / "keys.json")
    keyring.path.with_name("keys.json.pepper").symlink_to(real / "keys.json.pepper")
    keyring.run("revoke", key["id"])
    assert keyring.path.is_symlink()
    assert 0o640 == (real / "keys.json").stat().st_mode & 0o777
    assert "revoked" in (real / "keys.json").read_text()
    assert "revoked" == keyring.ask(key["key"])


def test_a_file_of_somebody_else_is_not_taken_from_him(
    keyring: Keyring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file stays unchanged, and one line says who can change it."""
    key = keyring.create("--tenant", "acme")
    before = keyring.path.read_bytes()

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    with pytest.raises(DeployError, match="belongs to another user"):
        keyring.run("revoke", key["id"])
    assert before == keyring.path.read_bytes()
    assert not list(tmp_path.glob(".keys.json-*"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list"], "--file"),
        (["create", "--registry", "--tenant", "a"], "--pepper-file"),
        (["list", "--file", "none.json"], "there is no file none.json"),
        (["revoke", "a", "--file", "none.json"], "there is no file none.json"),
    ],
)
def test_a_place_of_keys_that_is_not_there_is_named_and_nothing_is_made(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt file name is an error, not an empty list."""
    for name in ("KEYS_FILE", "PEPPER_FILE"):
        monkeypatch.delenv(f"TRITON_GATEWAY_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    assert 1 == main(["keys", *arguments])
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
