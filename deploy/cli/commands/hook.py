"""``triton-gateway hook``: test a ``Preprocess`` class on this machine."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import click

from deploy.cli.commands._options import DURATION
from deploy.tools.errors import DeployError
from gateway.errors import OF_CALLERS, GatewayError

_REFUSED = 3
"""Exit code if the class refuses the body."""


@click.group(name="hook")
def command() -> None:
    """Test a Preprocess class on this machine."""


@command.command(name="test", short_help="Run a Preprocess class on one body.")
@click.argument("code", type=click.Path(path_type=Path))
@click.option(
    "--body", required=True, metavar="JSON|@FILE|-",
    help="The request: JSON, `@` and a file, or `-` for standard input. A file that is not .json is passed as bytes.",
)  # fmt: skip
@click.option(
    "--bundle", type=click.Path(path_type=Path, exists=True), default=None,
    help="The model's file or folder, passed to load().",
)  # fmt: skip
@click.option(
    "--engine", default="", metavar="ENGINE",
    type=click.Choice(["", "triton", "custom", "custom_async", "sklearn", "xgboost", "lightgbm"]),
    help="Engine that the class is written for; of `triton`, only preprocess is run.  [default: guessed from code and "
    "bundle]",
)  # fmt: skip
@click.option("--timeout", type=DURATION, default="60s", show_default=True, help="Time limit of the request.")
def test(code: Path, body: str, bundle: Path | None, engine: str, timeout: float) -> int:
    """Run a Preprocess class on one request, in a process as in a gateway, and show the answer and each stage's time.

    If the class fails, its file and line are named. The exit code is 1 if the class fails, 3 if it refuses the body
    (ValueError), else 0.

    \b
    Examples:
      triton-gateway hook test preprocess.py --body '{"x0": 1, "x1": 2}'
      triton-gateway hook test preprocess.py --bundle ./model.pkl --body @request.json
    """
    from gateway import trial

    asked = trial.Trial(code, _body(body), engine, bundle, timeout=timeout)
    try:
        report = asyncio.run(trial.run(asked))
    except GatewayError as fault:
        is_refusal = fault.kind in OF_CALLERS
        click.echo(f"{'refused' if is_refusal else 'failed'}: {fault.message}", err=True)
        if fault.hint:
            click.echo(f"  {fault.hint}", err=True)
        return _REFUSED if is_refusal else 1
    click.echo(f"{code} as engine {report.engine}, loaded in {report.loading_s:.2f} s", err=True)
    if report.note:
        click.echo(f"  {report.note}", err=True)
    for name, spent in report.stages:
        click.echo(f"  {name:12} {spent:9.3f} ms", err=True)
    for name, value in report.statistics.items():
        click.echo(f"  statistics   {name} = {value}", err=True)
    click.echo(report.content(), nl=False)
    return 0


def _body(text: str) -> object:
    if text == "-":
        raw, name = sys.stdin.buffer.read(), "standard input"
    elif text.startswith("@"):
        name = text[1:]
        try:
            raw = Path(name).read_bytes()
        except OSError as error:
            raise DeployError(f"--body: {name} cannot be read ({error.strerror})") from error
        if Path(name).suffix != ".json":
            return raw
    else:
        raw, name = text.encode(), "--body"
    try:
        return json.loads(raw)
    except ValueError as error:
        raise DeployError(
            f"{name} is not JSON: {error}", hint="""quote it for the shell: --body '{"text": "…"}'"""
        ) from error
