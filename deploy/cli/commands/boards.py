"""``triton-gateway boards``: put our boards into an existing Grafana. The only file that imports ``grafana_client``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from deploy.tools.errors import DeployError


@click.group(name="boards")
def command() -> None:
    """Put our boards into a Grafana: overview, latency, canary, drift, capacity, Triton."""


@command.command()
@click.option("--url", required=True, envvar="GRAFANA_URL", show_envvar=True,
              help="Address of Grafana, including its path prefix if it has one.")  # fmt: skip
@click.option("--token", required=True, envvar="GRAFANA_TOKEN", show_envvar=True,
              help="Token of a service account with the role Editor. Prefer the variable: others can see a command "
              "line.")  # fmt: skip
@click.option("--folder", default="triton-gateway", show_default=True,
              help="Grafana folder for the boards; created if missing.")  # fmt: skip
def push(url: str, token: str, folder: str) -> int:
    """Create or update the boards in a Grafana.

    Boards have fixed ids: a second push updates them in place, and links to them stay valid. A push overwrites changes
    made in Grafana. To keep your own version, save it under another name.

    \b
    Example:
      GRAFANA_TOKEN=glsa_… triton-gateway boards push --url https://grafana.example
    """
    import requests
    from grafana_client import GrafanaApi, TokenAuth
    from grafana_client.client import GrafanaException

    if not url.startswith(("http://", "https://")):
        raise DeployError(f"{url} is not an http(s) address", hint="write https://GRAFANA")
    try:
        grafana = GrafanaApi.from_url(url.rstrip("/"), TokenAuth(token), timeout=15.0)
        uid = _folder(grafana, folder)
        for board in boards().values():
            reply = grafana.dashboard.update_dashboard(
                {"dashboard": {**board, "id": None}, "folderUid": uid, "overwrite": True, "message": "triton-gateway"}
            )
            click.echo(f"{board['title']}: {url.rstrip('/')}{reply['url']}")
    except GrafanaException as error:
        hint = "use the token of a service account with the role Editor, and Grafana's own address with its path prefix"
        raise DeployError(f"Grafana at {url} answered {error.status_code}: {error.message}", hint=hint) from error
    except requests.RequestException as error:
        hint = "check the address; for a certificate of your own, set REQUESTS_CA_BUNDLE to its authority's file"
        raise DeployError(f"nothing answers at {url}: {str(error)[:200]}", hint=hint) from error
    return 0


def boards() -> dict[str, dict[str, Any]]:
    """Return our boards by file name. Raises ``DeployError`` if the package was installed without them."""
    # beside ours; the package itself is not imported, because that needs Grafana's SDK
    folder = Path(__file__).parents[3] / "dashboards" / "grafana"
    found = {path.name: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))}
    if not found:
        raise DeployError("this installation contains no boards", hint="reinstall the package triton-gateway")
    return found


def _folder(grafana: Any, title: str) -> str:
    """Return the uid of the folder called ``title``. The folder is created if there is none."""
    for folder in grafana.folder.get_all_folders():
        if folder["title"] == title:
            return str(folder["uid"])
    # only the default folder gets our uid: a folder of another name must not take it
    return str(grafana.folder.create_folder(title, uid=title if title == "triton-gateway" else None)["uid"])
