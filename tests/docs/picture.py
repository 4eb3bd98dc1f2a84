"""``python -m tests.docs.picture``: the terminal picture of the README, made of what a real run prints.

Starts ``triton-gateway up --model`` on the small classifier of the repository in an empty folder, waits until it is
served, stops it, and draws the lines as SVG: text, no script, no font from elsewhere. ``tests/e2e/long_pages.py`` holds
the picture against another run.
"""

from __future__ import annotations

import html
import re
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.docs.blocks import ROOT

PICTURE: Final = ROOT / "docs" / "images" / "up.svg"
COMMAND: Final = "triton-gateway up --model ./my-model"
MODEL: Final = ROOT / "deploy" / "laptop" / "demo" / "words_model"
WIDTH: Final = 118
_LINE, _CHAR, _EDGE = 18, 7.83, 16
_ID: Final = re.compile(r"\b([0-9a-f]{4})[0-9a-f]{28,}\b")


def shown(printed: str) -> list[str]:
    """Return what the picture shows of what a run prints: until it is served, ids and long lines shortened."""
    lines = [_ID.sub(r"\1…", line.rstrip()) for line in printed.splitlines()]
    end = next(number for number, line in enumerate(lines) if line.startswith('{"'))
    # What is shown while one waits depends on how long that is; Prometheus is started if it is installed.
    kept = [line for line in lines[: end + 1] if line and not re.search(r"prometheus|^\[.* …$", line)]
    return [f"$ {COMMAND}", *(line if len(line) <= WIDTH else f"{line[: WIDTH - 2]} …" for line in kept)]


def drawn(lines: Sequence[str]) -> str:
    """Return the picture: a terminal with these lines."""
    width, height = round(WIDTH * _CHAR + 2 * _EDGE), (len(lines) + 1) * _LINE + 2 * _EDGE
    text = "\n".join(
        f'<text x="{_EDGE}" y="{_EDGE + (number + 1) * _LINE}" class="{_kind(line)}">{html.escape(line)}</text>'
        for number, line in enumerate(lines)
    )
    style = (
        "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;fill:#d7dde8}"
        ".typed{fill:#fff;font-weight:600}.done{fill:#7bd88f}.answer{fill:#f4c770}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(COMMAND)} and what it prints">\n<style>{style}</style>\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#171b24"/>\n{text}\n</svg>\n'
    )


def lines_of(picture: str) -> list[str]:
    """Return the lines that a picture shows."""
    return [html.unescape(line) for line in re.findall(r"<text[^>]*>(.*?)</text>", picture)]


def _kind(line: str) -> str:
    if line.startswith("$ "):
        return "typed"
    return "answer" if line.startswith("{") else "done" if line.endswith(")") and " is served " in line else "told"


def main() -> None:
    """Run it, and write the picture."""
    from tests.e2e.test_up_demo import Up

    folder = Path(tempfile.mkdtemp(prefix="picture-"))
    shutil.copytree(MODEL, folder / "my-model")
    running = Up(folder, "--model", "./my-model", "--port", "8080", "--controlplane-port", "8008")
    try:
        running.wait_ready()
        PICTURE.write_text(drawn(shown(running.printed())))
    finally:
        running.stop(signal.SIGINT)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
