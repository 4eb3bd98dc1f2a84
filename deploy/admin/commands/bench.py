"""``triton-gateway bench``: measure rate, latency and stage times of a running endpoint."""

from __future__ import annotations

import json
import os
import random
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from deploy.admin.commands._options import gateway_options
from deploy.admin.http_load import Load, address_of, render
from deploy.admin.metric_samples import from_gateway
from deploy.admin.terminal import Terminal, table
from deploy.tools import http_client
from deploy.tools.errors import DeployError, MissingPart
from deploy.tools.sentences import SENTENCES
from gateway import metrics, spec

_MAX_LOADS: Final = 24
_STAGES: Final = ("prepare", "queue", "infer", "finish")
_BODIES: Final = 5000
_REFUSED: Final = (400, 401, 403, 404, 405, 413, 415, 422)
"""Statuses with which the same request will be refused again."""


@click.command(
    name="bench",
    epilog="The figures describe this machine at this moment. docs/benchmarks.md compares the gateway with its peers.",
)
@gateway_options
@click.option(
    "--endpoint", required=True, help="Endpoint or canary to send load to, with its version if it has one: `e/2`."
)
@click.option("--connections", default="1,16,64", show_default=True,
              help="Closed loop: numbers of connections to try in turn. Each connection sends its next request when "
              "the last one is answered.")  # fmt: skip
@click.option("--rate", default="",
              help="Open loop instead: requests per second to try in turn, sent whether or not answers arrive, over "
              "the largest number of --connections.")  # fmt: skip
@click.option(
    "--seconds", default=5.0, show_default=True, type=click.FloatRange(0.2, 300), help="Seconds of each load."
)
@click.option("--warm-up", default=1.0, show_default=True, type=click.FloatRange(0, 60),
              help="Seconds of load before the first measured one.")  # fmt: skip
@click.option("--texts", type=click.Path(path_type=Path, dir_okay=False, exists=True),
              help="File with one text per line.  [default: sentences in several languages]")  # fmt: skip
@click.option("--bodies", type=click.Path(path_type=Path, dir_okay=False, exists=True),
              help="File with one JSON request body per line, for endpoints that do not take plain text.")  # fmt: skip
@click.option("--remote", is_flag=True, help="Allow load on a gateway that runs on another machine.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the results to this JSON file.",
)
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False),
              help="Also draw latency over rate into this PNG file (needs the extra `plot`).")  # fmt: skip
def command(
    gateway: str, endpoint: str, connections: str, rate: str, seconds: float, warm_up: float,
    texts: Path | None, bodies: Path | None, remote: bool, json_file: Path | None, plot: Path | None,
) -> int:  # fmt: skip
    """Send load to one endpoint and report rate, latency and errors.

    The command prints one line per load: requests per second, latency percentiles measured by the client, and errors.
    It adds two figures from the gateway's metrics: the mean time of each stage and the rows per call to Triton.

    \b
    Examples:
      triton-gateway bench --endpoint minilm
      triton-gateway bench --endpoint sentiment/2 --rate 100,200,400 --texts mails.txt --plot latency.png
    """
    path = spec.normalize_url(endpoint, None)
    try:
        address_of(gateway, anywhere=remote)
    except ValueError as error:
        hint = "--remote allows other machines" if "this machine" in str(error) else "give the address with --url"
        raise DeployError(str(error), hint=hint) from error
    requests = render(
        f"{gateway}/serve/{urllib.parse.quote(path)}", _bodies(texts, bodies), os.environ.get(http_client.KEY, "")
    )
    counts = _numbers("--connections", connections, whole=True)
    rates = _numbers("--rate", rate, whole=False) if rate else []
    loads: list[tuple[int, float]] = [(int(max(counts)), r) for r in rates] or [(int(n), 0.0) for n in counts]
    if plot is not None:
        _require_matplotlib()
    start = 0
    terminal = Terminal(sys.stderr)
    _require_answer(gateway, path, requests[0].partition(b"\r\n\r\n")[2])
    if warm_up:
        terminal.live(f"warming up for {warm_up:g} s")
        _run(gateway, requests, loads[0][0], 0.0, warm_up, start, remote=remote)
        start += len(requests) // 3
    found = []
    for number, (most, per_second) in enumerate(loads, 1):
        before = _counted(gateway)
        terminal.live(f"[{number}/{len(loads)}] sending load for {seconds:g} s")
        outcome = _run(gateway, requests, most, per_second, seconds, start, remote=remote)
        start += len(requests) // (len(loads) + 2)
        cell = {
            "connections": most, "rate": per_second, **outcome, **_stages(before, _counted(gateway), path),
        }  # fmt: skip
        found.append(cell)
        took = f"p50 {cell['p50_ms']:.2f} ms, p99 {cell['p99_ms']:.2f} ms"
        terminal.say(f"[{number}/{len(loads)}] {_name(cell)}: {cell['rps']:.0f} requests/s, {took}")
    for line in table(*_table(found)):
        click.echo(line)
    failed = sum(int(cell["errors"]) for cell in found)
    if json_file is not None:
        json_file.write_text(json.dumps({"url": gateway, "endpoint": path, "loads": found}, indent=1) + "\n")
    if plot is not None:
        _draw(found, path, plot)
    if failed:
        reason = next(str(cell["first_error"]) for cell in found if cell["first_error"])
        click.echo(f"{failed} requests failed; the first: {reason.strip()[:500]}", err=True)
        return 1
    return 0


def _require_answer(gateway: str, path: str, body: bytes) -> None:
    """Send one request. Raises ``DeployError`` if every other one would be refused, too."""
    answer = http_client.call_gateway(f"{gateway}/serve/{urllib.parse.quote(path)}", body=json.loads(body), timeout=60)
    if answer is None or answer.status not in _REFUSED:
        return  # a load shows overload and failures
    content = answer.content if isinstance(answer.content, dict) else {}
    hints = {401: f"set {http_client.KEY} to a key with the right infer"}
    if answer.status in (400, 422):
        hints[answer.status] = "give --bodies, a file of requests that this endpoint takes"
    said = str(content.get("error") or f"status {answer.status}")
    raise DeployError(
        f"{path} refuses the first request: {said}", hint=hints.get(answer.status, str(content.get("hint", "")))
    )


def _bodies(texts: Path | None, bodies: Path | None) -> list[bytes]:
    if texts is not None and bodies is not None:
        raise click.UsageError("give --texts or --bodies, not both")
    if bodies is not None:
        lines = [line for line in bodies.read_bytes().splitlines() if line.strip()]
        for number, line in enumerate(lines, 1):
            try:
                json.loads(line)
            except ValueError as error:
                raise DeployError(f"{bodies}, line {number}, is not JSON: {error}") from error
    elif texts is not None:
        lines = [_body(line) for line in texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    else:
        # The texts differ a little, so that a cache of answers does not answer for the model.
        chooser = random.Random(1)  # noqa: S311 - texts, not secrets
        lines = [
            _body(f"{chooser.choice(SENTENCES)} {chooser.choice(SENTENCES)} {chooser.randrange(1000)}")
            for _ in range(_BODIES)
        ]
    if not lines:
        raise DeployError(f"{texts or bodies} is empty: there is nothing to send")
    return lines


def _body(text: str) -> bytes:
    return json.dumps({"text": text}).encode()


def _numbers(option: str, given: str, *, whole: bool) -> list[float]:
    try:
        numbers = [float(int(part)) if whole else float(part) for part in given.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or len(numbers) > _MAX_LOADS or min(numbers) <= 0:
        raise click.UsageError(f"{option} takes up to {_MAX_LOADS} numbers above 0, separated by commas: 1,16,64")
    return numbers


def _run(
    address: str, requests: Sequence[bytes], connections: int, rate: float, seconds: float, start: int, *, remote: bool
) -> Mapping[str, Any]:
    try:
        load = Load(address, requests, connections=connections, start=start, anywhere=remote)
    except ValueError as error:
        raise DeployError(str(error), hint="see --help") from error
    except OSError as error:
        raise DeployError(
            f"no gateway answers at {address}: {error}",
            hint="start one with `triton-gateway up`, or name it with --url",
        ) from error
    try:
        return (load.open_loop(rate, seconds) if rate else load.closed_loop(seconds)).summary()
    except ConnectionError as error:
        raise DeployError(f"the load ended early: {error}", hint="read the gateway's log") from error
    finally:
        load.close()


def _counted(address: str) -> dict[tuple[str, ...], float]:
    """Return sums and counts of stages and calls, by (metric, url, stage)."""
    wanted = {
        f"{metric.name}_{part}"
        for metric in (metrics.catalog.STAGE_SECONDS, metrics.catalog.BATCH_ROWS)
        for part in ("sum", "count")
    }
    found: dict[tuple[str, ...], float] = {}
    for sample in from_gateway(address):
        if sample.name in wanted:
            endpoint, version, _ = sample.key
            key = (sample.name, f"{endpoint}/{version}" if version else endpoint, sample.labels.get("stage", ""))
            found[key] = found.get(key, 0) + sample.value
    return found


def _stages(
    before: Mapping[tuple[str, ...], float], after: Mapping[tuple[str, ...], float], path: str
) -> dict[str, float]:
    """Return the mean ms of each stage and the mean rows per call; over all versions if ``path`` is a canary."""
    names = {key[1] for key in after}
    mine = {path} if path in names else names

    def grown(metric: str, stage: str = "") -> float:
        keys = [key for key in after if key[0] == metric and key[1] in mine and key[2] == stage]
        return sum(after[key] - before.get(key, 0.0) for key in keys)

    found: dict[str, float] = {}
    for stage in _STAGES:
        count = grown(f"{metrics.catalog.STAGE_SECONDS.name}_count", stage)
        found[f"{stage}_ms"] = (
            grown(f"{metrics.catalog.STAGE_SECONDS.name}_sum", stage) / count * 1000 if count else 0.0
        )
    calls = grown(f"{metrics.catalog.BATCH_ROWS.name}_count")
    found["rows_per_call"] = grown(f"{metrics.catalog.BATCH_ROWS.name}_sum") / calls if calls else 0.0
    return found


def _name(cell: Mapping[str, Any]) -> str:
    return f"{cell['rate']:g}/s" if cell["rate"] else f"{cell['connections']} connections"


def _table(found: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    head = ["load", "requests/s", "p50 ms", "p90 ms", "p99 ms", "max ms", "errors",
            *(f"{stage} ms" for stage in _STAGES), "rows/call"]  # fmt: skip
    keys = ("p50_ms", "p90_ms", "p99_ms", "max_ms")
    rows = [
        [_name(cell), f"{cell['rps']:.0f}", *(f"{cell[key]:.2f}" for key in keys), str(cell["errors"]),
         *(f"{cell[f'{stage}_ms']:.2f}" for stage in _STAGES), f"{cell['rows_per_call']:.1f}"]
        for cell in found
    ]  # fmt: skip
    return head, rows


def _require_matplotlib() -> None:
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingPart(
            "--plot needs matplotlib", hint='run `pip install "triton-gateway[plot]"`, or leave --plot out'
        ) from error
    mpl.use("Agg")


def _draw(found: Sequence[Mapping[str, Any]], path: str, target: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for key, label in (("p50_ms", "p50"), ("p90_ms", "p90"), ("p99_ms", "p99")):
        axes.plot([cell["rps"] for cell in found], [cell[key] for cell in found], marker="o", label=label)
    for cell in found:
        axes.annotate(
            _name(cell), (cell["rps"], cell["p50_ms"]), textcoords="offset points", xytext=(4, -12), fontsize=7
        )
    axes.set(xlabel="answered requests per second", ylabel="latency (ms)", title=f"/serve/{path}")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(target, dpi=120)
    plt.close(figure)
