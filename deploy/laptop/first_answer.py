"""Sends the first request to an endpoint until it is answered, and shows what is in the way."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Callable
from typing import Final

from deploy.tools import http_client
from deploy.tools.errors import DeployError

Live = Callable[..., None]
"""``Screen.live``."""
_ASK_AGAIN_S: Final = 0.3
"""Seconds between two requests."""
_FINAL: Final = (400, 401, 403, 413, 415, 422)
"""Statuses for which repeating the request is useless."""


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
            raise DeployError(
                f"{url} does not answer: {reason}", hint="see the logs of the gateway, model sync and Triton"
            )
        live(f"waiting for {url}: {reason}")
        await asyncio.sleep(_ASK_AGAIN_S)
