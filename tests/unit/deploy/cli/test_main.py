"""The command line: its help, the form of every failure, and where data is printed."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys

import click
import pytest

from deploy.cli.main import group, main
from deploy.tools.errors import DeployError
from gateway.errors import RegistryRefused, SpecFault

COMMANDS = ["up", "serve", "sync", "controller", "controlplane", "status", "lineage", "doctor", "deploy", "optimize"]
PROGRAMS = ["up", "sync", "controller", "controlplane"]
"""They run in containers and units, so every option can come from the environment."""
HAS_NO_VARIABLE = {"help", "show_env", "version"}
"""Options that say what to do once."""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_a_command_does_and_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command's help holds a line to copy."""
    assert main([name, "--help"]) == 0
    assert re.search(r"Examples?(, \w+ terminals)?:\n +\S*.*triton-gateway", capsys.readouterr().out, re.S)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_option_has_a_variable_that_help_shows(name: str) -> None:
    """Every option can also be set by an environment variable."""
    command = group.get_command(click.Context(group), name)
    assert command is not None
    given = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    options = [option for option in given if option.name not in HAS_NO_VARIABLE]
    assert options
    for option in options:
        assert option.envvar, option.name
        assert option.show_envvar, option.name
        assert option.help, option.name


def test_help_loads_nothing_heavy() -> None:
    """Help is fast, because it imports none of the parts."""
    code = (
        "import sys; from deploy.cli.main import main; code = main(['--help']); "
        "print({'torch', 'clearml', 'grpc', 'fastapi', 'numpy', 'deploy.controlplane', 'psutil', 'importlib.metadata', "
        "'tempfile'} & set(sys.modules), code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "set() 0"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bogus"], "No such command 'bogus'"),
        (["up", "--prot", "1"], "--port"),
        (["up", "--port", "70000"], "--port"),
        (["sync", "--poll-frequency", "soon"], "not a duration"),
    ],
)
def test_wrong_command_line_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the wrong word and the help."""
    assert main(arguments) == 2
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert (True, "") == (said in line, shown.out)


@pytest.mark.parametrize(
    ("command", "variable", "chooses"),
    [("serve", "TRITON_GATEWAY_PORT", "TRITON_GATEWAY_PORT"), ("serve", "TRITON_GATEWAY_GRPC_PORT", "GRPC_PORT"),
     ("controlplane", "TRITON_GATEWAY_CONTROLPLANE_PORT", "--port")],
)  # fmt: skip
def test_taken_port_says_what_changes_it(
    command: str, variable: str, chooses: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line contains all that a person needs to continue."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name, port in (("TRITON_GATEWAY_PORT", 0), (variable, server.getsockname()[1])):
            monkeypatch.setenv(name, str(port))
        assert main([command]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{chooses} (0: a free one)" in line


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        *((kind("it broke\nbadly", hint="mend it"), 1, "triton-gateway: it broke badly; mend it\n")
          for kind in (DeployError, SpecFault, RegistryRefused)),
        (DeployError(""), 1, ""),
        (PermissionError(errno.EACCES, "Denied", "/a/file"), 1, "triton-gateway: /a/file: Denied\n"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "triton-gateway: No space left on device\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (ZeroDivisionError("by zero"), 1, "Error: by zero\ntriton-gateway: unexpected error, please report it"),
    ],
)  # fmt: skip
def test_a_failure_is_one_line_with_its_hint(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing where another command of ours has said it, or a person wanted it. Only a bug has a traceback."""

    @click.command(name="fail")
    def fail() -> None:
        raise error

    assert code == main(["fail"], root=click.Group(commands=[fail]))
    told = capsys.readouterr().err
    assert (said in told) if "Traceback" in told else (said == told)


@pytest.mark.parametrize(
    ("command", "remedy"),
    [("controlplane", '".[controlplane]"`'), ("up", '".[laptop]"`'), ("triton", '".[triton]"`'),
     ("optimize", '".[bundles]"`'), ("status", ".` again")],
)  # fmt: skip
def test_a_missing_package_is_one_line_with_what_installs_it(
    capsys: pytest.CaptureFixture[str], command: str, remedy: str
) -> None:
    """Whatever the command needs, if it has an extra of its own."""

    @click.command(name=command)
    def needy() -> None:
        raise ModuleNotFoundError("No module named 'nobodys'", name="nobodys.part")

    assert 1 == main([command], root=click.Group(commands=[needy]))
    (line,) = capsys.readouterr().err.splitlines()
    assert f"the Python package nobodys is not installed; run `pip install {remedy}" in line


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine() -> None:
    """A proxy cannot reach what `up` has started. Hosts that were excepted stay excepted."""
    code = (
        "import os; from deploy.cli.main import main; main(['status', '--url', 'http://127.0.0.1:9']); "
        "print(os.environ['no_proxy'], os.environ['NO_PROXY'])"
    )
    environ = {**os.environ, "HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "inner", "no_proxy": "localhost"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert "localhost,127.0.0.1 inner,127.0.0.1,localhost" == done.stdout.splitlines()[-1]
