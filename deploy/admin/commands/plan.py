"""``triton-gateway plan``: compare the serving Task with what a gateway serves, and show faults."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import click

from deploy.admin.commands._options import OpenRegistry, gateway_options, registry_options
from deploy.admin.serving_task import Preview, planned
from deploy.admin.terminal import Terminal
from deploy.tools.errors import DeployError


@click.command(name="plan")
@gateway_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@registry_options
def command(gateway: str, as_json: bool, open_registry: OpenRegistry) -> int:
    """Show what a gateway would change to follow the serving Task, and what it could not serve.

    The exit code is 3 if something in the Task cannot be served, else 0.

    \b
    Example:
      triton-gateway plan --url http://gateway:8080
    """
    from deploy.tools import http_client

    with Terminal(sys.stderr).waiting("reading the serving Task and its models"):
        wanted = planned(open_registry())
    answer = http_client.call_gateway(f"{gateway}/v1/status")
    if answer is None or answer.status != 200 or not isinstance(answer.content, dict):
        raise DeployError(f"no gateway answers at {gateway}", hint="give its address with --url")
    found = changes(wanted, answer.content)
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        signs = {"add": "+", "change": "~", "remove": "-"}
        for change in found["changes"]:
            click.echo(f"{signs[change['what']]} {change['subject']}  {change['how']}".rstrip())
        for fault in found["faults"]:
            click.echo(f"! {fault['subject']}: {fault['message']}")
        if not found["changes"] and not found["faults"]:
            click.echo(f"{gateway} already serves everything in the serving Task")
    return 3 if found["faults"] else 0


def changes(planned: Preview, status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes to a gateway that reports ``status``, and all faults of the Task."""
    serving = {str(e["url"]): str(e.get("model_id") or "") for e in status.get("endpoints", ())}
    contents = {str(e["url"]): str(e.get("content") or "") for e in status.get("endpoints", ())}
    wanted = {url: endpoint.model_id for url, endpoint in planned.endpoints.items()}
    found = []
    for url in sorted({*serving, *wanted}):
        if url not in serving:
            found.append({"what": "add", "subject": url, "how": wanted[url] or "code only"})
        elif url not in wanted:
            found.append({"what": "remove", "subject": url, "how": ""})
        elif serving[url] != wanted[url]:
            found.append({"what": "change", "subject": url, "how": f"{serving[url] or '-'} → {wanted[url] or '-'}"})
        elif contents[url] and contents[url] != planned.endpoints[url].content:
            found.append({"what": "change", "subject": url, "how": "its files, code or options"})
    now = {str(name): {str(u): float(s) for u, s in shares.items()}
           for name, shares in dict(status.get("canaries", {})).items()}  # fmt: skip
    for name in sorted({*planned.routes, *now}):
        before, after = _shown(now.get(name)), _shown(planned.routes.get(name))
        if before != after:
            what = "add" if name not in now else "remove" if name not in planned.routes else "change"
            found.append({"what": what, "subject": f"canary {name}", "how": f"{before or '-'} → {after or '-'}"})
    faults = [{"subject": f.subject, "message": f.message} for f in (*planned.faults, *planned.missing)]
    return {"changes": found, "faults": faults}


def _shown(shares: Mapping[str, float] | None) -> str:
    return ", ".join(f"{share:.1%} {url}" for url, share in sorted((shares or {}).items()) if share > 0)
