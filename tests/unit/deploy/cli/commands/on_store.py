"""Runs a command, on a registry of the tests if it is given one; errors of ours come through."""

from __future__ import annotations

import inspect
from typing import Any

import click
from click.testing import CliRunner, Result


def invoke(command: click.Command, *arguments: object, **environment: str) -> Result:
    """Return what the command has shown and its exit code, ``return_value``."""
    return CliRunner(env=environment).invoke(
        command, [str(one) for one in arguments], catch_exceptions=False, standalone_mode=False
    )


def run(command: click.Command, store: Any, *arguments: str) -> int:
    """Return the exit code."""
    assert command.name is not None
    assert command.callback is not None
    function = inspect.unwrap(command.callback)  # without what the options of the registry and of gateways look up
    values = command.make_context(command.name, list(arguments)).params
    with click.Context(command):
        known = inspect.signature(function).parameters
        return int(function(open_registry=lambda: store, **{name: values[name] for name in values if name in known}))
