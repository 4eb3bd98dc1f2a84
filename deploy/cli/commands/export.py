"""``triton-gateway export``: the state of a serving Task as a file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from deploy.cli.commands._options import OpenRegistry, registry_options
from deploy.tools.terminal import Terminal


@click.command(name="export")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write.  [default: standard output]"
)
@registry_options
def command(output: Path | None, open_registry: OpenRegistry) -> int:
    """Write the serving Task to a file: endpoints and their code, canaries, metrics, defaults, auto-update.

    Keep the file in git, compare it with `diff`, and restore it on this or another server with `apply`.

    \b
    Example:
      triton-gateway export -o serving.yaml
    """
    from deploy.cli import state_file

    with Terminal(sys.stderr).waiting("reading the serving Task, its models and its code"):
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
