"""``triton-gateway canary``: set weights by hand, or roll a version out step by step behind the statistical gate."""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import click

from deploy.cli import new_rollout, rollout_request, until_live
from deploy.cli.commands import shadow
from deploy.cli.commands._options import DURATION, OpenRegistry, gateways_options, registry_options, stop_on_signal, who
from deploy.controller.rollouts import record
from deploy.controller.rollouts.record import Request
from deploy.controller.rollouts.steps import Decision, Rollout
from deploy.tools.errors import DeployError
from deploy.tools.terminal import Terminal, table
from gateway import preview
from gateway.registry import RegistryWriter

_ENDPOINT = click.option(
    "--endpoint", required=True,
    help="Name of the endpoint, e.g. `sentiment` (its versions are `sentiment/1`, `sentiment/2`).",
)  # fmt: skip


@click.group(name="canary")
def command() -> None:
    """Split requests between versions: set weights, mirror requests, or roll a version out step by step.

    \b
    Examples:
      triton-gateway canary set --endpoint sentiment 2=10 1=90
      triton-gateway canary run --endpoint sentiment --to 2
      triton-gateway canary shadow --endpoint sentiment --to 2 --percent 5
      triton-gateway canary status
    """


@command.command(name="set")
@_ENDPOINT
@click.argument("weights", nargs=-1, required=True, metavar="VERSION=WEIGHT…")
@registry_options
def set_(endpoint: str, weights: tuple[str, ...], open_registry: OpenRegistry) -> int:
    """Set fixed weights for the versions of an endpoint: `2=10 1=90`. Weights are normalised.

    Put the newest version first. With routing keys, its callers then stay with it while its weight grows. Weights that
    a gateway could not use are refused and change nothing.
    """
    endpoint = endpoint.strip("/")
    store = open_registry()
    task = store.task()
    serving = store.spec()
    shares = [(serving.url_of(endpoint, version), weight) for version, weight in map(_pair, weights)]
    rollout = record.read(task, endpoint)
    if rollout is not None and not rollout.is_over:
        raise DeployError(
            f"a rollout of {endpoint} is {rollout.phase}",
            hint=f"abort it first: `triton-gateway canary abort --endpoint {endpoint}`",
        )
    preview.check_weights(serving, endpoint, shares)
    store.write(record.with_weights(task, endpoint, dict(shares)))
    total = sum(weight for _, weight in shares)
    click.echo(f"{endpoint}: " + ", ".join(f"{weight / total:.1%} {url}" for url, weight in shares))
    return 0


@command.command(name="run")
@_ENDPOINT
@click.option("--to", "to", help="The new version, e.g. `2`. Leave it out to follow a rollout that runs already.")
@click.option("--from", "from_", help="The stable version.  [default: the one that answers most requests now]")
@click.option("--steps", default="1,5,25,50,100", show_default=True,
              help="The canary's share of the requests at each step, in percent.")  # fmt: skip
@click.option(
    "--min-requests", default=200, show_default=True, type=click.IntRange(1),
    help="Number of requests that each step compares at least, of the canary and of the stable version.",
)  # fmt: skip
@click.option("--step-time", type=DURATION, default="60s", show_default=True, help="Minimum length of a step.")
@click.option(
    "--slower", type=click.FloatRange(0, 1000), default=10.0, show_default=True, metavar="PERCENT",
    help="How much slower than the stable version the new one may be.",
)  # fmt: skip
@click.option(
    "--label-shift", type=click.FloatRange(0, 100, max_open=True), default=10.0, show_default=True, metavar="POINTS",
    help="Roll back if the share of any label changes by more than this many percentage points, or falls below a "
    "quarter: a class that is never answered. 0 turns this comparison off.",
)  # fmt: skip
@click.option(
    "--mirror", type=click.FloatRange(0, 100), metavar="PERCENT",
    help="Share of the stable version's requests that are also sent to the new version, to compare both answers. "
    "Callers never see the second answer. 0 turns mirroring off.  [default: 10 for classifiers and embeddings "
    "without `Preprocess` code; else 0]",
)  # fmt: skip
@click.option(
    "--other-answers", type=click.FloatRange(0, 100, min_open=True, max_open=True), default=10.0, show_default=True,
    metavar="PERCENT", help="Share of the mirrored requests that the new version may answer differently, or fail. Of a "
    "group (requests with one label of the stable version, of one length, in one language) twice as many, at least "
    "30 %.",
)  # fmt: skip
@click.option(
    "--new-labels", is_flag=True, help="Allow the new version's labels to have other names or another order. A new "
    "name means the label that the stable version has at its position; a name that both have means itself.",
)  # fmt: skip
@gateways_options
@registry_options
def run(
    endpoint: str, to: str | None, from_: str | None, gateways: tuple[str, ...], open_registry: OpenRegistry,
    **given: Any,
) -> int:  # fmt: skip
    """Roll a version out: raise its share of the requests step by step, and roll back if it is worse.

    The gate compares errors, latency and labels of both versions while both answer. If requests are mirrored, it also
    compares both answers to the same request. It waits if there are too few requests, holds if data is missing, and
    neither grows nor rolls back if the evidence is unclear.

    The controller carries the rollout out, from the first step to the end, and looks at the gateways that it knows.
    This command asks it to and shows the progress. You can interrupt it: the rollout goes on, and you can follow,
    promote or abort it from any machine. Weights that somebody else sets meanwhile end it.

    The exit code is 0 if the version was promoted, 3 if it ended otherwise, 130 if you interrupted it.
    """
    endpoint = endpoint.strip("/")
    store = open_registry()
    wanted = None
    if not rollout_request.runs(store, endpoint, to):
        fresh = new_rollout.planned(store.spec(), endpoint, str(to), from_, _served(gateways), **given)
        wanted = Request(uuid.uuid4().hex, "run", who(), fresh)
        rollout_request.ask(store, endpoint, wanted)
    return _follow(store, endpoint, wanted)


def _served(gateways: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the versions of gateways' status. Says so if there are none."""
    found = [one for address in gateways for one in (until_live.status_of(address) or {}).get("endpoints") or ()]
    if not found:
        click.echo(
            f"no gateway at {', '.join(gateways)} shows its versions: the order of labels is not checked, and answers "
            "are not compared on mirrored requests. Name a gateway with --url, or give --mirror", err=True,
        )  # fmt: skip
    return found


def _follow(store: RegistryWriter, endpoint: str, wanted: Request | None) -> int:
    """Show the progress of a rollout until it ends, or until the person interrupts; return the exit code."""
    terminal, stop, rollout = Terminal(sys.stderr), stop_on_signal(), None
    for progress in rollout_request.followed(store, endpoint, wanted, stop.wait):
        rollout = progress.rollout
        for decision in progress.decisions:
            _print_decision(decision)
        if rollout is None or not rollout.is_over:
            terminal.live(progress.in_words(), topic=progress.topic())
    if rollout is None or not rollout.is_over:
        click.echo(
            f"interrupted here; a controller carries the rollout on: triton-gateway canary status --endpoint {endpoint}"
            " shows it, `run` follows it again, `abort` ends it", err=True,
        )  # fmt: skip
        return 130
    if rollout.phase == "refused":
        raise DeployError(rollout.why)
    if back := rollout.way_back:
        click.echo(f"the way back: {back}")
    return 0 if rollout.phase == "promoted" else 3


@command.command(name="status")
@click.option("--endpoint", help="Show only this endpoint, with its history.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@registry_options
def status(endpoint: str | None, as_json: bool, open_registry: OpenRegistry) -> int:
    """Show all rollouts and who guards them. With --endpoint, also show every decision; --json has its evidence."""
    now, task = time.time(), open_registry().task()
    found = [
        one for name, one in record.rollouts(task).items() if endpoint is None or name == endpoint.strip("/")
    ]  # fmt: skip
    if as_json:
        click.echo(json.dumps([
            {**one.to_json(), "guard": _guard(one, now), "evidence": one.gate.describe()} for one in found
        ], indent=2))  # fmt: skip
        return 0
    rows = [[one.endpoint, one.canary, one.stable, f"{one.weight:g} %", one.phase, one.state,
             rollout_request.number(one.gate.evidence), _guard(one, now), one.why] for one in found]  # fmt: skip
    heads = ["ROUTE", "CANARY", "STABLE", "WEIGHT", "PHASE", "STATE", "EVIDENCE", "GUARD", "WHY"]
    for line in table(heads, rows) if rows else ["no rollout" if endpoint is None else f"no rollout of {endpoint}"]:
        click.echo(line)
    for name in record.requests(task):
        wanted = record.request(task, name)
        if wanted is not None and record.is_waiting(wanted, record.read(task, name)):
            click.echo(f"{name}: `canary {wanted.command}` of {wanted.who} waits for a controller")
    for one in found:
        for decision in one.history if endpoint is not None else ():
            _print_decision(decision)
        if back := one.way_back:
            click.echo(f"{one.endpoint}: the way back: {back}")
    return 0


def _guard(rollout: Rollout, now: float) -> str:
    """Return who looks after a rollout; ``-`` if it has ended."""
    return "-" if rollout.is_over else rollout.guard if now < rollout.guarded_until else "nobody"


def _order(name: str, what: str) -> None:
    @command.command(name=name, help=what)
    @_ENDPOINT
    @registry_options
    def order(endpoint: str, open_registry: OpenRegistry) -> int:
        endpoint = endpoint.strip("/")
        wanted = Request(uuid.uuid4().hex, name, who())  # type: ignore[arg-type]  # both names are commands
        rollout = rollout_request.carried_out(open_registry(), endpoint, wanted, stop_on_signal().wait)
        if rollout is None:
            nobody = rollout_request.NOBODY
            click.echo(f"{endpoint}: {nobody}. The canary has weight 0 now; its record ends when a controller runs")
        else:
            click.echo(f"{rollout.endpoint}: {rollout.phase}, {rollout.canary} has {rollout.weight:g} %")
        return 0

    del order


_order("promote", "Promote the canary: send all requests to it now, without waiting for evidence.")
_order("abort", "Abort a rollout: send all requests back to the stable version now.")

command.add_command(shadow.command)


def _pair(text: str) -> tuple[str, float]:
    version, equals, weight = text.rpartition("=")
    try:
        if equals:
            return version, float(weight)
    except ValueError:
        pass
    raise DeployError(f"{text!r} is not VERSION=WEIGHT", hint="write for instance `2=10 1=90`")


def _print_decision(one: Decision) -> None:
    clock = time.strftime("%H:%M:%S", time.localtime(one.at))
    click.echo(f"{clock}  {one.weight:5g} %  {one.what}: {one.why}")
