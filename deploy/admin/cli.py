"""The ``triton-gateway`` command: finds the sub-command, runs it, turns every failure into one line and an exit code.

Sub-commands live in ``commands/``, one noun each, and are imported only when they are used: ``--help`` is fast and
``serve`` never loads the control plane or torch. Nothing below this file decides how an error looks.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from deploy.tools.errors import DeployError, GatewayError, line_of

_COMMANDS = {
    "up": "Start everything on this machine: registry, Triton, model sync, gateway.",
    "serve": "Run the gateway alone, for an existing ClearML server and Triton.",
    "sync": "Run model sync alone, beside an existing Triton.",
    "controlplane": "Run the embedded ClearML-compatible server alone.",
    "status": "Show what is served: endpoints, versions, models, faults.",
    "plan": "Show what the serving Task would change, and its faults.",
    "wait": "Wait until a change is live on every gateway.",
    "lineage": "Show where a served model comes from.",
    "clearml-log": "Report what a gateway does to the serving Task in ClearML.",
    "doctor": "Show what is missing, on this machine or in a cluster.",
    "deploy": "Serve a model: export, register, add, wait, ask, in one command.",
    "optimize": "Make the fastest bundle of a model that still answers the same.",
    "bench": "Measure a running endpoint: rate, latency, stages.",
    "keys": "Give out keys to those who may ask, list, rotate and revoke them.",
    "history": "Show who changed what: endpoints, weights, defaults, keys, quotas.",
    "drift": "Capture reference distributions, report drift.",
    "dashboards": "Put the Grafana boards into an existing Grafana, or into files.",
    "hook": "Try a Preprocess class here; re-upload it while it is being written.",
    "canary": "Set weights, or roll a version out step by step behind a statistical gate.",
    "export": "Write the state of a serving Task as a file.",
    "diff": "Compare a serving Task with such a file.",
    "apply": "Make a serving Task what such a file says.",
    "objective": "Show or set what an endpoint promises: availability, latency.",
    "default": "Show or choose which version a bare name means.",
}
_INTERNAL = {"triton": "Run the embedded Triton alone."}

_OURS = ("deploy", "gateway", "preprocessing")

_USAGE, _FAILED, _INTERRUPTED = 2, 1, 130


class _LazyGroup(click.Group):
    """A group whose commands are modules of ``deploy.admin.commands``, loaded when named."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS and cmd_name not in _INTERNAL:
            return None
        command: click.Command = importlib.import_module(f"deploy.admin.commands.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Try `triton-gateway up --demo`: a real model behind REST on this machine, nothing else needed.",
)
@click.version_option(package_name="triton-gateway", prog_name="triton-gateway")
def group() -> None:
    """Serve transformers through NVIDIA Triton, configured by the clearml-serving CLI.

    Every option can also be given as the environment variable shown behind it. Data goes to stdout, everything else
    to stderr; the exit code is 0 for success, 2 for a wrong command line, 1 for everything else that failed.
    """


def main(argv: Sequence[str] | None = None, *, root: click.Group = group) -> int:
    """Run one command line and return its exit code. Never raises."""
    try:
        result = root.main(args=argv, prog_name="triton-gateway", standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return _INTERRUPTED
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "triton-gateway"
        return _fail(f"{error.format_message()} See `{command} --help`.", _USAGE)
    except click.ClickException as error:
        return _fail(error.format_message(), _FAILED)
    except DeployError as error:
        return _fail(error.line(), error.exit_code)
    except GatewayError as error:
        return _fail(line_of(error), _FAILED)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # the reader of our output has gone (`… | head`): nothing to say and nobody to say it to
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OURS:
            return _fail(_unexpected(error), _FAILED)
        from deploy.tools import extras  # here, as below: a command that works does not wait for its failures

        given = sys.argv[1:] if argv is None else argv
        remedy = extras.remedy(error.name, next((word for word in given if word in (*_COMMANDS, *_INTERNAL)), ""))
        return _fail(f"the Python package {error.name.partition('.')[0]} is not installed; {remedy}", _FAILED)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return _fail("the disk is full; make room and try again", _FAILED)
        return _fail(_unexpected(error), _FAILED)
    except Exception as error:  # noqa: BLE001 - the outermost boundary: a line and a log file instead of a traceback
        return _fail(_unexpected(error), _FAILED)
    return result if isinstance(result, int) else 0


def _fail(text: str, code: int) -> int:
    click.echo(f"triton-gateway: {' '.join(text.split())}", err=True)
    return code


def _unexpected(error: BaseException) -> str:
    import tempfile
    import traceback

    descriptor, path = tempfile.mkstemp(prefix="triton-gateway-", suffix=".log")
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{' '.join(sys.argv)}\n\n")
        traceback.print_exception(error, file=file)
    return f"an unexpected error, please report it: {type(error).__name__}: {error} (details: {Path(path)})"


if __name__ == "__main__":
    sys.exit(main())
