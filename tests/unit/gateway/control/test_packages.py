"""Packages of hooks: an endpoint whose hook lacks some is refused, and they are named."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.control import packages

HOOK = """
class Preprocess:
    def process(self, body, state, s=None):
        return body
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("numpy\n# a comment\n\nNumPy>=1.20 # fine\n", []),
        ("numpy>=99", ["numpy>=99 (here is "]),
        ("nosuchpackage==1\nnumpy", ["nosuchpackage==1"]),
        ("nosuchpackage; python_version < '3'", []),
        ("-r other.txt\n./local.whl", ["-r other.txt", "./local.whl"]),
    ],
)
def test_missing_packages_are_named(tmp_path: Path, text: str, expected: list[str]) -> None:
    """Each with the version that is installed instead."""
    file = tmp_path / "requirements.txt"
    file.write_text(text)
    found = packages.missing(file)
    assert len(expected) == len(found)
    assert all(f.startswith(e) for e, f in zip(expected, found, strict=True))


async def _with_requirements(stack: Any, text: str) -> None:
    folder = stack.folder / "code"
    folder.mkdir()
    (folder / "preprocess.py").write_text(HOOK)
    (folder / "requirements.txt").write_text(text)
    archive = stack.folder / "code.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in folder.iterdir():
            packed.write(file, file.name)
    stack.registry.add_artifact("code", archive, is_archive=True)
    stack.registry.add_endpoint("h", None, engine="custom", preprocess_artifact="code")


async def test_endpoint_is_refused_with_the_names(make_stack: Callable[..., Any]) -> None:
    """Nothing is installed: that would run foreign code."""
    stack = make_stack()
    async with stack.gateway.running(), stack.client:
        await _with_requirements(stack, "greeting>=1\nnumpy\n")
        await stack.until(lambda: stack.state("h")[0] == "failed")
        reason = stack.state("h")[1]
    assert "not installed here: greeting>=1" in reason
    assert "image of your own" in reason
