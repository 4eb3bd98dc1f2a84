"""Asks an endpoint its example request, as a person would, and prints both: the last step of ``deploy``."""

from __future__ import annotations

import json
import os
import shlex
import time
import urllib.parse
from collections.abc import Callable
from typing import Any, Final

from deploy.tools import http_client
from deploy.tools.errors import DeployError

_ANSWERS_WITHIN_S: Final = 60.0
_ASK_AGAIN_S: Final = 0.3
_REFUSED: Final = (400, 401, 403, 413, 415, 422)
"""Statuses for which repeating the request is useless."""
_SHOWN: Final = 300
"""Characters of an answer that are shown."""


def show(gateway: str, url: str, body: Any, live: Callable[[str], None], tell: Callable[[str], None]) -> None:
    """Print a request that can be copied, with the start of its answer. ``body`` None: only its address is known.

    Raises ``DeployError`` if the endpoint refuses the request, or does not answer in time.
    """
    if body is None:
        tell(f"  {curl(gateway, url, '…')}  # the body depends on the model: docs/http-api.md")
        return
    if isinstance(body, dict) and isinstance(body.get("text"), list):
        body = {**body, "text": body["text"][0]}
    answer = json.dumps(answer_of(gateway, url, body, live).content, ensure_ascii=False)
    tell(f"$ {curl(gateway, url, json.dumps(body, ensure_ascii=False))}")
    tell(answer if len(answer) <= _SHOWN else f"{answer[:_SHOWN]} …")


def answer_of(gateway: str, url: str, body: object, live: Callable[[str], None]) -> http_client.Answer:
    """Ask an endpoint until it answers: another worker may not serve it yet.

    Raises ``DeployError`` if it refuses the request, or does not answer in time.
    """
    until = time.monotonic() + _ANSWERS_WITHIN_S
    while True:
        found = http_client.call_gateway(f"{gateway}/serve/{urllib.parse.quote(url)}", body=body, timeout=30)
        if found is not None and found.status == 200:
            return found
        content = found.content if found is not None and isinstance(found.content, dict) else {}
        reason, hint = str(content.get("error", "it does not answer")), str(content.get("hint", ""))
        if (found is not None and found.status in _REFUSED) or time.monotonic() > until:
            if found is not None and found.status in (401, 403):
                hint = "set TRITON_GATEWAY_KEY to a key that allows the operation infer"
            why = f"{url} is served, but it does not answer its example request: {reason}"
            raise DeployError(why, hint=hint or "see the logs of the gateway, model sync and Triton")
        live(f"waiting for {url}: {reason}")
        time.sleep(_ASK_AGAIN_S)


def curl(gateway: str, name: str, body: str) -> str:
    """Return a request that can be copied into a shell. If a key is needed, it comes from the environment."""
    key = ' -H "authorization: Bearer $TRITON_GATEWAY_KEY"' if os.environ.get("TRITON_GATEWAY_KEY") else ""
    address = f"{gateway}/serve/{urllib.parse.quote(name)}"
    return f"curl -s {address} -H 'content-type: application/json'{key} -d {shlex.quote(body)}"
