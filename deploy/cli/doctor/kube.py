"""Checks of a cluster through kubectl: whether both tiers scale, and who may load models.

Only reads, with the caller's own rights; anything that they do not permit to read is a note.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deploy.cli.doctor import Finding, local

_VERSION: Final = (
    "import json, urllib.request as web;print(json.load(web.urlopen('http://127.0.0.1:8000/v2', timeout=3))['version'])"
)
"""Python code that prints the version of the Triton in the same pod; it runs in model sync's container."""

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Runs kubectl against one namespace of one context."""

    namespace: str
    context: str = ""
    program: str = "kubectl"

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Run one command; return exit code (127: no such program, 124: no answer within 30 s), output and error."""
        command = [self.program, *(("--context", self.context) if self.context else ())]
        command += ["--namespace", self.namespace, "--request-timeout=10s", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        except FileNotFoundError:
            return 127, "", f"{self.program} is not installed"
        except subprocess.TimeoutExpired:
            return 124, "", "kubectl did not answer within 30 s"
        return done.returncode, done.stdout, done.stderr

    def json(self, *arguments: str) -> dict[str, Any]:
        """Return the object or list that a command prints; empty if it fails."""
        code, out, _ = self(*arguments, "--output=json")
        try:
            found = json.loads(out) if code == 0 else {}
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def check(kubectl: Kubectl) -> Iterator[Finding]:
    """Check what runs in the namespace. What a cluster lacks before that, Helm says when it installs the chart."""
    ours = "--selector=app.kubernetes.io/name=triton-gateway"
    code, out, error = kubectl("get", "deployments", ours, "--output=json")
    if code:
        remedy = "install kubectl" if code == 127 else "check the context: kubectl config current-context, --context"
        yield Finding("cluster", "missing", _last(error) or "kubectl sees no server", remedy)
        return
    deployments = json.loads(out)["items"]
    if not deployments:
        yield Finding("deployments", "note", f"none in {kubectl.namespace}", "helm install (docs/kubernetes.md)")
        return
    yield from autoscalers(kubectl)
    yield from _open_addresses(kubectl, deployments)


def autoscalers(kubectl: Kubectl) -> Iterator[Finding]:
    """Report what each HPA and ScaledObject of ours says of itself, and deployments that two of them scale."""
    scalers = [(kind, one) for kind in ("horizontalpodautoscalers", "scaledobjects.keda.sh")
               for one in kubectl.json("get", kind).get("items", [])]  # fmt: skip
    by_target: dict[str, list[str]] = {}
    for kind, one in scalers:
        name = str(one["metadata"]["name"])
        subject = f"{'hpa' if kind.startswith('h') else 'scaledobject'}/{name}"
        if not one["metadata"].get("ownerReferences"):  # KEDA makes an HPA of its own for each ScaledObject
            by_target.setdefault(str(one["spec"]["scaleTargetRef"]["name"]), []).append(subject)
        status = one.get("status") or {}
        bad = [said for said in status.get("conditions") or () if said.get("status") == (
            "True" if said.get("type") == "Fallback" else "False")
            and said.get("type") in ("AbleToScale", "ScalingActive", "Ready", "Fallback")
            and said.get("reason") != "ScalingDisabled"]  # fmt: skip
        if bad:
            why = f"{bad[0]['type']} is {bad[0]['status']}: {_last(bad[0].get('message', ''))}"
            yield Finding(subject, "missing", why, f"kubectl describe {subject}; docs/autoscaling.md")
        else:
            yield Finding(subject, "ok", "scales")
    for target, found in by_target.items():
        if len(found) > 1:
            yield Finding(
                f"autoscaler of {target}", "missing", f"{' and '.join(found)} both scale it, so none of them works",
                f"delete one: kubectl -n {kubectl.namespace} delete {found[-1]}",
            )  # fmt: skip


def _open_addresses(kubectl: Kubectl, deployments: Sequence[Object]) -> Iterator[Finding]:
    """Check from model sync's container whether its Triton loads models without a key, and which version it is."""
    # by label: names differ by release
    labels = {str(one["metadata"]["name"]): one["metadata"].get("labels", {}) for one in deployments}
    triton = next((name for name in labels if labels[name].get("app.kubernetes.io/component") == "triton"), "")
    if not triton:
        return
    run = ("exec", f"deployment/{triton}", "--container=sync", "--", "python")
    code, out, error = kubectl(*run, "-m", "deploy.sync.open_addresses", "127.0.0.1:8001", "127.0.0.1:8000")
    if code != 0:
        remedy = "this check needs the permission for pods/exec and a Triton that answers"
        yield Finding("who may load models", "note", f"could not be checked: {_last(error)}", remedy)
        return
    yield local.who_may_load([line for line in out.splitlines() if line])
    yield local.version_of(f"deployment/{triton}", kubectl(*run, "-c", _VERSION)[1].strip())


def _last(text: str) -> str:
    """Return the last line of ``text``, at most 300 characters."""
    return text.strip().splitlines()[-1][:300] if text.strip() else ""
