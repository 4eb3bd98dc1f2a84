"""``triton-gateway boards``: against a small server that answers as Grafana's HTTP API documents it.

Not a real Grafana: there is none to be had here (docs/monitoring.md says so).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from deploy.cli.commands.boards import boards, command
from deploy.tools.errors import DeployError
from tests.sites import Asked, site
from tests.unit.deploy.cli.commands.on_store import invoke

TOKEN = "glsa_test"


class Grafana:
    """Stores folders and boards like Grafana."""

    def __init__(self) -> None:
        self.folders = [{"id": 1, "uid": "other", "title": "Other"}]
        self.boards: dict[str, Any] = {}

    def answer(self, asked: Asked) -> tuple[int, Any]:
        if asked.headers["authorization"] != f"Bearer {TOKEN}":
            return 401, {"message": "Invalid API key"}
        body: Any = asked.json
        match asked.method, asked.path.partition("?")[0].strip("/").split("/"):
            case "GET", ["api", "folders"]:
                return 200, self.folders
            case "POST", ["api", "folders"]:
                self.folders.append({"id": 2, "uid": body.get("uid") or "made", "title": body["title"]})
                return 200, self.folders[-1]
            case "POST", ["api", "dashboards", "db"]:
                uid = body["dashboard"]["uid"]
                if uid in self.boards and not body.get("overwrite"):
                    return 412, {"status": "version-mismatch", "message": "changed by someone else"}
                self.boards[uid] = body
                return 200, {"uid": uid, "url": f"/d/{uid}/slug", "status": "success"}
        return 404, {"message": "Not found"}


@pytest.fixture
def grafana() -> Iterator[tuple[Grafana, str]]:
    """One on a free port, and its address."""
    made = Grafana()
    with site(made.answer) as address:
        yield made, address


def run(*arguments: object, token: str = TOKEN) -> Any:
    """Call the command."""
    return invoke(command, *arguments, GRAFANA_TOKEN=token)


def test_boards_are_made_in_a_folder_and_replaced_the_second_time(grafana: tuple[Grafana, str]) -> None:
    """All boards, in one folder, which is found by its title; a second push restores an edited one, or moves all."""
    server, url = grafana
    assert f"{url}/d/triton-gateway-overview/slug" in run("push", "--url", url).output
    stored = server.boards["triton-gateway-drift"]
    assert "triton-gateway" == stored["folderUid"]
    ours = boards()["drift.json"]
    assert ours == {k: stored["dashboard"][k] for k in ours}
    stored["dashboard"] = {}
    run("push", "--url", url + "/")
    assert (6, ["Other", "triton-gateway"]) == (len(server.boards), [f["title"] for f in server.folders])
    assert "Gateway · drift" == server.boards["triton-gateway-drift"]["dashboard"]["title"]
    for title, uid in (("Other", "other"), ("Team", "made")):
        run("push", "--url", url, "--folder", title)
        assert {uid} == {board["folderUid"] for board in server.boards.values()}


@pytest.mark.parametrize(("address", "token"), [("URL", "wrong"), ("URL/elsewhere", TOKEN), ("grafana", TOKEN)])
def test_a_wrong_token_another_server_and_an_invalid_address_are_refused(
    grafana: tuple[Grafana, str], address: str, token: str
) -> None:
    """As an error of ours."""
    with pytest.raises(DeployError):
        run("push", "--url", address.replace("URL", grafana[1]), token=token)
