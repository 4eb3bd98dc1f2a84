"""What docs/http-api.md says to type is typed, and what comes is what it shows."""

from __future__ import annotations

import re
import subprocess
from typing import Final

import pytest

from tests.docs.blocks import Block, Command, blocks
from tests.waiting import LIMIT_S

from .conftest import Stack

pytestmark = [pytest.mark.integration, pytest.mark.texts]

PAGE: Final = [block for block in blocks() if block.page == "docs/http-api.md"]
HERE: Final = {
    "minilm": "vectors",
    "reranker": "rank",
    "POSITIVE": "GOOD",
    "NEGATIVE": "BAD",
    "I like this.": "good",
    "Goethe wrote it.": "a film",
    '", there was a king."': '"…"',
    '"finish_reason":"stop"': '"finish_reason":"…"',
}
"""What the page's models and texts are here; these models know few words. Its `sentiment` is a canary over two."""


def translated(text: str) -> str:
    """The page's words in those of these models."""
    for page, here in HERE.items():
        text = text.replace(page, here)
    return text


def without_spaces(text: str) -> str:
    """Answers are shown with more of them than they have."""
    return re.sub(r"[ \r]", "", text)


@pytest.mark.parametrize(
    "command", [c for b in PAGE if b.kind == "console" for c in b.commands()], ids=lambda c: c.line[:60]
)
def test_a_line_of_the_page_is_answered_as_shown(stack: Stack, command: Command) -> None:
    """By the real curl, which says by itself that a body is a form."""
    line = translated(command.line).replace("localhost:8080", stack.http).replace("sentiment", "live")
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    printed = without_spaces(done.stdout)
    if "/predict " in line:  # the page says what it is where several things are served
        assert printed.startswith("HTTP/1.1404")
        assert "live,mask,ner" in printed
    elif not command.shown.strip():
        assert '"object":"list"' in printed
    else:
        shown = without_spaces(translated(command.shown))
        assert Command(line, shown).agrees(printed), f"{line}\n{done.stdout}\nis not\n{shown}"


@pytest.mark.parametrize("block", [b for b in PAGE if b.kind == "python"], ids=str)
def test_a_client_of_the_page_is_answered(stack: Stack, block: Block) -> None:
    """Its last line is a value."""
    text = translated(block.text).replace("localhost:8081", stack.grpc).replace("sentiment", "live")
    *lines, value = text.strip().splitlines()
    scope: dict[str, object] = {}
    exec("\n".join(lines), scope)
    labels = eval(value, scope)
    assert (2, 1) == labels.shape
    assert {b"GOOD", b"BAD"} >= {*labels.ravel()}
