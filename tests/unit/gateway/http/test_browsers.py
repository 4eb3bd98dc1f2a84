"""A browser gets an HTML page for a refusal; a program gets the same JSON as before."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.http.browsers import POLICY

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/nothing/here", 404, "nothing is at /nothing/here"),
        ("/serve/e", 405, "GET is not how an endpoint is called"),
        ("/v1/chat/completions", 405, "GET is not how an endpoint is called"),
        ("/v1/models/nobody", 404, "nobody"),
        ("/v2/models/nobody", 404, "nobody"),
    ],
)
async def test_a_browser_gets_a_page_with_the_error_and_the_hint(
    served: Any, path: str, status: int, said: str
) -> None:
    """The status is the same. The page links to the served endpoints and escapes the typed address."""
    page = await served.client.get(path, headers=BROWSER)
    assert (status, "text/html; charset=utf-8") == (page.status_code, page.headers["content-type"])
    assert POLICY == page.headers["content-security-policy"]
    assert said in page.text
    assert "<a href=/>" in page.text
    plain = await served.client.get(path)
    assert (status, "application/json") == (plain.status_code, plain.headers["content-type"])
    kept = {"content-type", "content-length", "x-request-id", "date", "x-total-time"}
    assert {k: v for k, v in plain.headers.items() if k not in kept}.items() <= page.headers.items()


async def test_typed_names_are_escaped_in_the_page(stack: Any) -> None:
    """Anyone can choose an address."""
    page = await stack.client.get("/<script>alert(1)</script>", headers=BROWSER)
    assert 404 == page.status_code
    assert "<script>" not in page.text


async def test_other_answers_are_not_turned_into_pages(stack: Any) -> None:
    """Health, metrics and the status page."""
    for path in ("/readyz", "/metrics", "/v1/status"):
        assert "json" in (reply := await stack.client.get(path, headers=BROWSER)).headers["content-type"] or (
            path == "/metrics" and b"gateway_" in reply.content
        )
