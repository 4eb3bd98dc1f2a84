"""Blocks of code in README and docs are read by the programs that they are for: both command lines, Helm, the product.

``tests/e2e/long_pages.py`` then types what can be typed. An excused block says why, in the line before it.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click
import pytest
import yaml
from clearml.utilities.config import text_to_config_dict

from deploy.cli import state_file
from deploy.cli.main import group
from gateway import samples
from gateway.metrics import drift
from gateway.settings import Settings
from tests import kube_tools
from tests.docs.blocks import ROOT, Block, Command, blocks

ALL: Final = list(blocks())
TYPED: Final = [block for block in ALL if block.kind == "console" and not block.why]
WRITTEN: Final = [block for block in ALL if block.kind not in ("console", "text") and not block.why]


def at(block: Block) -> str:
    """A test's name."""
    return str(block).replace("/", "-")


def _ours(words: list[str], _page: Path) -> None:
    """`triton-gateway`: the command line itself reads it, down to types and choices; nothing is run."""
    command: click.Command = group
    context = click.Context(group, info_name="triton-gateway")
    left = words[1:]
    while isinstance(command, click.Group):
        assert left, "no command is named"
        found = command.get_command(context, left[0])
        assert found is not None, f"there is no {left[0]}"
        command, left = found, left[1:]
        context = click.Context(command, info_name=command.name, parent=context)
    if "--help" not in left:
        _parse(command, left)


def _parse(command: click.Command, words: list[str]) -> None:
    # Files that a page names are on its reader's machine.
    kept = [(one.type, one.type.exists) for one in command.params if isinstance(one.type, click.Path)]
    for kind, _ in kept:
        kind.exists = False
    try:
        command.make_context(command.name, list(words)).close()
    except click.MissingParameter as error:
        if error.param is None or not error.param.envvar:
            pytest.fail(error.format_message())
    except click.ClickException as error:
        pytest.fail(error.format_message())
    finally:
        for kind, exists in kept:
            kind.exists = exists


YOURS = "clearml: {apiHost: https://api.clearml.example, credentialsSecret: clearml-credentials}"
"""What a reader's values.yaml has at least."""


def _helm(words: list[str], page: Path) -> None:
    """The chart renders with what the page sets."""
    assert words[1] in ("install", "upgrade", "template"), words
    _run("helm", ["template", *words[2:]], page)


def _run(program: str, arguments: list[str], folder: Path) -> None:
    done = subprocess.run(
        [str(kube_tools.unpacked(program)), *arguments], cwd=folder, capture_output=True, text=True, check=False,
        env={"KUBECONFIG": "/dev/null", "HOME": str(folder), "PATH": ""},
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr


READ: Final[Mapping[str, Callable[[list[str], Path], None]]] = {"triton-gateway": _ours, "helm": _helm}
"""Program → what reads its lines; the stock tool's are read together, by its own parser."""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A folder as a reader of the Kubernetes pages has it: the checkout, values, files that a Secret is made of."""
    (tmp_path / "k8s").symlink_to(ROOT / "k8s")
    (tmp_path / "values.yaml").write_text(YOURS)
    for name in ("keys.json", "clearml.conf"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def _read_line(command: Command, page: Path) -> None:
    subprocess.run(["bash", "-n", "-c", command.line], check=True, capture_output=True)
    words = command.words
    if words[0] in READ:
        words = words[: next((n for n, word in enumerate(words) if word in ("|", "&&", ">")), len(words))]
        READ[words[0]](words, page)


@pytest.mark.parametrize("block", TYPED, ids=at)
def test_every_line_that_is_typed_is_one_its_program_takes(block: Block, page: Path) -> None:
    """Each command of the block, and the shell takes them all."""
    assert block.commands(), f"{block} shows nothing to type: call it text"
    for command in block.commands():
        _read_line(command, page)


_STOCK: Final = """
import argparse, json, sys
class Taken(Exception): pass
own = argparse.ArgumentParser.parse_args
def take(self, *_, **__): raise Taken(self)
from clearml_serving.__main__ import cli  # the SDK puts a reader of its own in place
argparse.ArgumentParser.parse_args = take
try: cli()
except Taken as taken: parser = taken.args[0]
argparse.ArgumentParser.parse_args = own
for words in json.load(sys.stdin):
    try: parser.parse_args(words)
    except SystemExit as end:
        if end.code: print("refused:", words)
"""


def test_every_line_of_the_stock_tool_is_one_it_takes() -> None:
    """Its own parser reads all of them, in one process."""
    lines = [
        command.words[1:]
        for block in TYPED for command in block.commands() if command.words[0] == "clearml-serving"
    ]  # fmt: skip
    assert lines
    done = subprocess.run(
        [sys.executable, "-c", _STOCK], input=json.dumps(lines), capture_output=True, text=True, check=True, timeout=240
    )
    assert "refused" not in done.stdout, done.stdout + done.stderr


def _values(text: str, page: Path) -> None:
    """The chart takes them."""
    (page / "values.yaml").write_text(text)
    yours = ["--set", "clearml.apiHost=https://api.clearml.example", "--set", "clearml.credentialsSecret=c"]
    _run("helm", ["template", "page", str(ROOT / "k8s/helm/triton-gateway"), "--values", "values.yaml", *yours], page)


def _state(text: str, _page: Path) -> None:
    """`apply` reads it."""
    assert state_file.parsed(text, "serving.yaml")["endpoints"]


def _settings(text: str, _page: Path) -> None:
    """Variables that exist, with values of their kind."""
    pairs = dict(line.partition(" #")[0].strip().removeprefix("export ").split("=", 1) for line in text.splitlines())
    ours = {
        name.removeprefix("TRITON_GATEWAY_").lower(): value for name, value in pairs.items() if "CLEARML" not in name
    }
    assert set(ours) <= set(Settings.model_fields)
    Settings(**ours)


CONTENT: Final[Mapping[str, Callable[[str, Path], object]]] = {
    "conf": lambda text, _: text_to_config_dict(text), "sh": _settings, "yaml": lambda text, _: yaml.safe_load(text),
    "dockerfile": lambda *_: None, "json": lambda text, _: json.loads(text.replace("…", "")),
    "docs/clearml.md yaml": lambda text, page: (_state if text.startswith("version:") else _values)(text, page),
    "docs/drift.md json": lambda text, _: drift.decode(text),
    "docs/versions.md json": lambda text, _: samples.parse(json.loads(text)),
}  # fmt: skip
"""Kind, or page and kind → what reads such blocks."""


@pytest.mark.parametrize("block", WRITTEN, ids=at)
def test_every_file_that_is_shown_is_one_its_reader_takes(block: Block, page: Path) -> None:
    """Python compiles; shell lines are read as typed ones; everything else by the reader of the product."""
    if block.kind == "python":
        compile(ast.parse(block.text), str(block), "exec")
    elif block.kind == "sh" and "=" not in block.text.partition("\n")[0].partition(" ")[0]:
        for line in block.text.splitlines():
            _read_line(Command(line, ""), page)
    else:
        CONTENT.get(f"{block.page} {block.kind}", CONTENT[block.kind.partition(" ")[0]])(block.text, page)
