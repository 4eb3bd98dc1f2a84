"""Draws the boards' pictures in ``docs/images`` with Grafana's own components, from a real gateway and Prometheus.

Run by ``.ci/run boards``; needs npm, which installs the components once, outside the repository, Chromium
and Prometheus.
The gateway has a canary whose code fails on half of its requests, and traffic unlike the reference. It runs for two
minutes. What Grafana itself does with a panel (options, transformations) is in ``tests/data/grafana/boards.jsx``.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.test_prometheus import Running, running
from tests.unit.gateway.admin.test_page import chromium

__all__ = ["running"]

pytestmark = [pytest.mark.integration, pytest.mark.prometheus, pytest.mark.browser]

ROOT: Final = Path(__file__).parents[2]
COMPONENTS: Final = (
    "@grafana/ui@12.4.10", "@grafana/data@12.4.10", "react@18.3.1", "react-dom@18.3.1", "esbuild@0.28.2",
    "@fontsource/inter@5.3.0",
)  # fmt: skip
WIDTH: Final = 1280
SECONDS: Final = 130
STEP: Final = 2
VARIABLES: Final = {
    "$__rate_interval": "30s", "$__interval": f"{STEP}s", "$endpoint": "t", "$variable": ".*", "$pool": ".*",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Board:
    """A board to draw. ``rows``: the height that is drawn, in Grafana's units; what is lower is left out.

    ``version``: what is chosen at its top: a pattern, or one version if the board shows one at a time.
    """

    name: str
    rows: int
    theme: str
    version: str = ".*"


BOARDS: Final = (Board("overview", 23, "light"), Board("canary", 26, "dark"), Board("drift", 16, "light", version="1"))


@pytest.fixture(scope="module")
def components() -> Path:
    """A folder with Grafana's components and our script, made into one script for a browser."""
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("npm is not on PATH (Debian: apt install npm)")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = caches / "triton-gateway" / f"grafana-{COMPONENTS[0].rpartition('@')[2]}"
    if not (cache / "package.json").is_file():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [npm, "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--legacy-peer-deps",
             "--save-exact", "--prefix", str(cache), *COMPONENTS], check=True, timeout=900,
        )  # fmt: skip
    shutil.copy(ROOT / "tests/data/grafana/boards.jsx", cache)
    subprocess.run(
        [str(cache / "node_modules/.bin/esbuild"), "boards.jsx", "--bundle", "--minify", "--jsx=automatic",
         "--format=iife", "--outfile=boards.js", '--define:process.env.NODE_ENV="production"',
         "--define:global=window", *(f"--loader:.{kind}=dataurl" for kind in ("woff", "woff2", "ttf")),
         "--log-level=error"], check=True, cwd=cache, timeout=300,
    )  # fmt: skip
    return cache


def asked(prometheus: str, target: dict[str, Any], version: str, end: float) -> list[dict[str, Any]]:
    """Return the answer of Prometheus to a panel's query, as series with their values."""
    query = target["expr"]
    for name, value in {**VARIABLES, "$version": version}.items():
        query = query.replace(name, value)
    times = {"time": end} if target.get("instant") else {"start": end - SECONDS, "end": end, "step": STEP}
    path = "query" if target.get("instant") else "query_range"
    url = f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode({'query': query, **times})}"
    with urllib.request.urlopen(url, timeout=20) as reply:
        found: list[dict[str, Any]] = json.loads(reply.read())["data"]["result"]
    return found


def drawn(board: Board, shown: dict[str, Any], components: Path, folder: Path, picture: Path) -> Any:
    """Draw a board into a file. Return what the page says: how many panels show something, and its errors."""
    shutil.copy(components / "boards.js", folder)
    shutil.copy(components / "boards.css", folder)
    (folder / "data.js").write_text(f"window.BOARD={json.dumps({**shown, 'theme': board.theme, 'width': WIDTH})}")
    (folder / "page.html").write_text(
        "<!doctype html><meta charset=utf-8><link rel=stylesheet href=boards.css>"
        "<style>*{animation:none!important;transition:none!important}body{margin:0}</style><div id=root></div>"
        "<script src=data.js></script><script src=boards.js></script>"
    )
    browser = [
        chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--no-first-run", "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}",
        f"--window-size={WIDTH},{board.rows * 38 + 40}", "--virtual-time-budget=15000",
    ]  # fmt: skip
    address = (folder / "page.html").as_uri()
    told = subprocess.run(
        [*browser, "--dump-dom", address], check=True, capture_output=True, text=True, timeout=120
    ).stdout  # fmt: skip
    subprocess.run([*browser, f"--screenshot={picture}", address], check=True, capture_output=True, timeout=120)
    said = re.search(r'<pre id="said".*?>(.*?)</pre>', told, re.S)
    assert said is not None
    return json.loads(html.unescape(said[1]))


def test_pictures_of_the_boards_are_drawn(running: Running, components: Path, tmp_path: Path) -> None:
    """Every panel of the drawn part has data and is drawn, without an error."""
    running.traffic(SECONDS)
    end = time.time()
    for board in BOARDS:
        made = json.loads((ROOT / f"k8s/helm/triton-gateway/files/boards/{board.name}.json").read_text())
        panels = [panel for panel in made["panels"] if panel["gridPos"]["y"] + panel["gridPos"]["h"] <= board.rows]
        for target in (target for panel in panels for target in panel.get("targets", [])):
            target["result"] = asked(running.prometheus, target, board.version, end)
        full = [panel for panel in panels if panel.get("targets")]
        assert [] == [panel["title"] for panel in full if not any(target["result"] for target in panel["targets"])]
        shown = {"title": made["title"], "panels": panels, "from": end - SECONDS, "to": end, "step": STEP}
        said = drawn(board, shown, components, tmp_path, ROOT / f"docs/images/board-{board.name}.png")
        assert {"drawn": len(full), "errors": []} == said
