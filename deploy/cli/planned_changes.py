"""What a gateway would change to follow the serving Task, and what it could not serve: ``status --plan``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.preview import Preview


def changes(planned: Preview, status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes to a gateway that reports ``status``, and all faults of the Task."""
    serving = {str(e["url"]): str(e.get("model_id") or "") for e in status.get("endpoints", ())}
    wanted = planned.models
    found = []
    for url in sorted({*serving, *wanted}):
        if url not in serving:
            found.append({"what": "add", "subject": url, "how": wanted[url] or "code only"})
        elif url not in wanted:
            found.append({"what": "remove", "subject": url, "how": ""})
        elif serving[url] != wanted[url]:
            found.append({"what": "change", "subject": url, "how": f"{serving[url] or '-'} → {wanted[url] or '-'}"})
    now = {str(name): {str(u): float(s) for u, s in shares.items()}
           for name, shares in dict(status.get("canaries", {})).items()}  # fmt: skip
    for name in sorted({*planned.routes, *now}):
        before, after = _shown(now.get(name)), _shown(planned.routes.get(name))
        if before != after:
            what = "add" if name not in now else "remove" if name not in planned.routes else "change"
            found.append({"what": what, "subject": f"canary {name}", "how": f"{before or '-'} → {after or '-'}"})
    faults = [{"subject": f.subject, "message": f.message} for f in planned.faults]
    return {"changes": found, "faults": faults}


def _shown(shares: Mapping[str, float] | None) -> str:
    return ", ".join(f"{share:.1%} {url}" for url, share in sorted((shares or {}).items()) if share > 0)


def describe(gateway: str, found: Mapping[str, Any]) -> list[str]:
    """Return the result of ``changes`` to the gateway at an address as text lines."""
    signs = {"add": "+", "change": "~", "remove": "-"}
    lines = [f"{signs[one['what']]} {one['subject']}  {one['how']}".rstrip() for one in found["changes"]]
    lines += [f"! {fault['subject']}: {fault['message']}" for fault in found["faults"]]
    return lines or [f"{gateway} already serves everything in the serving Task"]
