"""The status page, judged by other people's accessibility checker (axe-core), in a browser.

Widths 390, 800 and 1280 px, light and dark, with no endpoint, three and 300. Run by ``.ci/run clients``; needs npm,
which
installs axe-core once, outside the repository. Where axe cannot tell a contrast (text that is scrolled out of sight),
our own check of the page does (``test_page_fits_and_can_be_read_at_three_widths``).
"""

from __future__ import annotations

import html
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.unit.gateway.admin.test_page import framed, pages_by_size

AXE: Final = "4.10.3"
_ASK: Final = """
addEventListener('load', () => axe.run(document).then(
  found => parent.postMessage(JSON.stringify({
    dark: matchMedia('(prefers-color-scheme: dark)').matches, width: innerWidth, passed: found.passes.length,
    violations: found.violations.map(one => one.id + ': ' + one.nodes.map(node => node.html.slice(0, 200)).join(' | ')),
  }), '*'),
  error => parent.postMessage(JSON.stringify({violations: [String(error)]}), '*')));
"""
_HEAR: Final = """
addEventListener('message', told => {
  const said = document.createElement('pre'); said.id = 'said';
  said.textContent = told.data; document.body.append(said);
});
"""


@pytest.fixture(scope="module")
def axe() -> str:
    """The checker's script, installed if it is not there."""
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("npm is not on PATH (Debian: apt install npm)")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triton-gateway" / f"axe-core-{AXE}"
    script = cache / "node_modules" / "axe-core" / "axe.min.js"
    if not script.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [npm, "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(cache),
             f"axe-core@{AXE}"], check=True, timeout=600,
        )  # fmt: skip
    return script.read_text()


def judged(page: str, axe: str, folder: Path, *, width: int = 800, scheme: str = "light") -> Any:
    """Return what axe says of a page; a frame, because a window is never narrower than 500 px."""
    document = folder / "frame.html"
    asking = page.replace("<head>", f"<head><script>{axe}</script><script>{_ASK}</script>", 1)
    document.write_text(
        f"<!doctype html><meta charset=utf-8><script>{_HEAR}</script><body>"
        f'<iframe title=page width={width} height=900 style="border:0" srcdoc="{html.escape(asking)}"></iframe>'
    )
    return framed(document, folder, scheme, virtual_ms=20_000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 800, 1280])
@pytest.mark.parametrize("endpoints", [0, 3, 300])
def test_axe_finds_no_violation(tmp_path: Path, axe: str, endpoints: int, width: int, scheme: str) -> None:
    """Of any rule that axe applies by default."""
    found = judged(pages_by_size()[endpoints], axe, tmp_path, width=width, scheme=scheme)
    assert [] == found["violations"]
    assert (scheme == "dark", width) == (found["dark"], found["width"])
    assert found["passed"] > 30


def test_axe_finds_what_is_wrong(tmp_path: Path, axe: str) -> None:
    """A picture without a text and letters that are too pale, so the checks above can fail."""
    wrong = '<img src="data:,"><p style="color:#ccc;background:#fff">pale</p></main>'
    found = judged(pages_by_size()[3].replace("</main>", wrong, 1), axe, tmp_path)
    assert ["color-contrast", "image-alt"] == sorted(one.partition(":")[0] for one in found["violations"])
