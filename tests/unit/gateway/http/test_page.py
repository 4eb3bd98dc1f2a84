"""The gateway's page: drawn from the status, safe whatever names say, and alive in a real browser."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn

from gateway.http.page import render_page
from gateway.http.protocol import GatewayProtocol
from gateway.metrics import drift

EVIL = "<script>alert(1)</script>"
STATUS: dict[str, Any] = {
    "ready": False, "not_ready_because": [EVIL], "serving_task": {"id": "t", "name": EVIL}, "revision": "r",
    "triton": {EVIL: False}, "registry": {"error": EVIL}, "canaries": {EVIL: {EVIL: 0.5}},
    "faults": [{"subject": EVIL, "message": EVIL}],
    "endpoints": [{"url": EVIL, "details": {"task": EVIL}, "model_name": EVIL, "model_id": EVIL,
                   "successor": {"state": EVIL, "reason": EVIL}}],
    "pending": [{"url": EVIL, "state": EVIL, "reason": EVIL}],
    "last_minute": [
        {"endpoint": EVIL, "version": EVIL, "route": EVIL, "rate": 1.0, "share": 0.5, "failed": 0.0, "p50": 0.1,
         "p95": None, "p99": None, "rows_per_call": None, "history": [0.0, 1.0]}
    ] * 2,
    "drift": [{"endpoint": EVIL, "version": EVIL, "variable": EVIL, "bins": [EVIL, "missing"], "counts": [3, 0],
               "reference": [0.5, 0.5], "n": 3, "psi": 0.1, "noise": 0.2, "state": EVIL}],
}  # fmt: skip


class Tags(HTMLParser):
    """Counts what the browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def test_names_are_text_wherever_they_stand() -> None:
    """The only script is ours, whatever endpoints, models, variables and errors are called."""
    assert 1 == Tags(render_page(STATUS, f"/{EVIL}/")).tags.count("script")


@pytest.mark.parametrize(("degraded", "said"), [([], ">ready<"), (["e is building: x"], ">ready, degraded<")])
def test_a_ready_gateway_says_whether_it_is_whole(degraded: list[str], said: str) -> None:
    """What is not served is in the list of endpoints."""
    assert said in render_page({**STATUS, "ready": True, "degraded": degraded}, "/serve/")


def test_nothing_is_loaded_from_elsewhere() -> None:
    """One document: its only addresses are links to this gateway."""
    assert {"/docs", "/metrics", "/v1/status"} == set(Tags(render_page(STATUS, "/serve/")).addresses)


def test_page_of_a_gateway_that_serves_nothing_says_so() -> None:
    """And has no empty sections."""
    page = render_page({**STATUS, "endpoints": [], "pending": [], "last_minute": [], "drift": []}, "/serve/")
    assert "nothing is deployed yet" in page
    assert "Last minute" not in page
    assert "<h2>Drift" not in page


async def traffic(stack: Any, seconds: float) -> None:
    """Requests to a canary and beside it, like the reference but for the scores."""
    rng = np.random.default_rng(1)
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        texts = [
            " ".join(["good" if rng.random() < 0.9 else "bad", *["film"] * int(rng.integers(0, 9))]) for _ in range(4)
        ]
        await asyncio.gather(
            *(
                stack.client.post("/serve/sentiment", json={"text": text if rng.random() > 0.002 else ""})
                for text in texts
            ),
            stack.client.post("/serve/topics", json={"text": ["hello world"] * int(rng.integers(1, 5))}),
        )
        await asyncio.sleep(float(rng.uniform(0.001, 0.02)))


@pytest.mark.browser
async def test_page_breathes_in_a_browser(stack: Any, tmp_path: Path) -> None:
    """Chromium draws it, its script swaps in what is newer, and nothing is asked of any other host.

    `PAGE_SCREENSHOT=docs/images/page.png` keeps the picture, after half a minute of traffic.
    """
    chromium = shutil.which("chromium")
    assert chromium, "chromium is not on PATH: install Debian's chromium, or leave this test out: -m 'not browser'"
    keep, folder = os.environ.get("PAGE_SCREENSHOT"), tmp_path
    references = stack.settings.state_dir / "references" / "sentiment"
    references.mkdir(parents=True)
    lengths = drift.scalar_bins([3.0, 4, 5, 6, 7, 8, 9, 10, 11] * 100)
    labels = drift.enum_bins({"GOOD": 900, "BAD": 100})
    scores = drift.scalar_bins(list(np.linspace(0.5, 1.0, 500)))
    text = drift.encode({"token_length": lengths, "predicted_label": labels, "top_score": scores})
    for version in ("1", "2"):
        (references / f"{version}.json").write_text(text)
    stack.registry.canary["sentiment"] = {
        "endpoint": "sentiment", "weights": [0.2, 0.8], "load_endpoints": ["sentiment/2", "sentiment/1"],
    }  # fmt: skip
    stack.deploy("topics")
    for version in ("1", "2"):
        stack.deploy("sentiment", version=version)
    stack.backend.latency = 0.002
    await stack.served("topics", "sentiment/1", "sentiment/2")
    config = uvicorn.Config(stack.gateway, port=0, http=GatewayProtocol, lifespan="off", log_config=None, ws="none")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    try:
        await traffic(stack, 60 if keep else 6)
        while b"</svg>" not in (await stack.client.get("/")).content.partition(b"<h2>Drift")[0]:
            await traffic(stack, 0.5)  # a curve needs two points, and there is one every few seconds
        picture = Path(keep) if keep else folder / "page.png"
        common = [
            chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
            "--disable-component-update", "--no-first-run", "--hide-scrollbars", "--window-size=1200,1130",
            f"--user-data-dir={folder / 'profile'}",
        ]  # fmt: skip
        drawing = asyncio.create_task(
            asyncio.to_thread(
                subprocess.run, [*common, f"--screenshot={picture}", url], check=True, capture_output=True, timeout=60
            )
        )
        while not drawing.done():
            await traffic(stack, 0.1)
        await drawing
        # Virtual time runs the page for ten of its seconds: the script has then swapped its content at least once.
        reading = asyncio.create_task(
            asyncio.to_thread(
                subprocess.run, [*common, "--virtual-time-budget=10000", "--dump-dom", url], check=True,
                capture_output=True, text=True, timeout=60,
            )
        )  # fmt: skip
        while not reading.done():
            await traffic(stack, 0.1)
        page = (await reading).stdout
    finally:
        server.should_exit = True
        await task
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000, "an empty page"
    tags = Tags(page).tags
    assert tags.count("svg") >= 2 * 3 + 3, "curves and histograms"
    for text in ("sentiment", "canary", "predicted_label", "p99", "PSI"):
        assert text in page
