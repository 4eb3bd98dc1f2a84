"""``triton-gateway plan``: the serving Task against what a gateway serves: what would change, what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from deploy.admin.commands._options import OpenRegistry, gateway_options, registry_options
from deploy.tools.errors import DeployError

if TYPE_CHECKING:
    from gateway.control.compile import Plan


@click.command(name="plan")
@gateway_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
@registry_options
def command(gateway: str, as_json: bool, open_registry: OpenRegistry) -> int:
    """Compile the serving Task as a gateway would, and compare with what a gateway serves now.

    The exit code is 3 when something in the Task cannot be served, else 0.

    \b
    Example:
      triton-gateway plan --url http://gateway:8080
    """
    from deploy.tools import http_client
    from gateway.control.compile import compile_spec
    from gateway.errors import RegistryRefused
    from gateway.registry.contents import namesakes
    from gateway.spec import decode, decode_model

    store = open_registry()
    spec = decode(store.task())
    records, missing = {}, {}
    for model_id in spec.model_ids:
        try:
            records[model_id] = decode_model(store.model(model_id))
        except RegistryRefused:
            missing[model_id] = "is not in the registry"
            continue
        if not records[model_id].has_data:
            missing[model_id] = "has no data: its upload did not finish"
    shared = namesakes(store, records.values())
    compiled = compile_spec(spec, default_triton="", models=records, namesakes=shared)
    answer = http_client.call_gateway(f"{gateway}/v1/status")
    if answer is None or answer.status != 200 or not isinstance(answer.content, dict):
        raise DeployError(f"no gateway answers at {gateway}", hint="name one with --url")
    found = changes(compiled, missing, answer.content)
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        signs = {"add": "+", "change": "~", "remove": "-"}
        for change in found["changes"]:
            click.echo(f"{signs[change['what']]} {change['subject']}  {change['how']}".rstrip())
        for fault in found["faults"]:
            click.echo(f"! {fault['subject']}: {fault['message']}")
        if not found["changes"] and not found["faults"]:
            click.echo(f"{gateway} serves what the serving Task says")
    return 3 if found["faults"] else 0


def changes(plan: Plan, missing: Mapping[str, str], status: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``plan`` would change in a gateway that reports ``status``, and every fault."""
    from gateway.dataplane.routing import canary
    from gateway.errors import SpecFault

    serving = {str(e["url"]): str(e.get("model_id") or "") for e in status.get("endpoints", ())}
    contents = {str(e["url"]): str(e.get("content") or "") for e in status.get("endpoints", ())}
    wanted = {url: endpoint.spec.model_id or "" for url, endpoint in plan.endpoints.items()}
    found = []
    for url in sorted({*serving, *wanted}):
        if url not in serving:
            found.append({"what": "add", "subject": url, "how": wanted[url] or "code only"})
        elif url not in wanted:
            found.append({"what": "remove", "subject": url, "how": ""})
        elif serving[url] != wanted[url]:
            found.append({"what": "change", "subject": url, "how": f"{serving[url] or '-'} → {wanted[url] or '-'}"})
        elif contents[url] and contents[url] != plan.endpoints[url].content:
            found.append({"what": "change", "subject": url, "how": "its files, code or options"})
    routes: dict[str, dict[str, float]] = {}
    for name, rule in plan.spec.canaries.items():
        try:
            routes[name] = canary.weighted(canary.resolve(rule, plan.endpoints)).shares
        except SpecFault:
            continue  # is among the faults
    now = {str(name): {str(u): float(s) for u, s in shares.items()}
           for name, shares in dict(status.get("canaries", {})).items()}  # fmt: skip
    for name in sorted({*routes, *now}):
        before, after = _shown(now.get(name)), _shown(routes.get(name))
        if before != after:
            what = "add" if name not in now else "remove" if name not in routes else "change"
            found.append({"what": what, "subject": f"canary {name}", "how": f"{before or '-'} → {after or '-'}"})
    faults = [{"subject": f.subject, "message": f.message} for f in plan.faults]
    faults += [
        {"subject": f"endpoint {url}", "message": f"model {model_id} {missing[model_id]}"}
        for url, model_id in wanted.items() if model_id in missing
    ]  # fmt: skip
    return {"changes": found, "faults": faults}


def _shown(shares: Mapping[str, float] | None) -> str:
    return ", ".join(f"{share:.1%} {url}" for url, share in sorted((shares or {}).items()) if share > 0)
