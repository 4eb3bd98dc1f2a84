"""``triton-gateway history``: show who changed what and when."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from deploy.cli.commands._options import DURATION, OpenRegistry, registry_options
from deploy.controller.history import changes, recorder
from deploy.controller.history.changes import Entry
from deploy.controller.history.recorder import History


@click.command(name="history")
@click.option(
    "--endpoint", help="Show only changes to this endpoint, e.g. `sentiment`: its versions, weights, rule and shadow."
)
@click.option(
    "--since", type=DURATION, help="Show only changes up to this old: 30m, 48h.  [default: all that are kept]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@registry_options
def command(endpoint: str | None, since: float | None, as_json: bool, open_registry: OpenRegistry) -> int:
    """Show who changed endpoints, weights, defaults and keys, when, and from what to what. Oldest first.

    Defaults, objectives, shadows, keys and rollouts carry a name: TRITON_GATEWAY_USER, else the user of the machine.

    All other changes are noticed at the controller's next check, whoever made them, and shown as "seen", with the
    ClearML user who last changed the serving Task.

    The kinds: canary (weights), shadow, endpoint, auto-update (rules), metrics, setting (`clearml-serving config`),
    default (the version chosen for a name without a version), objective, key.

    \b
    Examples:
      triton-gateway history
      triton-gateway history --endpoint sentiment --since 48h
      triton-gateway history --json | jq -c '.entries[] | select(.kind == "canary") | [.at, .by, .after]'
    """
    history, named = recorder.read(open_registry()), (endpoint or "").strip("/")
    oldest = time.time() - since if since is not None else 0.0
    shown = [entry for entry in history.entries if entry.at >= oldest and (not named or changes.concerns(entry, named))]
    if as_json:
        content = {"since": history.since or None, "entries": [_json(entry) for entry in shown]}
        click.echo(json.dumps(content, indent=1, ensure_ascii=False))
    else:
        for entry in shown:
            for line in describe(entry):
                click.echo(line)
        click.echo(_summary(shown, history), err=True)
    return 0


def describe(entry: Entry) -> list[str]:
    """Return an entry as text lines."""
    when = f"{_time_of(entry.at)}{' seen' if entry.is_seen else ''}"
    why = f" ({entry.why})" if entry.why else ""
    names = [name for name in sorted({*entry.before, *entry.after}) if entry.before.get(name) != entry.after.get(name)]
    if entry.before and entry.after:
        what = [f"{name}: {_value(entry.before, name)} → {_value(entry.after, name)}" for name in names]
    else:
        one = entry.after or entry.before
        what = [f"{'new' if entry.after else 'removed'}: {', '.join(f'{name} {_value(one, name)}' for name in names)}"]
    restore = [f"      to restore it: {entry.restore}"] if entry.restore else []
    return [
        f"{when}  {entry.kind} {entry.subject}  by {entry.by}{why}",
        *(f"      {line}" for line in what),
        *restore,
    ]


def _value(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name, "–")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _summary(shown: Sequence[Entry], history: History) -> str:
    text = f"{len(shown) or 'no'} {'change' if len(shown) == 1 else 'changes'}"
    return text + (f"; recorded since {_time_of(history.since)}" if history.since else "")


def _json(entry: Entry) -> dict[str, Any]:
    names = ("kind", "subject", "before", "after", "by", "why", "is_seen", "restore")
    return {"at": _time_of(entry.at), **{name: getattr(entry, name) for name in names}}


def _time_of(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
