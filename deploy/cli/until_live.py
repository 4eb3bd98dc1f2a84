"""Waits until every gateway serves the current serving Task: ``status --wait``."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from deploy.cli.terminal import Terminal
from deploy.controller import default_versions
from deploy.tools import http_client
from deploy.tools.errors import DeployError, RegistryUnavailable

if TYPE_CHECKING:
    from deploy.cli.serving_task import Registry, ServingSpec

_LOOKS = 3
"""Times in a row that a gateway must confirm the change: each answer comes from only one of its workers."""

_FAILING_S = 10.0
"""Seconds that a failure must last before it is reported: its reason may pass."""

_READ_S = 1.0
"""Seconds between two reads of the serving Task."""

Outlook = Literal["open", "failing", "final"]
"""``open``: the version may still become live. ``failing``: it failed and is retried. ``final``: waiting is useless."""


def wait(gateways: Sequence[str], timeout: float, registry: Registry) -> int:
    """Wait until every gateway serves the serving Task, including changes made meanwhile. Return an exit code.

    It is 0 if the change is live and 3 if a gateway reports a failed version. Raises ``DeployError`` if the time is
    over or a section of the Task cannot be read.
    """
    terminal = Terminal(sys.stderr)
    spec, read_at = _spec(registry), time.monotonic()
    defaults_until = read_at + min(default_versions.RECORDED_S, timeout / 2)
    agreed = dict.fromkeys(gateways, 0)
    failing: dict[str, float] = {}
    while True:
        reasons = {}
        for address in gateways:
            answer = http_client.call_gateway(f"{address}/v1/status")
            content = answer.content if answer is not None and answer.status == 200 else None
            reason, outlook = missing(content, spec.revision)
            now = time.monotonic()
            is_other = isinstance(content, Mapping) and content.get("spec_revision") != spec.revision
            awaited = default_versions.awaited(spec) if now < defaults_until else []
            if (is_other or awaited) and now - read_at > _READ_S:
                # The gateway is behind, or the Task was changed again: by model sync, by auto-update or a person.
                with contextlib.suppress(RegistryUnavailable):
                    spec = _spec(registry)
                    reason, outlook = missing(content, spec.revision)
                read_at = now
            if awaited and not reason:
                reason = f"the controller records which version answers {', '.join(awaited)}"
            # Builds are retried, so only a failure that lasts counts.
            failing[address] = failing.get(address, now) if outlook != "open" else now
            if outlook == "final" or now - failing[address] > _FAILING_S:
                terminal.clear()
                click.echo(f"{address}: {reason}", err=True)
                return 3
            agreed[address] = 0 if reason else agreed[address] + 1
            if reason:
                reasons[address] = reason
        if all(count >= _LOOKS for count in agreed.values()):
            terminal.clear()
            click.echo(f"live on {', '.join(gateways)} after {terminal.elapsed():.1f} s")
            for name in default_versions.awaited(spec):
                click.echo(
                    f"no version answers the name {name} yet: the controller, which records the first, has not done "
                    f"so. Start it, or choose one: triton-gateway default {name} VERSION", err=True,
                )  # fmt: skip
            return 0
        shown = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
        if terminal.elapsed() > timeout:
            terminal.clear()
            raise DeployError(
                f"not live after {timeout:g} s: {shown}", hint="`triton-gateway status` shows all versions and faults"
            )
        terminal.live(shown or "checking again")
        time.sleep(0.3)


def _spec(registry: Registry) -> ServingSpec:
    """Return what the current Task asks for. Raises ``DeployError`` if a section is unreadable, for gateways too."""
    spec = registry.spec()
    for fault in spec.faults:
        if fault.subject.startswith("section "):
            raise DeployError(
                f"{fault.subject} of the serving Task {fault.message}: gateways keep their old configuration",
                hint="repair the section in ClearML; `triton-gateway status` shows what is served",
            )
    return spec


def missing(status: Mapping[str, Any] | None, revision: str) -> tuple[str, Outlook]:
    """Return why a gateway does not serve ``revision`` (empty: it does), and whether that may change by itself."""
    if not isinstance(status, Mapping):
        return "does not answer", "open"
    if status.get("spec_revision") != revision:
        return "has not seen the change yet", "open"
    waiting = [(p["url"], p) for p in status.get("pending", ())]
    waiting += [(e["url"], e["successor"]) for e in status.get("endpoints", ()) if e.get("successor")]
    failed = [(url, one) for url, one in waiting if one["state"] in ("failed", "refused")]
    if failed:
        is_final = any(one["state"] == "refused" or one.get("is_final") for _, one in failed)
        shown = "; ".join(f"{url} failed: {one['reason']}" for url, one in failed)
        return shown, "final" if is_final else "failing"
    return ", ".join(f"{url} is {one['state']}: {one['reason']}" for url, one in waiting), "open"
