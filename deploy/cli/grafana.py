"""Puts our boards into an existing Grafana through its HTTP API. The only file that imports ``grafana_client``.

``push`` creates or updates the folder and the boards by their fixed uids; a second run changes nothing. Called by
``commands/dashboards.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import requests
from grafana_client import GrafanaApi, TokenAuth
from grafana_client.client import GrafanaException

from deploy.cli.boards import boards
from deploy.tools.errors import DeployError

FOLDER: Final = "triton-gateway"
_TIMEOUT_S: Final = 15.0
_GRAFANAS_OWN: Final = ("id", "version")
"""Fields that Grafana adds to a stored board."""

Change = Literal["created", "updated", "unchanged"]


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result for one board; ``url`` is its path in Grafana."""

    title: str
    change: Change
    url: str


def push(
    url: str, token: str, *, folder: str = FOLDER, dry_run: bool = False, tell: Callable[[Pushed], None]
) -> None:  # fmt: skip
    """Bring folder and boards up to date, and call ``tell`` for each board. Raises ``DeployError``."""
    if not url.startswith(("http://", "https://")):
        raise DeployError(f"{url} is not an http(s) address", hint="write https://GRAFANA")
    try:
        _push(GrafanaApi.from_url(url.rstrip("/"), TokenAuth(token), timeout=_TIMEOUT_S), folder, dry_run, tell)
    except GrafanaException as error:
        raise _refused(url, error) from error
    except requests.exceptions.SSLError as error:
        raise DeployError(
            f"the certificate of {url} is not trusted",
            hint="set REQUESTS_CA_BUNDLE to the file of the certificate authority",
        ) from error
    except requests.RequestException as error:
        raise DeployError(f"nothing answers at {url}", hint=str(error)[:200]) from error
    except (ValueError, TypeError, KeyError) as error:
        raise DeployError(
            f"{url} does not answer like Grafana", hint="check that this is the address of Grafana itself"
        ) from error


def _push(grafana: Any, folder: str, dry_run: bool, tell: Callable[[Pushed], None]) -> None:
    uid = _folder(grafana, folder, dry_run)
    for board in boards().values():
        there = _existing(grafana, board["uid"])
        link = f"/d/{board['uid']}"
        if there is not None and _bare(there["dashboard"]) == _bare(board) and there["meta"].get("folderUid") == uid:
            tell(Pushed(board["title"], "unchanged", there["meta"].get("url", link)))
            continue
        if not dry_run:
            reply = grafana.dashboard.update_dashboard(
                {"dashboard": {**board, "id": None}, "folderUid": uid, "overwrite": True, "message": "triton-gateway"}
            )
            link = reply.get("url", link)
        tell(Pushed(board["title"], "created" if there is None else "updated", link))


def _folder(grafana: Any, title: str, dry_run: bool) -> str:
    """Return the uid of the folder called ``title``. The folder is created if there is none."""
    for folder in grafana.folder.get_all_folders():
        if folder["title"] == title:
            return str(folder["uid"])
    # Only the default folder gets our uid: a folder of another name must not take it.
    wanted = FOLDER if title == FOLDER else None
    return str(wanted or "new") if dry_run else str(grafana.folder.create_folder(title, uid=wanted)["uid"])


def _existing(grafana: Any, uid: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = grafana.dashboard.get_dashboard(uid)
    except GrafanaException as error:
        if error.status_code == requests.codes.not_found:
            return None
        raise
    return found


def _bare(board: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in board.items() if key not in _GRAFANAS_OWN}


def _refused(url: str, error: GrafanaException) -> DeployError:
    if error.status_code in (requests.codes.unauthorized, requests.codes.forbidden):
        return DeployError(
            f"Grafana at {url} refused the token ({error.message})",
            hint="use the token of a service account with the role Editor: Administration → Service accounts",
        )
    if error.status_code == requests.codes.not_found:
        return DeployError(f"{url} has no Grafana API", hint="give Grafana's own address, with its path prefix if any")
    return DeployError(f"Grafana at {url} answered {error.status_code}: {error.message}")
