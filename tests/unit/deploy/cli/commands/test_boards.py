"""``triton-gateway boards``: against a small server that answers as Grafana's HTTP API documents it.

Not a real Grafana: there is none to be had here (docs/monitoring.md says so).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from deploy.cli.commands.boards import boards, command
from deploy.tools.errors import DeployError
from tests.sites import Asked, site

TOKEN = "glsa_test"


class Grafana:
    """Stores folders and boards like Grafana."""

    def __init__(self) -> None:
        self.folders: list[dict[str, Any]] = [{"id": 1, "uid": "other", "title": "Other"}]
        self.boards: dict[str, dict[str, Any]] = {}

    def answer(self, method: str, path: str, token: str, body: Any) -> tuple[int, Any]:
        if token != f"Bearer {TOKEN}":
            return 401, {"message": "Invalid API key"}
        match method, path.partition("?")[0].strip("/").split("/"):
            case "GET", ["api", "folders"]:
                return 200, self.folders
            case "POST", ["api", "folders"]:
                made = {"id": len(self.folders) + 1, "uid": body.get("uid") or "made", "title": body["title"]}
                self.folders.append(made)
                return 200, made
            case "POST", ["api", "dashboards", "db"]:
                board, old = copy.deepcopy(body["dashboard"]), self.boards.get(body["dashboard"]["uid"])
                if old is not None and not body.get("overwrite"):
                    return 412, {"status": "version-mismatch", "message": "changed by someone else"}
                url = f"/d/{board['uid']}/slug"
                self.boards[board["uid"]] = {"dashboard": board, "meta": {"folderUid": body["folderUid"], "url": url}}
                return 200, {"uid": board["uid"], "url": url, "status": "success"}
        return 404, {"message": "Not found"}


@pytest.fixture
def grafana() -> Iterator[tuple[Grafana, str]]:
    """One on a free port, and its address."""
    made = Grafana()

    def answer(asked: Asked) -> tuple[int, Any]:
        return made.answer(asked.method, asked.path, asked.headers["authorization"] or "", asked.json)

    with site(answer) as address:
        yield made, address


def run(*arguments: object, token: str = TOKEN) -> Any:
    """Call the command; errors of ours come through."""
    return CliRunner(env={"GRAFANA_TOKEN": token}).invoke(
        command, [str(a) for a in arguments], catch_exceptions=False, standalone_mode=False
    )


def test_boards_are_made_in_a_folder_and_replaced_the_second_time(grafana: tuple[Grafana, str]) -> None:
    """All boards are created in one folder; a second push makes none again, and restores an edited one."""
    server, url = grafana
    assert f"{url}/d/triton-gateway-overview/slug" in run("push", "--url", url).output
    assert ["Other", "triton-gateway"] == [f["title"] for f in server.folders]
    stored = server.boards["triton-gateway-drift"]
    assert "triton-gateway" == stored["meta"]["folderUid"]
    ours = boards()["drift.json"]
    assert ours == {k: stored["dashboard"][k] for k in ours}
    stored["dashboard"]["title"] = "edited"
    run("push", "--url", url + "/")
    assert (6, 2) == (len(server.boards), len(server.folders))
    assert "Gateway · drift" == server.boards["triton-gateway-drift"]["dashboard"]["title"]


def test_an_existing_folder_is_used(grafana: tuple[Grafana, str]) -> None:
    """Folders are found by their title; with another title, the boards move."""
    server, url = grafana
    run("push", "--url", url, "--folder", "Other")
    assert {"other"} == {board["meta"]["folderUid"] for board in server.boards.values()}
    run("push", "--url", url, "--folder", "Team")
    assert {"made"} == {board["meta"]["folderUid"] for board in server.boards.values()}


def test_what_goes_wrong_is_one_line_that_says_what_to_do(grafana: tuple[Grafana, str]) -> None:
    """A wrong token, another server, no answer, and an invalid address."""
    _, url = grafana
    for address, token, wanted in (
        (url, "wrong", "Editor"),
        (url + "/elsewhere", TOKEN, "path prefix"),
        ("http://127.0.0.1:9", TOKEN, "nothing answers"),
        ("grafana", TOKEN, "not an http(s) address"),
    ):
        with pytest.raises(DeployError) as caught:
            run("push", "--url", address, token=token)
        assert wanted in caught.value.line()
