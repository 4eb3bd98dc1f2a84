"""Waits until gateways serve the current serving Task: ``status --wait``, and ``deploy`` for its one endpoint."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from deploy.controller import default_versions
from deploy.tools import http_client
from deploy.tools.errors import DeployError, RegistryUnavailable
from deploy.tools.terminal import Terminal

if TYPE_CHECKING:
    from gateway.registry import ClearMLRegistry
    from gateway.spec import ServingSpec

_LOOKS = 3
"""Times in a row that a gateway must confirm the change: each answer comes from only one of its workers."""

_FAILING_S = 10.0
"""Seconds that a failure must last before it is reported: its reason may pass."""

_AGAIN_S = 0.5
"""Seconds between two looks, each with a read of the serving Task."""

Outlook = Literal["open", "failing", "final"]
"""``open``: the version may still become live. ``failing``: it failed and is retried. ``final``: waiting is useless."""


class Waited(NamedTuple):
    """The end of a wait. Without a ``reason``, all is live; else ``outlook`` says whether it may still become so."""

    reason: str
    outlook: Outlook
    spec: ServingSpec
    status: Mapping[str, Any]
    """What the last gateway said of itself."""


def follow(
    gateways: Sequence[str], timeout: float, registry: ClearMLRegistry, live: Callable[[str], None], only: str = ""
) -> Waited:
    """Wait until every gateway serves the serving Task (or of it the endpoint ``only``), including later changes.

    ``live`` gets what is waited for. Raises ``DeployError`` if a section of the Task cannot be read, or a gateway shows
    its status only to others.
    """
    spec, began = _spec(registry), time.monotonic()
    defaults_until, agreed = began + min(default_versions.RECORDED_S, timeout / 2), 0
    failing: dict[str, float] = {}
    while True:
        answers = {address: status_of(address) for address in gateways}
        # the Task may have been changed again: by model sync, by auto-update or a person
        with contextlib.suppress(RegistryUnavailable):
            spec = _spec(registry)
        content: Mapping[str, Any] = {}
        now, reasons = time.monotonic(), list[str]()
        for address, answer in answers.items():
            content = answer or {}
            reason, outlook = missing(answer, spec.revision, only)
            if other := another_task(answer, spec.task_id):
                reason, outlook = other, "final"
            # Builds are retried, so only a failure that lasts counts.
            failing[address] = failing.get(address, now) if outlook != "open" else now
            if outlook == "final" or now - failing[address] > _FAILING_S:
                return Waited(f"{address}: {reason}", outlook, spec, content)
            reasons += [f"{address}: {reason}"] if reason else []
        awaited = default_versions.awaited(spec) if now < defaults_until else []
        if awaited and not reasons:
            reasons = [f"the controller records which version answers {', '.join(awaited)}"]
        agreed, shown = 0 if reasons else agreed + 1, "; ".join(reasons)
        if agreed >= (1 if only else _LOOKS) or now - began > timeout:
            return Waited(shown, "open", spec, content)
        live(shown or "checking again")
        time.sleep(_AGAIN_S)


def wait(gateways: Sequence[str], timeout: float, registry: ClearMLRegistry) -> int:
    """Wait until every gateway serves the serving Task, and say so. Return an exit code.

    It is 0 if the change is live and 3 if a gateway reports a failed version. Raises ``DeployError`` if the time is
    over, and those of ``follow``.
    """
    terminal = Terminal(sys.stderr)
    found = follow(gateways, timeout, registry, terminal.live)
    if found.outlook != "open":
        click.echo(found.reason, err=True)
        return 3
    if found.reason:
        raise DeployError(
            f"not live after {timeout:g} s: {found.reason}",
            hint="`triton-gateway status` shows all versions and faults",
        )
    click.echo(f"live on {', '.join(gateways)} after {terminal.elapsed():.1f} s")
    for name in default_versions.awaited(found.spec):
        click.echo(
            f"no version answers the name {name} yet: the controller, which records the first, has not done "
            f"so. Start it, or choose one: triton-gateway default {name} VERSION", err=True,
        )  # fmt: skip
    return 0


def status_of(gateway: str) -> Mapping[str, Any] | None:
    """Return what a gateway says of itself; None if it does not. Raises ``DeployError`` if it wants a key."""
    answer = http_client.call_gateway(f"{gateway}/v1/status")
    if answer is not None and answer.status in (401, 403):
        raise DeployError(
            f"{gateway} shows its status only to callers with a key",
            hint="set TRITON_GATEWAY_KEY to a key that allows the operation status (`keys create --operations status`)",
        )
    return answer.content if answer and answer.status == 200 and isinstance(answer.content, dict) else None


def _spec(registry: ClearMLRegistry) -> ServingSpec:
    """Return what the current Task asks for. Raises ``DeployError`` if a section is unreadable, for gateways too."""
    spec = registry.spec()
    for fault in spec.unreadable:
        raise DeployError(
            f"{fault.subject} of the serving Task {fault.message}: gateways keep their old configuration",
            hint="repair the section in ClearML; `triton-gateway status` shows what is served",
        )
    return spec


def another_task(status: Mapping[str, Any] | None, task_id: str) -> str:
    """Return that a gateway follows another serving Task than this one, in words; else an empty string."""
    followed = (status or {}).get("serving_task") or {"id": task_id}
    return "" if followed["id"] == task_id else f"follows another serving Task, {followed['name']} ({followed['id']})"


def missing(status: Mapping[str, Any] | None, revision: str, only: str = "") -> tuple[str, Outlook]:
    """Return why a gateway does not serve ``revision`` (empty: it does), and whether that may change by itself.

    ``only``: the endpoint that matters; empty: all of them.
    """
    if not isinstance(status, Mapping):
        return "does not answer", "open"
    if status.get("spec_revision") != revision:
        return "has not seen the change yet", "open"
    waiting = [(p["url"], p) for p in status.get("pending", ())]
    waiting += [(e["url"], e["successor"]) for e in status.get("endpoints", ()) if e.get("successor")]
    if only:
        waiting = [(url, one) for url, one in waiting if url == only]
        if not waiting and only not in {e["url"] for e in status.get("endpoints", ())}:
            return f"{only} is not in the serving Task", "final"
    failed = [(url, one) for url, one in waiting if one["state"] in ("failed", "refused")]
    if failed:
        is_final = any(one["state"] == "refused" or one.get("is_final") for _, one in failed)
        shown = "; ".join(f"{url} failed: {one['reason']}" for url, one in failed)
        return shown, "final" if is_final else "failing"
    return ", ".join(f"{url} is {one['state']}: {one['reason']}" for url, one in waiting), "open"
