"""The status page: one document, whose script (``browser/page.js``) asks for ``/v1/status`` and draws it.

There is no build step, and the page loads nothing from other hosts. No element has a ``style`` attribute or an event
handler, so the page's policy (``POLICY``) allows only its own style sheet and script.
"""

from __future__ import annotations

import base64
import hashlib
import html
from pathlib import Path
from typing import Final

_FILES: Final = Path(__file__).with_name("browser")
_STYLE: Final = "".join((_FILES / name).read_text() for name in ("page.css", "uPlot.min.css"))
_SCRIPT: Final = "".join((_FILES / name).read_text() for name in ("uPlot.iife.min.js", "page.js"))


def _sha256(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


POLICY: Final = (
    f"default-src 'none'; style-src {_sha256(_STYLE)}; script-src {_sha256(_SCRIPT)}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page's Content-Security-Policy. Only the page's own script runs, even if a name contains HTML."""


def page(prefix: str) -> str:
    """Return the page. ``prefix``: of the inference routes (``/serve/``)."""
    return f"""<!doctype html><html lang=en><head><meta charset=utf-8>
<meta name=viewport content='width=device-width'><title>triton-gateway</title><style>{_STYLE}</style>
<script>{_SCRIPT}</script></head><body data-prefix='{html.escape(prefix)}'>
<header><h1>triton-gateway</h1></header>
<nav aria-label=Endpoints><div class=tools role=search>
<label>Filter <input id=filter type=search autocomplete=off></label>
<label>Sort <select id=sort><option value=worst>worst first<option value=name>by name
<option value=busy>most requests first</select></label>
<span id=shown class=dim aria-live=polite></span><span id=news role=status></span></div></nav>
<main id=live><noscript>The page needs JavaScript; <a href=v1/status>JSON</a> has the same numbers.</noscript></main>
<section id=panel aria-live=polite hidden></section>
<footer><p class=dim><a href=docs>API</a> · <a href=metrics>metrics</a> · <a href=v1/status>JSON</a> ·
each fault names the section of the runbook docs/on-call.md that says what to do</p></footer></body></html>
"""
