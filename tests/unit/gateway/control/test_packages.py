"""Packages of hooks: missing ones are named, and installed for the hook's processes only if the operator allows it."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.control import packages
from gateway.errors import SpecFault
from tests.waiting import soon

HOOK = """
import importlib.metadata
class Preprocess:
    def process(self, body, state, s=None):
        import greeting
        import numpy
        return {"says": greeting.TEXT, "numpy": numpy.__version__, "where": greeting.__file__}
"""


def add_wheel(folder: Path, name: str, version: str, text: str) -> None:
    """Write a wheel with one module, in the form that pip accepts."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"TEXT = {text!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


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


async def test_endpoint_is_refused_by_default_with_the_names(make_stack: Callable[..., Any]) -> None:
    """Running pip is the operator's decision."""
    stack = make_stack()
    async with stack.gateway.running(), stack.client:
        await _with_requirements(stack, "greeting>=1\nnumpy\n")
        await stack.until(lambda: stack.state("h")[0] == "failed")
        reason = stack.state("h")[1]
    assert "not installed here: greeting>=1" in reason
    assert "TRITON_GATEWAY_HOOK_PACKAGES=install" in reason


async def test_packages_are_installed_for_the_endpoints_processes_only(
    make_stack: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where hooks run in threads; what the gateway has already is not fetched again."""
    add_wheel(tmp_path / "wheels", "greeting", "1.5", "hello")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    stack = make_stack(hook_packages="install", hook_isolation="thread")
    async with stack.gateway.running(), stack.client:
        await _with_requirements(stack, "greeting>=1\nnumpy\n")
        await soon(lambda: stack.gateway.table.current.endpoints)
        answer = (await stack.client.post("/serve/h", json={})).json()
    assert ("hello", np.__version__) == (answer["says"], answer["numpy"])
    assert str(stack.settings.state_dir.resolve()) in str(Path(answer["where"]).resolve())
    assert importlib.util.find_spec("greeting") is None


def test_failed_installation_tells_pips_reason_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt starts anew."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    file = tmp_path / "requirements.txt"
    file.write_text("greeting==9\n")
    with pytest.raises(SpecFault, match=r"ERROR: .*greeting==9"):
        packages.install(file, tmp_path / "root")
    assert [] == [p for p in (tmp_path / "root").iterdir() if p.is_dir()]
