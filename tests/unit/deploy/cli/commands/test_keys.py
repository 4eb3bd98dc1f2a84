"""``triton-gateway keys`` on a file, and a gateway that reads this file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.commands.keys import command
from deploy.cli.main import main
from deploy.tools.errors import DeployError
from gateway.callers.access import Access
from gateway.callers.keys import KeyFile
from gateway.errors import NotAuthenticated
from tests.unit.deploy.cli.commands.on_store import invoke


class Keyring:
    """A key file, the command that edits it, and a gateway that reads it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys.json"

    def run(self, name: str, *arguments: str) -> Any:
        return invoke(command, name, "--file", self.path, *arguments)

    def create(self, *arguments: str) -> Any:
        return json.loads(self.run("create", "--json", *arguments).stdout)

    def listed(self) -> Any:
        return json.loads(self.run("list", "--json").stdout)

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
    """Only the key is on stdout; the file, which it makes, does not contain it, and only its owner can read it."""
    keyring.path = keyring.path.parent / "new" / "keys.json"
    result = keyring.run("create", "--tenant", "acme")
    key = result.stdout.strip()
    assert key.startswith("tgk_")
    assert "only this once" in result.stderr
    assert "acme" == keyring.ask(key)
    for file in keyring.path.parent.iterdir():
        assert key not in file.read_text()
    assert 0o600 == keyring.path.stat().st_mode & 0o777
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
        (["create", "--tenant", "a", "--expires", "2020-01-01"], "'2020-01-01' is not a time to come"),
        (["create", "--tenant", ""], "tenant: "),
        (["create", "--tenant", "a", "--endpoints", ""], "--endpoints is empty"),
        (["revoke", "nobody"], "there is no key nobody"),
        (["list", "--file", "none.json"], "there is no file none.json"),
        (["create", "--tenant", "b", "--file", "half.json"], "half.json cannot be used"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(
    keyring: Keyring, arguments: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Wrong words, a place that is not there, a file that is half written: keys would stop working."""
    monkeypatch.chdir(tmp_path)
    keyring.create("--tenant", "a")
    (tmp_path / "half.json").write_text('{"keys": [')
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".lock"}
    place = [] if "--file" in arguments else ["--file", str(keyring.path)]
    assert 1 == main(["keys", *arguments, *place])
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".lock"}


def test_a_change_reaches_a_gateway_that_reads_the_file_as_another_user(keyring: Keyring, tmp_path: Path) -> None:
    """What the file's owner has allowed stays allowed, and a link goes on leading to it: else an end would not come."""
    key = keyring.create("--tenant", "acme")
    real = tmp_path / "mounted"
    real.mkdir()
    keyring.path.replace(real / "keys.json")
    (real / "keys.json").chmod(0o640)
    keyring.path.symlink_to(real / "keys.json")
    keyring.run("revoke", key["id"])
    assert keyring.path.is_symlink()
    assert 0o640 == (real / "keys.json").stat().st_mode & 0o777
    assert "revoked" in (real / "keys.json").read_text()
    assert "revoked" == keyring.ask(key["key"])
