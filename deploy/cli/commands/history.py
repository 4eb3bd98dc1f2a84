"""``triton-gateway history``: show who changed what and when."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploy.cli.commands._options import DURATION, OpenRegistry, registry_options
from deploy.tools.errors import DeployError, GatewayError

if TYPE_CHECKING:
    from deploy.controller.history.changes import Entry
    from deploy.controller.history.recorder import History

_KINDS = ("weight", "endpoint", "default", "key", "quota")


@click.command(name="history")
@click.option(
    "--endpoint", help="Show only changes to this endpoint, e.g. `sentiment`: its versions, weights, rule and shadow."
)
@click.option(
    "--since", type=DURATION, help="Show only changes up to this old: 30m, 48h.  [default: all that are kept]"
)
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(_KINDS), help="Show only this kind of change. May be repeated."
)
@click.option(
    "--file", "path", type=click.Path(path_type=Path, dir_okay=False), envvar="TRITON_GATEWAY_KEYS_FILE",
    show_envvar=True, help="Also show the changes that `keys --file` made in this file: keys and quotas.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@registry_options
def command(
    endpoint: str | None, since: float | None, kinds: tuple[str, ...], path: Path | None, as_json: bool,
    open_registry: OpenRegistry,
) -> int:  # fmt: skip
    """Show who changed endpoints, weights, defaults, keys and quotas, when, and from what to what. Oldest first.

    Changes by `triton-gateway` commands (`canary`, `default`, `keys`, `deploy`) and by rollouts carry a
    name: TRITON_GATEWAY_USER, else the user of the machine.

    Changes by `clearml-serving` or in ClearML's web pages carry no name. They are noticed at the controller's next
    check, and shown as "seen", with the ClearML user who last changed the serving Task.

    The kind `default` covers the service's settings (`clearml-serving config`), metrics, and the version chosen for a
    name without a version (`triton-gateway default`).

    \b
    Examples:
      triton-gateway history
      triton-gateway history --endpoint sentiment --since 48h
      triton-gateway history --kind key --kind quota --file keys.json
      triton-gateway history --kind weight --json | jq -r '.entries[] | [.at, .by, .after] | @tsv'
    """
    history, failure = _of_registry(open_registry, path)
    from_file = None if path is None else _of_file(path)
    entries = sorted([*history.entries, *(from_file.entries if from_file else ())], key=lambda entry: entry.order)
    oldest = time.time() - since if since is not None else 0.0
    shown = [entry for entry in entries if entry.at >= oldest and _is_asked(entry, endpoint, kinds)]
    parts = [history, *([from_file] if from_file else [])]
    until = max(one.dropped_until for one in parts)
    if as_json:
        content = {
            "since": history.since or None, "dropped_until": _time_of(until) if until else None,
            "entries": [_json(entry) for entry in shown],
        }  # fmt: skip
        click.echo(json.dumps(content, indent=1, ensure_ascii=False))
    else:
        for entry in shown:
            for line in describe(entry):
                click.echo(line)
        click.echo(_summary(shown, history, until, is_known=not failure), err=True)
    if failure is not None:
        click.echo(f"triton-gateway: the history of the serving Task cannot be read: {failure.message}", err=True)
    return 1 if failure is not None else 0


def describe(entry: Entry) -> list[str]:
    """Return an entry as text lines."""
    when = f"{_time_of(entry.at)}{' seen' if entry.is_seen else ''}"
    why = f" ({entry.why})" if entry.why else ""
    if not entry.before:
        what = f"new: {entry.after}"
    elif not entry.after:
        what = f"removed; was: {entry.before}"
    else:
        what = f"{entry.before}\n      → {entry.after}"
    restore = [f"      to restore it: {entry.restore}"] if entry.restore else []
    return [f"{when}  {entry.kind} {entry.subject}  by {entry.by}{why}", *f"      {what}".splitlines(), *restore]


def _of_registry(open_registry: OpenRegistry, path: Path | None) -> tuple[History, GatewayError | None]:
    from deploy.controller.history import recorder

    try:
        return recorder.read(open_registry()), None
    except GatewayError as error:
        if path is None:
            raise
        return recorder.History(), error


def _of_file(path: Path) -> History:
    from deploy.controller.history import key_file

    try:
        return key_file.read(path)
    except OSError as error:
        raise DeployError(f"{error.filename} cannot be read: {error.strerror}") from error


def _is_asked(entry: Entry, endpoint: str | None, kinds: tuple[str, ...]) -> bool:
    from deploy.controller.history.changes import concerns

    return (not kinds or entry.kind in kinds) and (endpoint is None or concerns(entry, endpoint.strip("/")))


def _summary(shown: Iterable[Entry], history: History, until: float, *, is_known: bool) -> str:
    count = len(list(shown))
    text = f"{count or 'no'} {'change' if count == 1 else 'changes'}"
    if is_known and history.since:
        text += f"; recorded since {_time_of(history.since)}"
    return text + (f"; older changes, made until {_time_of(until)}, were dropped" if until else "")


def _json(entry: Entry) -> dict[str, Any]:
    names = ("kind", "subject", "before", "after", "by", "why", "is_seen", "restore")
    return {"at": _time_of(entry.at), **{name: getattr(entry, name) for name in names}}


def _time_of(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
