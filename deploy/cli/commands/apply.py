"""``triton-gateway apply``: change a serving Task to match a file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from deploy.cli.commands._options import OpenRegistry, registry_options, who
from deploy.cli.commands.diff import FILE
from deploy.tools.errors import DeployError
from deploy.tools.terminal import Terminal


@click.command(name="apply")
@click.option("-f", "--file", type=FILE, required=True, help="File to read; - reads standard input.")
@click.option(
    "--prune", is_flag=True, help="Also remove endpoints, canaries and other settings that the file does not have."
)
@registry_options
def command(file: Path, prune: bool, open_registry: OpenRegistry) -> int:
    """Change the serving Task to match a file made by `export`. Only differences are written.

    Models are found by id or, on another server, by project and name. Endpoints that are missing in the file stay,
    unless you give --prune. `diff` shows beforehand what would change. To replace a lost serving Task, run
    `clearml-serving create --name NAME` and then `apply`.

    \b
    Examples:
      triton-gateway apply -f serving.yaml
      triton-gateway apply -f serving.yaml --prune
    """
    from deploy.cli import state_file

    with Terminal(sys.stderr).waiting("reading the serving Task, its models and its code"):
        store = open_registry()
        plan = state_file.planned(store, file, prune=prune)
    changes = plan.changes()
    for change in changes:
        click.echo(state_file.described(change))
    if not changes:
        click.echo("nothing to do: the serving Task matches the file", err=True)
        return 0
    state_file.check(plan)
    count = f"{len(changes)} {'change' if len(changes) == 1 else 'changes'}"
    with Terminal(sys.stderr).waiting("writing the serving Task"):
        state_file.apply(store, plan, by=who())
        left = plan._replace(now=state_file.document_of(store, store.task())).changes()
    if {change[:2] for change in left} & {change[:2] for change in changes}:
        raise DeployError(
            "the serving Task differs from what was written",
            hint="someone else has changed it at the same time: apply again",
        )
    click.echo(f"{count} made", err=True)
    return 0
