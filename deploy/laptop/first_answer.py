"""Waits until a gateway serves an endpoint, shows what it is waiting for, and sends the first request."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, Final

from deploy.tools import http_client
from deploy.tools.errors import DeployError

Live = Callable[..., None]
"""``Screen.live``."""
_ASK_AGAIN_S: Final = 0.3
"""Seconds between two requests."""
_FINAL: Final = (400, 401, 403, 413, 415, 422)
"""Statuses for which repeating the request is useless."""


class Refused(DeployError):
    """The endpoint is refused for good: it will not be served unless it is changed."""


async def served(gateway: str, url: str, model_id: str, *, live: Live, timeout_s: float = 180.0) -> Mapping[str, Any]:
    """Wait until ``gateway`` serves the endpoint ``url`` with this model (empty: any); return the endpoint's status.

    Raises ``Refused`` at once if the endpoint is refused for good, and ``DeployError`` after ``timeout_s``.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    reason = ""
    while clock() < deadline:
        answer = await http_client.call_async(f"{gateway}/v1/status")
        if answer is not None and answer.status in (401, 403):
            raise DeployError(
                f"{url} is added, but {gateway} shows its status only to callers with a key",
                hint="set TRITON_GATEWAY_KEY to a key that allows the operations status and infer",
            )
        status = answer.content if answer is not None and isinstance(answer.content, dict) else {}
        for endpoint in status.get("endpoints", []):
            if endpoint.get("url") == url and model_id in ("", endpoint.get("model_id")):
                return {**endpoint, "defaults": status.get("defaults", {}), "canaries": status.get("canaries", {})}
        for pending in status.get("pending", []):
            if pending.get("url") == url and (pending.get("state") == "refused" or pending.get("is_final")):
                raise Refused(
                    f"{url} cannot be served: {pending.get('reason')}",
                    hint=f"remove it with `clearml-serving model remove --endpoint {url}`",
                )
        reason = why_not_served(url, status)
        live(f"waiting for {url}: {reason}", left=lambda: f" (at most {max(0.0, deadline - clock()):.0f} s more)")
        await asyncio.sleep(_ASK_AGAIN_S)
    raise DeployError(
        f"{url} was not served within {timeout_s:.0f} s: {reason}",
        hint="see the logs of model sync, Triton and the gateway",
    )


async def answer(gateway: str, url: str, body: object, *, live: Live, timeout_s: float = 60.0) -> http_client.Answer:
    """Send the first request until it is answered.

    Raises ``DeployError`` for a final refusal, and after ``timeout_s``.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    while True:
        found = await http_client.call_async(f"{gateway}/serve/{urllib.parse.quote(url)}", body=body, timeout=30)
        if found is not None and found.status == 200:
            return found
        content = found.content if found is not None else None
        reason = str(content.get("error")) if isinstance(content, dict) else "it does not answer"
        if found is not None and found.status in _FINAL:
            hint = str(content.get("hint", "")) if isinstance(content, dict) else ""
            if found.status in (401, 403):
                hint = "set TRITON_GATEWAY_KEY to a key that allows the operation infer"
            raise DeployError(f"{url} is served, but it refused its example request: {reason}", hint=hint)
        if clock() > deadline:
            raise DeployError(f"{url} is served, but it does not answer: {reason}", hint="see the log of the gateway")
        live(f"waiting for {url}: {reason}", left=lambda: f" (at most {max(0.0, deadline - clock()):.0f} s more)")
        await asyncio.sleep(_ASK_AGAIN_S)


def why_not_served(url: str, gateway: Mapping[str, Any]) -> str:
    """Return why an endpoint is not served yet, from the status of the gateway, which hears of it from model sync."""
    if not gateway:
        return "the gateway does not answer"
    for pending in gateway.get("pending", []):
        if pending.get("url") == url:
            return f"{pending.get('state')}: {pending.get('reason')}"
    return "the gateway has not seen it yet"
