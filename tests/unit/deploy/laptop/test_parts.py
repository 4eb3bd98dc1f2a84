"""Packages that pip cannot bring: when and how they are installed, and the message if that fails."""

from __future__ import annotations

import asyncio
import os
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from deploy.laptop import parts
from deploy.laptop.parts import DEMO, TRITON, Part
from deploy.tools.errors import MissingPart
from deploy.tritonserver import launcher
from tests.unit.deploy.laptop.screen import Screen

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("demo", "triton", "system", "expected"),
    [
        (False, False, "Linux x86_64", []),
        (True, False, "Darwin arm64", [DEMO]),
        (True, True, "Linux aarch64", [DEMO, TRITON]),
        (False, True, "Darwin arm64", []),
        (False, True, "Windows AMD64", []),
    ],
)
def test_only_what_is_wanted_and_made_for_this_machine_is_installed(
    monkeypatch: pytest.MonkeyPatch, demo: bool, triton: bool, system: str, expected: list[Part]
) -> None:
    """Nothing is installed for an external Triton, or on a machine that cannot run one."""
    monkeypatch.setattr(parts.util, "find_spec", lambda _: None)
    monkeypatch.setattr(launcher, "this_system", lambda: system)
    assert expected == parts.missing(demo=demo, triton=triton)


def test_what_is_installed_is_not_installed_again() -> None:
    """Both packages are installed in this environment."""
    assert [] == parts.missing(demo=True, triton=True)


def test_what_was_installed_in_part_is_installed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while pip works leaves some of a package's files."""
    monkeypatch.setattr(parts, "DEMO", Part("tgw_nobodys", "tgw-nobodys==1.0", 1))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tgw_nobodys").mkdir()
    (tmp_path / "tgw_nobodys" / "__init__.py").touch()
    assert [parts.DEMO] == parts.missing(demo=True, triton=False)
    info = tmp_path / "tgw_nobodys-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tgw-nobodys\nVersion: 1.0\n")
    assert [parts.DEMO] == parts.missing(demo=True, triton=False)
    (info / "INSTALLER").write_text("pip\n")
    assert [] == parts.missing(demo=True, triton=False)


def test_somebody_elses_environment_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed into a system's Python."""
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert not parts.can_install()


def test_one_version_of_each_in_the_makefile_the_extra_and_the_code() -> None:
    """`make`, `pip` and `up` install the same."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["triton"]
    assert extra[0].startswith(f"{TRITON.requirement};")
    assert f"ALONE := {DEMO.requirement} {TRITON.requirement}\n" in (ROOT / "Makefile").read_text()
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    assert {DEMO.requirement, TRITON.requirement} <= {*pinned}


def wheel(folder: Path, *, asks_for: str) -> Part:
    """Build a wheel that requires a package that does not exist."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "tgw_nobodys-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("tgw_nobodys/__init__.py", "")
        info = "tgw_nobodys-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tgw-nobodys\nVersion: 1.0\n"
                                             f"Requires-Dist: {asks_for}\n")  # fmt: skip
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return Part("tgw_nobodys", "tgw-nobodys==1.0", 1)


def run(part: Part, tmp_path: Path, **env: str) -> list[str]:
    """Install it without an index."""
    screen = Screen()
    offline: dict[str, Any] = {**os.environ, "PIP_NO_INDEX": "1", "PIP_TARGET": str(tmp_path / "site"), **env}
    asyncio.run(parts.install([part], env=offline, log=tmp_path / "pip.log", screen=screen))
    return screen.said


def test_a_part_is_installed_without_what_it_asks_for(tmp_path: Path) -> None:
    """pip runs with exactly the arguments that are shown."""
    part = wheel(tmp_path / "wheels", asks_for="sentence-transformers-of-nobody")
    said = run(part, tmp_path, PIP_FIND_LINKS=str(tmp_path / "wheels"))
    assert ["pip install --no-deps tgw-nobodys==1.0 (once; about 1 MB)"] == said
    assert (tmp_path / "site" / "tgw_nobodys" / "__init__.py").is_file()


def test_without_an_index_what_to_type_is_said_with_pips_reason(tmp_path: Path) -> None:
    """The message is one line."""
    with pytest.raises(MissingPart) as failed:
        run(Part("tgw_nobodys", "tgw-nobodys==1.0", 1), tmp_path, PIP_FIND_LINKS="")
    assert "No matching distribution found for tgw-nobodys==1.0" in failed.value.line()
    assert "pip install --no-deps tgw-nobodys==1.0" in failed.value.line()
