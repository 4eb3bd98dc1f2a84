"""Runs a command on a registry of the tests."""

from __future__ import annotations

import click

from tests.fakes import FakeRegistry


def run(command: click.Command, store: FakeRegistry, *arguments: str) -> int:
    """Return the exit code; errors of ours come through."""
    assert command.name is not None
    values = command.make_context(command.name, list(arguments)).params
    values.pop("serving_task_id")
    with click.Context(command):
        return int(command.callback.__wrapped__(**values, open_registry=lambda: store))  # type: ignore[union-attr]
