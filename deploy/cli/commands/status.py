"""``triton-gateway status``: show what is served, what would change, or wait until a change is live."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from deploy.cli import until_live
from deploy.cli.commands._options import DURATION, OpenRegistry, gateways_options, registry_options
from deploy.tools.errors import DeployError
from deploy.tools.terminal import table

if TYPE_CHECKING:
    from gateway import preview

_FAILED = ("failed", "refused")
_NAMED = 10
"""Subjects that a line names if many have the same fault; ``--json`` has all."""


@click.command(name="status")
@gateways_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--plan", "plans", is_flag=True, help="Show what the gateway would change to follow the serving Task, and what in "
    "the Task cannot be served.",
)  # fmt: skip
@click.option(
    "--wait", "waits", is_flag=True, help="Wait until every gateway serves the current serving Task, including changes "
    "made while it waits, and the name without a version.",
)  # fmt: skip
@click.option(
    "--timeout", type=DURATION, default="120s", show_default=True, envvar="TRITON_GATEWAY_WAIT_TIMEOUT",
    show_envvar=True, help="With --wait: longest time to wait.",
)  # fmt: skip
@registry_options
def command(
    gateways: tuple[str, ...], as_json: bool, plans: bool, waits: bool, timeout: float, open_registry: OpenRegistry
) -> int:
    """Show every endpoint with its versions, model ids and states, and all faults of the configuration.

    The exit code is 0 if everything that is configured is served, 3 if something is not or the configuration cannot be
    read now, and 1 if no gateway answers.

    With --plan it is 3 if something in the serving Task cannot be served, else 0. With --wait it is 0 if the change is
    live, 3 if a version was refused (at once, with the reason) or has failed for ten seconds, 1 if the time is over.

    \b
    Examples:
      triton-gateway status
      triton-gateway status --url http://gateway:8080 --json | jq .
      triton-gateway status --plan --url http://gateway:8080
      triton-gateway status --wait --url http://gateway-1:8080 --url http://gateway-2:8080
    """
    if waits:
        if plans or as_json:
            raise click.UsageError("--wait cannot be used with --plan or --json")
        return until_live.wait(gateways, timeout, open_registry())
    if len(gateways) > 1:
        raise click.UsageError("several --url need --wait")
    return _plan(gateways[0], open_registry, as_json=as_json) if plans else _status(gateways[0], as_json=as_json)


def _status(gateway: str, *, as_json: bool) -> int:
    content = asked(gateway)
    if as_json:
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        for line in describe(gateway, content):
            click.echo(line)
    return 0 if all_is_well(content) else 3


def _plan(gateway: str, open_registry: OpenRegistry, *, as_json: bool) -> int:
    from gateway import preview

    store = open_registry()
    wanted = preview.preview(store, store.spec())
    found = changes(wanted, asked(gateway))
    for line in [json.dumps(found, indent=2, ensure_ascii=False)] if as_json else described(gateway, found):
        click.echo(line)
    return 3 if found["faults"] else 0


def asked(gateway: str) -> Mapping[str, Any]:
    """Return the gateway's status. Raises ``DeployError``."""
    found = until_live.status_of(gateway)
    if found is None:
        raise DeployError(
            f"no gateway answers at {gateway}",
            hint="start one with `triton-gateway up`, or give the address of another with --url",
        )
    return found


def all_is_well(gateway: Mapping[str, Any]) -> bool:
    """Return True if everything that is configured is served, as far as the registry could be asked."""
    return (
        bool(gateway.get("ready"))
        and all(gateway.get("triton", {}).values())
        and not gateway.get("faults")
        and not gateway.get("pending")
        and all(e.get("state", "serving") == "serving" for e in gateway.get("endpoints", ()))
        and not (gateway.get("registry") or {}).get("error")
        and not any((e.get("successor") or {}).get("state") in _FAILED for e in gateway.get("endpoints", ()))
    )


def describe(address: str, gateway: Mapping[str, Any]) -> list[str]:
    """Return the status as text lines."""
    because = "; ".join(str(reason) for reason in gateway.get("not_ready_because", []))
    lines = [f"{address}  {'ready' if gateway.get('ready') else f'not ready: {because}'}"]
    lines += _stale(gateway)
    lines += [f"Triton at {where} does not answer" for where, up in gateway.get("triton", {}).items() if not up]
    rows = [[*(str(e.get(key) or "-") for key in ("url", "model_id", "model_name")), _state(e)]
            for e in gateway.get("endpoints", [])]  # fmt: skip
    rows += [[str(p.get("url")), "-", "-", str(p.get("state"))] for p in gateway.get("pending", [])]
    lines += table(["ENDPOINT", "MODEL ID", "MODEL", "STATE"], rows) if rows else ["no endpoint is configured"]
    lines += _grouped((str(p.get("url")), f"{p.get('state')}: {p.get('reason')}") for p in gateway.get("pending", []))
    for name, shares in dict(gateway.get("canaries", {})).items():
        weighted = [url for url, share in dict(shares).items() if share]
        is_over = len(weighted) == 1 < len(shares)
        lines.append(f"canary {name}: " + (f"finished, {weighted[0]} answers all" if is_over else json.dumps(shares)))
    lines += [_shadow(name, one) for name, one in dict(gateway.get("shadows", {})).items()]
    lines += [_rollout(one) for one in gateway.get("rollouts", ()) if one.get("phase") == "running"]
    served = {str(e.get("url")) for e in gateway.get("endpoints", [])}
    for name, url in dict(gateway.get("defaults", {})).items():
        lines.append(f"default version of {name}: {url}{'' if url in served else ', which is not served'}")
    lines += [
        f"lost {one['endpoint']}: another ClearML client wrote back a copy of the Task that it had read before; if it "
        f"was not removed on purpose: {one['restore']}"
        for one in gateway.get("lost", [])
    ]
    faults = [(str(fault.get("subject")), str(fault.get("message"))) for fault in gateway.get("faults", [])]
    return [*lines, *(f"fault in {line}" for line in _grouped(faults))]


def _shadow(name: str, one: Mapping[str, Any]) -> str:
    state = "" if one.get("is_on") else ", which is not served yet"
    failure = f" (last failure: {one['last_failure']})" if one.get("last_failure") else ""
    return f"shadow {name}: {one['percent']:g} % to {one['to']}{state}{failure}"


def _rollout(one: Mapping[str, Any]) -> str:
    guard = f"guarded by {one['guard']}" if one.get("guard") else "nobody guards it"
    return f"rollout {one['endpoint']}: {one['canary']} has {one['weight']:g} %, {one['phase']}, {guard}: {one['why']}"


def _grouped(told: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each text, after the subjects that it was told of."""
    subjects: dict[str, list[str]] = {}
    for subject, text in told:
        subjects.setdefault(text, []).append(subject)
    return [
        f"{', '.join(found[:_NAMED])}{f' and {len(found) - _NAMED} more' if len(found) > _NAMED else ''}: {text}"
        for text, found in subjects.items()
    ]


def _stale(gateway: Mapping[str, Any]) -> list[str]:
    """Return a line if the gateway cannot read the configuration that it follows."""
    registry = gateway.get("registry") or {}
    if not registry.get("error") or not gateway.get("spec_revision"):
        return []  # a gateway that has read none yet is not ready, and says why
    at = registry.get("last_contact")
    read = f"read {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(at))}" if at else "saved before this gateway started"
    return [f"the configuration may be out of date ({read}): {registry['error']}"]


def _state(endpoint: Mapping[str, Any]) -> str:
    successor = endpoint.get("successor")
    state = str(endpoint.get("state") or "-")
    return f"{state}; its new version is {successor.get('state')}: {successor.get('reason')}" if successor else state


def changes(planned: preview.Preview, status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes to a gateway that reports ``status``, and all faults of the Task."""
    now = {str(e["url"]): str(e.get("model_id") or "") for e in status.get("endpoints", ())}
    now |= _canaries(status.get("canaries", {}))
    then = {**planned.models, **_canaries(planned.routes)}
    found = []
    for subject in sorted({*now, *then}, key=lambda one: (one.startswith("canary "), one)):
        if subject not in now:
            found.append({"what": "add", "subject": subject, "how": then[subject] or "code only"})
        elif subject not in then:
            found.append({"what": "remove", "subject": subject, "how": ""})
        elif now[subject] != then[subject]:
            how = f"{now[subject] or '-'} → {then[subject] or '-'}"
            found.append({"what": "change", "subject": subject, "how": how})
    faults = [{"subject": f.subject, "message": f.message} for f in planned.faults]
    return {"changes": found, "faults": faults}


def _canaries(routes: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Return the shares of each canary in words."""
    return {
        f"canary {name}": ", ".join(f"{share:.1%} {url}" for url, share in sorted(shares.items()) if share > 0)
        for name, shares in routes.items()
    }


def described(gateway: str, found: Mapping[str, Any]) -> list[str]:
    """Return the result of ``changes`` to the gateway at an address as text lines."""
    signs = {"add": "+", "change": "~", "remove": "-"}
    lines = [f"{signs[one['what']]} {one['subject']}  {one['how']}".rstrip() for one in found["changes"]]
    lines += [f"! {fault['subject']}: {fault['message']}" for fault in found["faults"]]
    return lines or [f"{gateway} already serves everything in the serving Task"]
