"""``triton-gateway diff``: compare a serving Task with a file that ``export`` has written."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from deploy.cli.commands._options import OpenRegistry, registry_options
from deploy.tools.terminal import Terminal

FILE = click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True)


@click.command(name="diff")
@click.option("-f", "--file", type=FILE, required=True, help="File to read; - reads standard input.")
@click.option(
    "--prune", is_flag=True, help="Also show what only the serving Task has, and `apply --prune` would remove."
)
@click.option("--exit-code", "exits", is_flag=True, help="Exit with code 2 if there are differences.")
@registry_options
def command(file: Path, prune: bool, exits: bool, open_registry: OpenRegistry) -> int:
    """Show what `apply` would change: + added, ~ changed, - removed (with --prune). It fails where `apply` would.

    \b
    Example:
      triton-gateway diff -f serving.yaml --exit-code
    """
    from deploy.cli import state_file

    with Terminal(sys.stderr).waiting("reading the serving Task, its models and its code"):
        plan = state_file.planned(open_registry(), file, prune=prune)
    changes = plan.changes()
    for change in changes:
        click.echo(state_file.described(change))
    if plan.kept:
        click.echo(f"{plan.kept} more entries are only in the serving Task; `apply --prune` removes them", err=True)
    if not changes:
        click.echo("the serving Task matches the file", err=True)
    state_file.check(plan)
    return 2 if changes and exits else 0
