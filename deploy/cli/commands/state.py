"""``triton-gateway export``, ``diff`` and ``apply``: the state of a serving Task as a file, compared and written."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from deploy.cli import state_changes, state_file
from deploy.cli.commands._options import OpenRegistry, registry_options, who
from deploy.cli.state_changes import Change, Planned
from gateway.registry import ClearMLRegistry

_FILE = click.option(
    "-f", "--file", type=click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True), required=True,
    help="File to read; - reads standard input.",
)  # fmt: skip


@click.command()
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write.  [default: standard output]"
)
@registry_options
def export(output: Path | None, open_registry: OpenRegistry) -> int:
    """Write the serving Task to a file: endpoints and their code, canaries, metrics, defaults, auto-update.

    Keep the file in git, compare it with `diff`, and restore it on this or another server with `apply`.

    \b
    Example:
      triton-gateway export -o serving.yaml
    """
    store = open_registry()
    task = store.task()
    document = state_file.document_of(store, task)
    text = state_file.written(document, f"serving Task {task.name} ({task.id})")
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        click.echo(f"{output}: {', '.join(f'{len(document[kind])} {kind}' for kind in state_file.KINDS)}", err=True)
    return 0


@click.command()
@_FILE
@click.option(
    "--prune", is_flag=True, help="Also show what only the serving Task has, and `apply --prune` would remove."
)
@click.option("--exit-code", "exits", is_flag=True, help="Exit with code 2 if there are differences.")
@registry_options
def diff(file: Path, prune: bool, exits: bool, open_registry: OpenRegistry) -> int:
    """Show what `apply` would change: + added, ~ changed, - removed (with --prune). It fails where `apply` would.

    \b
    Example:
      triton-gateway diff -f serving.yaml --exit-code
    """
    plan, changes = _planned(open_registry(), file, prune=prune)
    if plan.kept:
        click.echo(f"{plan.kept} more entries are only in the serving Task; `apply --prune` removes them", err=True)
    if not changes:
        click.echo("the serving Task matches the file", err=True)
    return 2 if changes and exits else 0


@click.command()
@_FILE
@click.option(
    "--prune", is_flag=True, help="Also remove endpoints, canaries and other settings that the file does not have."
)
@registry_options
def apply(file: Path, prune: bool, open_registry: OpenRegistry) -> int:
    """Change the serving Task to match a file made by `export`. Only differences are written.

    Models are found by id or, on another server, by project and name. Endpoints that are missing in the file stay,
    unless you give --prune. `diff` shows beforehand what would change. To replace a lost serving Task, run
    `clearml-serving create --name NAME` and then `apply`.

    \b
    Examples:
      triton-gateway apply -f serving.yaml
      triton-gateway apply -f serving.yaml --prune
    """
    store = open_registry()
    plan, changes = _planned(store, file, prune=prune)
    if not changes:
        click.echo("nothing to do: the serving Task matches the file", err=True)
        return 0
    state_changes.apply(store, plan, by=who())
    click.echo(f"{len(changes)} {'change' if len(changes) == 1 else 'changes'} made", err=True)
    return 0


def _planned(store: ClearMLRegistry, file: Path, *, prune: bool) -> tuple[Planned, list[Change]]:
    """Compare and show the changes. Raises ``DeployError`` if the result could not be served."""
    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    plan = state_changes.compared(store, state_file.parsed(text, str(file)), prune=prune)
    changes = plan.changes()
    for change in changes:
        click.echo(state_changes.described(change))
    state_changes.check(store, plan)
    return plan, changes
