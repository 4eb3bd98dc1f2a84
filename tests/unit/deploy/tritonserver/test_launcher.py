"""Which server is chosen, on which ports; starting the real one is the integration tests' part."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.laptop.demo.minilm import REQUIREMENT
from deploy.tools.errors import DeployError
from deploy.tritonserver import launcher
from deploy.tritonserver.launcher import Server, Wheel, choose_server

WHEEL = Wheel(Path("s"), Path("p"), Path("l"), Path("site"), Path("stub"))
ON_PATH = Path("/opt/tritonserver/bin/tritonserver")


@pytest.mark.parametrize(
    ("on_path", "expected", "engine"),
    [(ON_PATH, Server(ON_PATH), "native"), (None, Server(WHEEL.server, WHEEL), "python")],
)
def test_a_server_on_path_goes_before_the_wheel(on_path, expected, engine):
    """The order of choice; a full Triton gets native backends, the wheel's our python program."""
    chosen = choose_server(on_path=on_path, wheel=WHEEL, python="3.11")
    assert (expected, engine) == (chosen, chosen.engine)


@pytest.mark.parametrize(
    ("wheel", "python", "system", "said"),
    [
        (None, "3.11", "Linux x86_64", r'with pip install ".[triton]"'),
        # Python 3.13 has no numpy below 2, for which pip would ask
        (None, "3.13", "Linux x86_64", "with pip install --no-deps nvidia-pytriton=="),
        (None, "3.12", "Darwin arm64", "no Triton for Darwin arm64, only for Linux x86_64 and Linux aarch64; "),
        (replace(WHEEL, stub=None), "3.14", "Linux x86_64", "no python backend for Python 3.14: use 3.11"),
    ],
    ids=["none", "none, new Python", "no Triton is made for it", "the wheel has no backend for this Python"],
)  # fmt: skip
def test_no_server_says_what_to_install(wheel, python, system, said):
    """One line, with the command."""
    with pytest.raises(DeployError) as missing:
        choose_server(on_path=None, wheel=wheel, python=python, system=system)
    assert said in missing.value.line()


def test_one_version_of_each_in_the_makefile_the_extra_and_the_code() -> None:
    """`make`, `pip` and the errors about a missing package say the same."""
    root = Path(__file__).parents[4]
    extra = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]["triton"]
    assert extra[0].startswith(f"{launcher.WHEEL};")
    assert f"ALONE := {REQUIREMENT} {launcher.WHEEL}\n" in (root / "Makefile").read_text()
    assert {REQUIREMENT, launcher.WHEEL} <= {*(root / "constraints.txt").read_text().splitlines()}
