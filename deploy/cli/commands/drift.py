"""``triton-gateway drift``: capture reference distributions, and report which variables have drifted."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from deploy.cli import data_rows, drift_counts, drift_data
from deploy.cli.commands._options import DURATION, Group, chosen_state_dir, gateway_options
from deploy.cli.metric_samples import Sample, from_gateway
from deploy.cli.terminal import Terminal, table
from deploy.tools import folders
from deploy.tools.errors import DeployError

_LOADED_S = 30.0
"""Seconds in which a gateway loads a reference: a few polls of the serving Task."""
_MAX_LABELS = 10


def _sources(command: Any) -> Any:
    for option in (
        click.option("--window", default="1h", show_default=True, help="With --prometheus: how far to look back."),
        click.option("--prometheus", envvar="TRITON_GATEWAY_PROMETHEUS", show_envvar=True,
                     help="Address of a Prometheus. Uses the counts of all gateways within --window, instead of one "
                     "gateway's counts since it started."),
    ):  # fmt: skip
        command = option(command)
    return gateway_options(command)


@click.group(name="drift", cls=Group)
def command() -> None:
    """Detect drift: compare current requests and answers with a reference from when the model was good."""


@command.command()
@_sources
@click.option("--endpoint", required=True, help="Endpoint whose traffic becomes the reference.")
@click.option(
    "--version",
    "model_version",
    default="",
    help="Version of the endpoint; leave it out for an endpoint without versions.",
)
@click.option("--duration", type=DURATION, default="0s", show_default=True,
              help="With --url: count only requests that arrive within this time from now.")  # fmt: skip
@click.option(
    "--least", default=1000, show_default=True, help="Refuse to make a reference from fewer values than this."
)
@click.option("--from", "data", type=click.Path(path_type=Path),
              help="Make the reference from a data set instead: a .csv, .tsv, .jsonl, .parquet or .arrow file, or a "
              "folder saved by Hugging Face's `datasets`.")  # fmt: skip
@click.option("--text-column", default="text", show_default=True, help="With --from: name of the text column.")
@click.option("--label-column", help="With --from: name of the column with the correct labels.")
@click.option("--most", default=20_000, show_default=True, type=click.IntRange(1),
              help="With --from: largest number of texts. If there are more, a sample is drawn, the same one every "
              "time.")  # fmt: skip
@click.option("--rate", default=200.0, show_default=True, type=click.FloatRange(0, min_open=True),
              help="With --from: largest number of texts per second sent to the endpoint.")  # fmt: skip
@click.option("--batch", default=16, show_default=True, type=click.IntRange(1, 256),
              help="With --from: number of texts in one request.")  # fmt: skip
@click.option("--without-model", is_flag=True,
              help="With --from: call no gateway. Count only properties of the texts and --label-column.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False),
              help="File to write.  [default: in the state directory, where its gateway finds it]")  # fmt: skip
def capture(
    gateway: str, prometheus: str | None, window: str, endpoint: str, model_version: str, duration: float, least: int,
    data: Path | None, text_column: str, label_column: str | None, most: int, rate: float, batch: int,
    without_model: bool, output: Path | None,
) -> int:  # fmt: skip
    """Make the reference distributions of one version, from live traffic or from a data set.

    With --from, the command sends the texts of a data set (e.g. training or validation data) to the endpoint. The
    gateway's counts become the reference. The gateway counts every caller's requests, so make sure that nobody else
    calls that version meanwhile. Rows without a text are skipped. If you interrupt the command, an earlier reference
    stays as it was.

    A reference takes effect in one of two ways. In the folder `references` of their state folder, gateways load it at
    their next check. As `reference.json` in the model's folder, it is published with the model.

    \b
    Examples:
      triton-gateway drift capture --endpoint sentiment --version 1 --duration 10m
      triton-gateway drift capture --endpoint sentiment --version 1 --prometheus http://prometheus:9090 --window 1d \\
          --output my-model-folder/reference.json
      triton-gateway drift capture --endpoint sentiment --version 1 --from train.csv --text-column review
      triton-gateway drift capture --endpoint sentiment --version 1 --from dataset/train --without-model
    """
    if data is None and without_model:
        raise click.UsageError("--without-model needs --from")
    if data is not None and (prometheus or duration):
        raise click.UsageError("--from cannot be used with --prometheus or --duration")
    if data is not None:
        terminal, empty = Terminal(sys.stderr), list[str]()
        rows = data_rows.texts_of(data_rows.read(data), data, text_column, label_column, empty)
        texts = data_rows.sample(drift_data.counted(rows, terminal), most)
        if empty:
            click.echo(f"rows skipped because they have no text: {len(empty)}, the first: {data} {empty[0]}", err=True)
        if len(texts) < least:
            raise DeployError(
                f"{data} has {len(texts)} texts; {least} are needed", hint="use more data, or a lower --least"
            )
        found: Mapping[str, drift_counts.Bins]
        name, _, number = endpoint.strip("/").rpartition("/")
        if without_model:
            if not model_version and name and number.isdecimal():
                endpoint, model_version = name, number
            found = drift_data.references_of(texts, terminal)
            source = f"{data.name}, without a model"
            if label_column:
                click.echo(f"labels of the data set: {_labels(texts)}. The model must use the same names", err=True)
        else:
            endpoint, model_version, found = _through(gateway, endpoint, model_version, texts, terminal, rate, batch)
            source = f"{data.name}, through a gateway"
        is_of_texts = bool(drift_counts.OF_TEXT & found.keys())
        found = {name: bins for name, bins in found.items() if name != drift_counts.UNUSUAL}
        words = None
        if is_of_texts and (learned := drift_counts.words_of_texts([one.text for one in texts])) is not None:
            words, found[drift_counts.UNUSUAL] = learned
        if is_of_texts and words is None:
            click.echo(
                f"the reference has no words: they need {drift_counts.LEAST_TEXTS:,} texts, and there are only "
                f"{len(texts):,}",
                err=True,
            )
        endpoint = endpoint.strip("/")
        _keep(gateway, found, endpoint, model_version, words, source=source, least=least, output=output)
        if output is None and not without_model:
            _wait_until_loaded(gateway, endpoint, model_version)
        return 0
    before: list[Sample] = []
    if duration and not prometheus:
        _check_served(gateway, endpoint.strip("/"), model_version)
        before = from_gateway(gateway)
        terminal = Terminal(sys.stderr)
        while (left := duration - terminal.elapsed()) > 0:
            terminal.live(f"counting live requests for {left:.0f} s more", topic="counting")
            time.sleep(min(1.0, left))
        terminal.clear()
    samples = drift_counts.difference(_read(gateway, prometheus, window), before)
    endpoint, model_version = _counted(samples, endpoint.strip("/"), model_version)
    found = drift_counts.references(samples, endpoint, model_version)
    source = prometheus or "a gateway's /metrics"
    url = _url(endpoint, model_version)
    words = drift_counts.words(gateway, url) if drift_counts.UNUSUAL in found else None
    _keep(gateway, found, endpoint, model_version, words, source=source, least=least, output=output)
    if output is None and not prometheus:
        _wait_until_loaded(gateway, endpoint, model_version)
    return 0


def _through(
    gateway: str, endpoint: str, version: str, texts: Sequence[data_rows.Text], terminal: Terminal, rate: float,
    batch: int,
) -> tuple[str, str, Mapping[str, drift_counts.Bins]]:  # fmt: skip
    """Send ``texts`` to the endpoint. Return endpoint, version and the references made of the gateway's counts."""
    before = from_gateway(gateway)
    agreed, labelled = drift_data.send(
        gateway, _url(endpoint.strip("/"), version), texts, terminal, rate=rate, batch=batch
    )  # fmt: skip
    after = from_gateway(gateway)
    samples = drift_counts.difference(after, before)
    endpoint, version = _counted(samples, endpoint.strip("/"), version)
    sent = -(-len(texts) // batch)
    more = drift_counts.answered(after, endpoint, version) - drift_counts.answered(before, endpoint, version) - sent
    if more < 0:
        raise DeployError(
            f"{gateway} has counted only {sent + more:.0f} of {sent} requests: another gateway answered the others",
            hint="give --url the address of one gateway, not of a load balancer",
        )
    if more:
        click.echo(
            f"the reference also contains {more:.0f} requests of other callers that came at the same time, besides "
            f"the {sent} of this command. For a reference of your data alone, use a gateway without other traffic",
            err=True,
        )
    if labelled:
        click.echo(
            f"the model's label equals that of the data set for {agreed / labelled:.1%} of {labelled:,} texts", err=True
        )
    if labelled and not agreed:
        click.echo(
            f"the labels of the data set are {_labels(texts)}; check whether the model uses other names", err=True
        )
    found = drift_counts.references(samples, endpoint, version)
    # A gateway examines a hundred texts a second at most; here all of them are examined.
    of_texts = drift_data.references_of([one._replace(label="") for one in texts], terminal)
    return endpoint, version, {**found, **{name: bins for name, bins in of_texts.items() if name in found}}


def _keep(
    gateway: str, found: Mapping[str, drift_counts.Bins], endpoint: str, model_version: str,
    words: drift_counts.Words | None, *, source: str, least: int, output: Path | None,
) -> None:  # fmt: skip
    """Write the references that have enough values.

    Those of word variables are written only with the words, that of embeddings only with their mean.
    """
    enough = {name: bins for name, bins in found.items() if bins.total >= least}
    if not enough:
        most = max((bins.total for bins in found.values()), default=0)
        raise DeployError(
            f"no variable of {_url(endpoint, model_version)} has more than {most:.0f} values; {least} are needed",
            hint="send more requests, wait longer, or use a lower --least",
        )
    if words is None:
        enough.pop(drift_counts.UNUSUAL, None)
    if drift_counts.UNUSUAL not in enough:
        words = None
    mean = drift_counts.mean(gateway, _url(endpoint, model_version)) if drift_counts.COSINE in enough else None
    if mean is None:
        enough.pop(drift_counts.COSINE, None)
    text = drift_counts.encode(enough, words=words, mean=mean, endpoint=endpoint, version=model_version, source=source)
    *folders_of, last = _url(endpoint, model_version).split("/")
    below = Path(*map(folders.file_name, folders_of), f"{folders.file_name(last)}.json")
    path = output or chosen_state_dir().root / "references" / below
    _write(path, text)
    for name, bins in sorted(enough.items()):
        click.echo(f"{name}: {bins.total:.0f} values in {len(bins.names)} bins")
    if words is not None:
        click.echo(f"{len(words.usual)} words of {words.texts:.0f} texts")
    click.echo(f"written to {path}", err=True)


def _wait_until_loaded(gateway: str, endpoint: str, version: str) -> None:
    """Wait until the gateway compares with a reference, so that a report finds it; it reads the folder at each poll."""
    terminal = Terminal(sys.stderr)
    while not any((v.endpoint, v.version) == (endpoint, version) for v in drift_counts.verdicts(from_gateway(gateway))):
        if terminal.elapsed() > _LOADED_S:
            terminal.clear()
            click.echo(
                f"{gateway} has not loaded it in {_LOADED_S:.0f} s. Write it (--output) into the folder "
                "references of its state folder, or into the model's folder as reference.json", err=True,
            )  # fmt: skip
            return
        terminal.live("waiting until the gateway has loaded it", topic="loading")
        time.sleep(0.2)
    terminal.clear()


def _write(path: Path, text: str) -> None:
    """Write a file completely or not at all."""
    try:
        folders.replace_file(path, text, mode=0o644)
    except OSError as error:
        raise DeployError(f"{path} cannot be written: {error}") from error


def _check_served(gateway: str, endpoint: str, version: str) -> None:
    """Raise ``DeployError`` if the endpoint is not served or has several versions, before the command waits."""
    served = drift_counts.served(gateway)
    if served is None:
        return
    meant = [one for one in served if _is_of(*one, endpoint, version or None)]
    if not meant:
        known = ", ".join(_url(*one) for one in served) or "nothing"
        raise DeployError(f"{_url(endpoint, version)} is not served at {gateway}", hint=f"served there: {known}")
    if len(meant) > 1 and (endpoint, "") not in meant:
        raise _several(endpoint, meant)


def _several(endpoint: str, versions: Sequence[tuple[str, str]]) -> DeployError:
    return DeployError(
        f"{endpoint} has several versions: {', '.join(_url(*one) for one in versions)}",
        hint="name one of them with --endpoint",
    )


def _counted(samples: Sequence[Sample], endpoint: str, version: str) -> tuple[str, str]:
    """Return endpoint and version as metrics name them; ``endpoint`` may be a url.

    Raises ``DeployError`` if no variable of it was counted.
    """
    served = {sample.key[:2] for sample in samples if sample.key[0]}
    counted = {sample.key[:2] for sample in samples if sample.key[2]}
    name, _, number = endpoint.rpartition("/")
    if not version and (endpoint, "") not in served and (name, number) in served:
        endpoint, version = name, number
    of_it = sorted(one for one in counted if one[0] == endpoint)
    if not version and (endpoint, "") not in counted and of_it:
        if len(of_it) > 1:
            raise _several(endpoint, of_it)
        [(endpoint, version)] = of_it
    if (endpoint, version) in counted:
        return endpoint, version
    if (endpoint, version) in served:
        raise DeployError(
            f"no variable of {_url(endpoint, version)} has been counted",
            hint="text tasks have built-in variables; declare others with `clearml-serving metrics add`",
        )
    known = ", ".join(sorted(_url(*one) for one in counted)) or "no version yet"
    raise DeployError(
        f"nothing was counted for {_url(endpoint, version)}",
        hint=f"variables were counted for {known}; name one of them with --endpoint",
    )


def _labels(texts: Sequence[data_rows.Text]) -> str:
    """Return the labels of a data set as text, the most frequent first."""
    found = [label for label, _ in Counter(one.label for one in texts).most_common(_MAX_LABELS + 1)]
    return ", ".join(found[:_MAX_LABELS]) + (", …" if len(found) > _MAX_LABELS else "")


def _is_of(endpoint: str, version: str, asked: str | None, of_version: str | None) -> bool:
    """Return True if a version was requested: by endpoint (None: any) and version, or by ``NAME/VERSION``."""
    is_named = asked is None or asked.strip("/") in (endpoint, _url(endpoint, version))
    return is_named and of_version in (None, version)


def _url(endpoint: str, version: str) -> str:
    return f"{endpoint}/{version}" if version else endpoint


@command.command()
@_sources
@click.option("--endpoint", help="Report on this endpoint only.  [default: every endpoint that has a reference]")
@click.option("--version", "model_version", help="With --endpoint: report on this version only.")
@click.option("--compare", metavar="canary|VERSION",
              help="Compare versions that serve at the same time, instead of with a reference: every canary with its "
              "stable version (`canary`), or only those that involve VERSION.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def report(
    gateway: str, prometheus: str | None, window: str, endpoint: str | None, model_version: str | None,
    compare: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Report which variables have drifted from their reference, since when, how certainly, and what changed.

    EVIDENCE: chance alone produces this much evidence at most once in this many days. The alert compares the
    endpoint's mean evidence with 30 days.

    VISIBLE: how far a share of one half must move to be detected within a day.

    STATE: `drift` (the endpoint alarms because of this variable), `moved` (this variable alone would alarm), `steady`,
    or `too few` (not enough values to decide).

    Below the table, for versions that got labels through `/v1/feedback`: the measured and the expected accuracy. The
    exit code is 3 if something has drifted, else 0.

    --compare compares a version that gets a share of the requests with the stable version that answers the others,
    over the same time, instead of with a reference.

    \b
    Examples:
      triton-gateway drift report --endpoint sentiment --version 2
      triton-gateway drift report --prometheus http://prometheus:9090 --window 1d
      triton-gateway drift report --endpoint sentiment --compare canary
      triton-gateway drift report --json | jq .
    """
    if compare is not None:
        if prometheus and click.get_current_context().get_parameter_source("prometheus") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--compare reads from a gateway: leave --prometheus out")
        samples: list[Sample] = []
        versions = _compared(gateway, endpoint, model_version, compare)
        found = [replace(one.verdict, version=f"{one.verdict.version} beside {one.stable}") for one in versions]
        apart = [
            f"{_url(*pair)}: {how}" for pair, of in _pairs(versions) for how in drift_counts.sentences(of).values()
        ]
    else:
        versions, apart, samples = [], [], _read(gateway, prometheus, window)
        every = drift_counts.verdicts(samples)
        found = [v for v in every if _is_of(v.endpoint, v.version, endpoint, model_version)]
        if every and not found:
            known = ", ".join(sorted({_url(v.endpoint, v.version) for v in every}))
            raise DeployError(
                f"no variable of {endpoint or 'any endpoint'} {model_version or ''}".rstrip() + " has a reference",
                hint=f"there are references for {known}; make others with `triton-gateway drift capture`",
            )
    described = [one.described() for one in versions or found]
    if as_json:
        click.echo(json.dumps(described, indent=2, ensure_ascii=False))
    elif not found:
        click.echo("no variable has a reference; make one with `triton-gateway drift capture`", err=True)
    else:
        rows = [
            [v.endpoint, v.version or "-", v.variable, f"{v.n:.0f}", _days(v.evidence.days), _since(v),
             _visible(v.evidence.visible),
             ", ".join(f"{v.named(name)} {by:+.1%}" for name, by in v.moved[:3]) or "-", v.state]
            for v in found
        ]  # fmt: skip
        head = ["ENDPOINT", "VERSION", "VARIABLE", "N", "EVIDENCE", "SINCE", "VISIBLE", "MOVED", "STATE"]
        for line in table(head, rows):
            click.echo(line)
    for line in () if as_json else apart:
        click.echo(line)
    right = [
        drift_counts.accuracy_in_words(one)
        for one in drift_counts.accuracies(samples)
        if _is_of(str(one["endpoint"]), str(one["version"]), endpoint, model_version)
    ]
    for line in () if as_json else right:
        click.echo(f"accuracy {line}")
    return 3 if any(v.state == "drift" for v in found) else 0


def _compared(gateway: str, endpoint: str | None, version: str | None, compare: str) -> list[drift_counts.Compared]:
    """Return the variables of the requested canaries. Raises ``DeployError`` if there are none."""
    every = drift_counts.side_by_side(gateway)
    wanted = {one for one in (version, None if compare == "canary" else compare) if one is not None}
    found = [
        one for one in every
        if any(_is_of(one.verdict.endpoint, of, endpoint, None) for of in (one.verdict.version, one.stable))
        and wanted <= {one.verdict.version, one.stable}
    ]  # fmt: skip
    if not found:
        known = ", ".join(f"{_url(*pair)} beside {of[0].stable}" for pair, of in _pairs(every)) or "none"
        raise DeployError(
            f"no such versions of {endpoint or 'any endpoint'} are compared; compared now: {known}",
            hint="versions are compared while a canary's weights split the requests between them, after 200 values",
        )
    return found


def _pairs(found: Sequence[drift_counts.Compared]) -> list[tuple[tuple[str, str], list[drift_counts.Compared]]]:
    """Return the variables of each canary."""
    return [
        (pair, list(of))
        for pair, of in groupby(found, key=lambda one: (one.verdict.endpoint, one.verdict.version))
    ]  # fmt: skip


def _days(days: float) -> str:
    return "-" if math.isnan(days) else drift_counts.in_days(days)


def _since(verdict: drift_counts.Verdict) -> str:
    if verdict.state not in ("drift", "moved") or math.isnan(verdict.evidence.since):
        return "-"
    return datetime.fromtimestamp(verdict.evidence.since, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _visible(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.1%}"


def _read(gateway: str, prometheus: str | None, window: str) -> list[Sample]:
    return drift_counts.from_prometheus(prometheus, window) if prometheus else from_gateway(gateway)
