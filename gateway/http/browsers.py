"""Renders refusals as a page if a browser asks; programs get JSON.

For all requests but POST. Only refusals change, and neither their status nor the headers that programs read.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import orjson

from gateway.path.call import Headers

HeaderList = Sequence[tuple[bytes, bytes]]

POLICY: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""The Content-Security-Policy of a refusal's page: it has neither style nor script."""


def wants_page(headers: HeaderList) -> bool:
    """Return whether the client of a request with these headers is a browser."""
    return any(name == b"accept" and b"text/html" in value for name, value in headers)


def as_page(status: int, headers: HeaderList, content: bytes) -> tuple[Headers, bytes]:
    """Return headers and body of a refusal's page; unchanged if the body is not one of the gateway's refusals."""
    try:
        said = orjson.loads(content)
    except ValueError:
        return list(headers), content
    error = said.get("error") if isinstance(said, dict) else None
    if isinstance(error, dict):  # OpenAI's form
        said, error = error, error.get("message")
    if not isinstance(error, str):
        return list(headers), content
    page = _drawn(
        f"{status} {HTTPStatus(status).phrase}", error, said.get("hint", ""), str(said.get("code", ""))
    ).encode()
    kept = [(name, value) for name, value in headers if name.lower() not in (b"content-type", b"content-length")]
    return [
        *kept,
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(page)).encode()),
        (b"content-security-policy", POLICY.encode()),
        (b"x-content-type-options", b"nosniff"),
    ], page


def _drawn(status: str, error: str, hint: str, code: str) -> str:
    """Return the page of a refusal: the fields of its JSON form, and links to the served endpoints and the API."""
    todo = f"<p>{html.escape(hint)}</p>" if hint else ""
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        "<meta name=color-scheme content='light dark'>"
        f"<title>{html.escape(status)}</title></head><body><h1>{html.escape(status)}</h1>"
        f"<main><p>{html.escape(error)}</p>{todo}<p>code <code>{html.escape(code)}</code></p></main>"
        "<footer><p><a href=/>served endpoints</a> · <a href=/docs>API</a></p></footer></body></html>"
    )
