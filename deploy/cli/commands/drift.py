"""``triton-gateway drift``: capture reference distributions, and report which variables have drifted."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from deploy.cli.commands import status
from deploy.cli.commands._options import DURATION, chosen_state_dir, gateway_options
from deploy.controller import counters
from deploy.controller.counters import Numbers
from deploy.controller.drift import references
from deploy.tools import http_client
from deploy.tools.errors import DeployError
from deploy.tools.terminal import Terminal, table
from gateway import durable
from gateway.file_names import file_name
from gateway.metrics import drift, variables


@click.group(name="drift")
def command() -> None:
    """Detect drift: compare current requests and answers with a reference from when the model was good."""


@command.command()
@gateway_options
@click.option("--endpoint", required=True, help="Endpoint whose traffic becomes the reference: NAME or NAME/VERSION.")
@click.option("--duration", type=DURATION, default="0s",
              help="Count only requests that arrive within this time from now.  [default: all since the gateway "
              "started]")  # fmt: skip
@click.option(
    "--least", default=1000, show_default=True, help="Refuse to make a reference from fewer values than this."
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False),
              help="File to write.  [default: in the state directory, where its gateway finds it]")  # fmt: skip
def capture(
    gateway: str, endpoint: str, duration: float, least: int, output: Path | None
) -> int:  # fmt: skip
    """Make the reference distributions of one version, from live traffic.

    For the reference of a data set, send its texts yourself while --duration counts. Of several gateways, one is
    enough: its share of the requests is like the others'.

    A reference takes effect in one of two ways. In the folder `references` of their state folder, gateways load it at
    their next check. As `reference.json` in the model's folder, it is published with the model.

    \b
    Examples:
      triton-gateway drift capture --endpoint sentiment/1 --duration 10m
      triton-gateway drift capture --endpoint sentiment/1 --output my-model-folder/reference.json
    """
    terminal, url = Terminal(sys.stderr), endpoint.strip("/")
    before: Numbers = {}
    if duration:
        before = _read(gateway)
        _named(before, url)  # said before the command waits
        while (left := duration - terminal.elapsed()) > 0:
            terminal.live(f"counting live requests for {left:.0f} s more", topic="counting")
            time.sleep(min(1.0, left))
    now = _grown(_read(gateway), before)
    of = _named(now, url)
    url, found = _url(*of), of_counts(now, *of)
    is_learned = bool({variables.UNUSUAL, variables.COSINE} & found.keys())
    words, mean = _learned(gateway, url) if is_learned else ((), ())
    _write(url, found, words, mean, least=least, output=output)
    return 0


def _write(
    url: str, found: Mapping[str, drift.Bins], words: Sequence[str], mean: Sequence[float], *, least: int,
    output: Path | None,
) -> None:  # fmt: skip
    """Write the references that have enough values: of words only with the words, of embeddings with their mean."""
    enough = {
        name: bins for name, bins in sorted(found.items())
        if sum(bins.values()) >= least and (words or name != variables.UNUSUAL)
        and (mean or name != variables.COSINE)
    }  # fmt: skip
    if not enough:
        most = max((sum(bins.values()) for bins in found.values()), default=0)
        raise DeployError(
            f"no variable of {url} has more than {most:.0f} values; {least} are needed" if found
            else f"no variable of {url} has been counted",
            hint="send more requests, wait longer, or use a lower --least. Text tasks have built-in variables; declare "
            "others with `clearml-serving metrics add`",
        )  # fmt: skip
    learned = tuple(words if variables.UNUSUAL in enough else ()), tuple(mean if variables.COSINE in enough else ())
    text = drift.encode(drift.Reference(enough, *learned), endpoint=url)
    *above, last = url.split("/")
    below = Path(*map(file_name, above), f"{file_name(last)}.json")
    path = output or chosen_state_dir().root / "references" / below
    try:
        durable.replace(path, text, mode=0o644)
    except OSError as error:
        raise DeployError(f"{path} cannot be written: {error}") from error
    for name, bins in enough.items():
        click.echo(f"{name}: {sum(bins.values()):.0f} values in {len(bins)} bins")
    if words:
        click.echo(f"{len(words)} usual words")
    click.echo(f"written to {path}; gateways read the folder references of their state folder at each poll", err=True)


@command.command()
@gateway_options
@click.option("--endpoint", help="Report on this NAME or NAME/VERSION only.  [default: all that are judged]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def report(gateway: str, endpoint: str | None, as_json: bool) -> int:
    """Show each variable that the controller judges: what all gateways counted in about the last hour, and its verdict.

    EVIDENCE: chance alone gives this much or more at most once in so many days. STATE: `drift` (the endpoint's mean
    evidence is 30 or more, and this variable's as well), `moved` (only this variable's), `steady`, or `too few` (a
    share of one half would have to move further than VISIBLE says). MOVED: the bins whose share in the last hour
    differs most from the reference's.

    The exit code is 3 if something has drifted, else 0.

    \b
    Examples:
      triton-gateway drift report --endpoint sentiment/2
      triton-gateway drift report --json | jq .
    """
    every = status.asked(gateway).get("drift", [])
    rows = [row for row in every if _is_of(row["endpoint"], row["version"], endpoint)]
    if every and not rows:
        known = ", ".join(sorted({_url(row["endpoint"], row["version"]) for row in every}))
        raise DeployError(f"no variable of {endpoint} is judged", hint=f"variables of {known} are")
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
    elif not rows:
        click.echo(
            "nothing is judged: that takes a controller, and a reference (`triton-gateway drift capture`)", err=True
        )
    else:
        head = ["ENDPOINT", "VERSION", "VARIABLE", "N", "EVIDENCE", "VISIBLE", "MOVED", "STATE"]
        shown = [
            [row["endpoint"], row["version"] or "-", row["variable"], f"{row['n']:.0f}", f"{row['days']:,.1f}",
             f"{row['visible']:.1%}", _moved(row), row["state"]]
            for row in rows
        ]  # fmt: skip
        for line in table(head, shown):
            click.echo(line)
    return 3 if any(row["state"] == "drift" for row in rows) else 0


def _moved(row: Mapping[str, Any]) -> str:
    """Return the three bins whose share differs most from the reference's, by a hundredth or more."""
    by = {name: count / max(row["n"], 1) - then
          for name, count, then in zip(row["bins"], row["counts"], row["reference"], strict=True)}  # fmt: skip
    most = [name for name in sorted(by, key=lambda name: -abs(by[name])) if row["n"] and abs(by[name]) >= 0.01][:3]
    return ", ".join(f"{name} {by[name]:+.1%}" for name in most) or "-"


def _read(gateway: str) -> Numbers:
    text = http_client.fetch_from_gateway(f"{gateway}/metrics")
    if text is None:
        raise DeployError(
            f"{gateway}/metrics cannot be read",
            hint="check that the gateway runs, that --url is its address, and that TRITON_GATEWAY_KEY has the right "
            "`metrics`",
        )
    return counters.parse(text)


def of_counts(numbers: Numbers, endpoint: str, version: str) -> dict[str, drift.Bins]:
    """Return a reference of each variable of one version that has values."""
    found: dict[str, drift.Bins] = {}
    for key, counts in references.variables(numbers).items():
        if key[:2] == (endpoint, version):
            with contextlib.suppress(drift.BadReference):  # it was only missing
                found[key[2]] = drift.reference_of(counts)
    return found


def _learned(gateway: str, url: str) -> tuple[Sequence[str], Sequence[float]]:
    """Return the usual words and the mean vector that a gateway counts one version with; empty if it does not say."""
    answer = http_client.call_gateway(f"{gateway}/v1/endpoints/{urllib.parse.quote(url)}/learned", timeout=30.0)
    found: Any = answer.content if answer is not None and answer.status == 200 else {}
    return found.get("words", ()), found.get("mean", ())


def _grown(now: Numbers, before: Numbers) -> Numbers:
    """Return what was counted between two readings. A counter that fell was reset: its whole value counts."""
    return {key: value - before.get(key, 0.0) * (value >= before.get(key, 0.0)) for key, value in now.items()}


def _named(numbers: Numbers, url: str) -> tuple[str, str]:
    """Return the version that ``url`` names, as metrics do: ``NAME/VERSION``, or NAME if it has one version only."""
    known = sorted({(key[1], key[2]) for key in numbers if key[1]})
    meant = [one for one in known if _url(*one) == url] or [one for one in known if one[0] == url]
    if len(meant) > 1:
        raise DeployError(
            f"{url} has several versions: {', '.join(_url(*one) for one in meant)}", hint="name one of them"
        )
    if not meant:
        shown = ", ".join(_url(*one) for one in known) or "no version yet"
        raise DeployError(f"nothing was counted for {url}", hint=f"counted: {shown}; name one with --endpoint")
    return meant[0]


def _is_of(endpoint: str, version: str, asked: str | None) -> bool:
    return asked is None or asked.strip("/") in (endpoint, _url(endpoint, version))


def _url(endpoint: str, version: str) -> str:
    return f"{endpoint}/{version}" if version else endpoint
