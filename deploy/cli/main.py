"""The ``triton-gateway`` command: runs a sub-command, and turns each failure into one line and an exit code.

Sub-commands are in ``commands/``, one file each, and are imported only when they are used. ``--help`` is therefore
fast, and ``serve`` never loads the control plane or torch. Only this file decides how an error is shown.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

import click

from deploy.tools.errors import DeployError, GatewayError, line_of
from deploy.tools.proxies import except_loopback

_COMMANDS = {
    "up": "Start everything on this machine, and serve a model.",
    "serve": "Run only the gateway, for an existing server and Triton.",
    "sync": "Run only model sync, beside an existing Triton.",
    "controller": "Run only the controller, which decides for a serving Task.",
    "controlplane": "Run only the embedded ClearML-compatible server.",
    "status": "Show what is served and what is not; wait until a change is live.",
    "lineage": "Show where a served model comes from.",
    "doctor": "Check this machine for missing parts.",
    "deploy": "Serve a model as an endpoint: export, register, wait, ask.",
    "optimize": "Make the fastest bundle that still answers correctly.",
    "keys": "Create, list and revoke API keys.",
    "history": "Show who changed endpoints, weights, defaults and keys.",
    "drift": "Detect drift: capture references, report changes.",
    "boards": "Put the boards into a Grafana.",
    "hook": "Test a Preprocess class on this machine.",
    "canary": "Split requests between versions, or roll one out safely.",
    "export": "Write the state of a serving Task to a file.",
    "diff": "Compare a serving Task with such a file.",
    "apply": "Change a serving Task to match such a file.",
    "objective": "Show or set an endpoint's objective: availability and latency.",
    "default": "Show or choose which version answers a name without a version.",
}
_INTERNAL = {"triton": "Run only the embedded Triton."}
_TOGETHER = {"export": "state", "diff": "state", "apply": "state"}
"""Commands that share a module, where they have their own names; each other one is the ``command`` of its module."""

EXTRAS = {"controlplane": "controlplane", "triton": "triton", "up": "laptop", "deploy": "laptop",
          "optimize": "bundles", "boards": "grafana"}  # fmt: skip
"""Command → the extra with all that it needs. Other commands need the base."""

_OURS = ("deploy", "gateway", "preprocessing")

_USAGE, _FAILED, _INTERRUPTED = 2, 1, 130
_OF_THE_MACHINE = (errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR)
"""A full disk, or a file of somebody else, or in the way: nothing to report to us."""


class _LazyGroup(click.Group):
    """A group whose commands are modules of ``deploy.cli.commands``, imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS and cmd_name not in _INTERNAL:
            return None
        module = importlib.import_module(f"deploy.cli.commands.{_TOGETHER.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name if cmd_name in _TOGETHER else "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="To try it, run `triton-gateway up --demo`. It serves a real model on this machine and needs nothing else.",
)
@click.version_option(package_name="triton-gateway", prog_name="triton-gateway")
def group() -> None:
    """Serve text models on NVIDIA Triton, configured with the clearml-serving CLI.

    Most options can also be set with the environment variable shown behind them. Data goes to stdout, everything else
    to stderr. The exit code is 0 for success, 2 for a wrong command line and 1 for any other failure. Some commands
    have more exit codes; their help lists them.
    """
    except_loopback(os.environ)


def main(argv: Sequence[str] | None = None, *, root: click.Group = group) -> int:
    """Run one command line and return its exit code. Never raises."""
    try:
        result = root.main(args=argv, prog_name="triton-gateway", standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return _INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return _USAGE
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "triton-gateway"
        return _fail(f"{error.format_message().rstrip('.')}. See `{command} --help`.", _USAGE)
    except click.ClickException as error:
        return _fail(error.format_message(), _FAILED)
    except (DeployError, GatewayError) as error:
        return _fail(line_of(error), _FAILED)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # the reader of our output has ended (`… | head`), so nothing more can be printed
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OURS:
            return _unexpected()
        given = sys.argv[1:] if argv is None else argv
        extra = next((EXTRAS[word] for word in given if word in EXTRAS), "")
        remedy = f'".[{extra}]"`' if extra else ".` again: it, or one of the extras in pyproject.toml, brings it"
        name = error.name.partition(".")[0]
        return _fail(f"the Python package {name} is not installed; run `pip install {remedy}", _FAILED)
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE:
            return _unexpected()
        return _fail(f"{f'{error.filename}: ' if error.filename else ''}{error.strerror}", _FAILED)
    except Exception:  # noqa: BLE001 - the outermost boundary: the exit code is ours
        return _unexpected()
    return result if isinstance(result, int) else 0


def _fail(text: str, code: int) -> int:
    if text:  # else a command that this one ran has said it
        click.echo(f"triton-gateway: {' '.join(text.split())}", err=True)
    return code


def _unexpected() -> int:
    traceback.print_exc()
    return _fail("unexpected error, please report it with the lines above", _FAILED)


if __name__ == "__main__":
    sys.exit(main())
