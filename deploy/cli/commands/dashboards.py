"""``triton-gateway dashboards``: put our Grafana boards into an existing Grafana, or into files."""

from __future__ import annotations

import json
from pathlib import Path

import click

from deploy.cli.commands._options import Group
from deploy.tools.errors import DeployError


@click.group(name="dashboards", cls=Group)
def command() -> None:
    """Put the six Grafana dashboards into a Grafana or into files: overview, latency, canary, drift, capacity, Triton.

    Each dashboard has selectors for its Prometheus, endpoints and versions at the top.
    """


@command.command()
@click.option("--url", required=True, envvar="GRAFANA_URL", show_envvar=True,
              help="Address of Grafana, including its path prefix if it has one.")  # fmt: skip
@click.option("--token", required=True, envvar="GRAFANA_TOKEN", show_envvar=True,
              help="Token of a service account with the role Editor. Prefer the variable: others can see a command "
              "line.")  # fmt: skip
@click.option(
    "--folder",
    default="triton-gateway",
    show_default=True,
    help="Grafana folder for the dashboards; created if missing.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
def push(url: str, token: str, folder: str, dry_run: bool) -> int:
    """Create or update the dashboards in a Grafana.

    Dashboards have fixed ids: a second push updates them in place, and links to them stay valid. A push overwrites
    changes made in Grafana. To keep your own version, save it under another name.

    \b
    Example:
      GRAFANA_TOKEN=glsa_… triton-gateway dashboards push --url https://grafana.example
    """
    try:
        from deploy.cli import grafana
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "grafana_client":
            raise
        raise DeployError(
            "the Python package grafana-client is not installed",
            hint='run `pip install "triton-gateway[grafana]"`, or import the files that `dashboards export DIR` writes',
        ) from error

    def tell(pushed: grafana.Pushed) -> None:
        word = f"would be {pushed.change}" if dry_run and pushed.change != "unchanged" else pushed.change
        click.echo(f"{pushed.title}: {word}  {url.rstrip('/')}{pushed.url}")

    grafana.push(url, token, folder=folder, dry_run=dry_run, tell=tell)
    return 0


@command.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def export(folder: Path) -> int:
    """Write the dashboards as JSON files into FOLDER, for Grafana's import page or its file provisioning.

    \b
    Example:
      triton-gateway dashboards export ./boards
    """
    from deploy.cli.boards import boards

    folder.mkdir(parents=True, exist_ok=True)
    for name, board in boards().items():
        path = folder / name
        path.write_text(json.dumps(board, indent=1, sort_keys=True) + "\n", "utf-8")
        click.echo(str(path))
    return 0
