"""Option types and options that several sub-commands share."""

from __future__ import annotations

import _thread
import functools
import os
import signal
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

import click
from click.core import ParameterSource

from deploy.laptop.state_dir import StateDir, uses_no_clearml
from deploy.tools import http_client
from deploy.tools.errors import DeployError

if TYPE_CHECKING:  # imported inside functions otherwise: a killed Triton waits for the imports of `triton`
    from gateway.registry import ClearMLRegistry

F = TypeVar("F", bound=Callable[..., Any])

OpenRegistry = Callable[[], "ClearMLRegistry"]
"""Connects to the registry of the chosen serving Task; raises the registry's errors."""

PORT = click.IntRange(0, 65535)

_STATE_DIR: Final = "triton-gateway.state-dir"
"""Key of the state directory in a command's context."""


class _Duration(click.ParamType):  # type: ignore[type-arg] # generic in new versions of click only
    """Seconds, written as `90s`, `10m` or `1h`; a bare number counts ``unit``."""

    name = "duration"

    def __init__(self, unit: Literal["s", "min"] = "s") -> None:
        self._unit: Literal["s", "min"] = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds. Raises a usage error that names the option if ``value`` is invalid."""
        from gateway import settings

        try:
            return settings.parse_duration(value, bare_unit=self._unit)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION: Final = _Duration()
CLEARML_DURATION: Final = _Duration("min")
"""A bare number counts minutes, as in clearml-serving."""

SERVING_TASK: Final = click.option(
    "--serving-task-id", default="", envvar=["TRITON_GATEWAY_SERVING_TASK_ID", "CLEARML_SERVING_TASK_ID"],
    show_envvar=True, help="Id of the serving Task.  [default: the only running one]",
)  # fmt: skip

_DEFAULT_GATEWAY: Final = "http://127.0.0.1:8080"
_GATEWAY_OF: Final = "[default: the one `up` uses, else http://127.0.0.1:8080]"


def state_dir_option(function: F) -> F:
    """Decorate a command with ``--state-dir``, which ``chosen_state_dir`` reads. A second decoration does nothing."""
    if any(option.name == "state_dir" for option in getattr(function, "__click_params__", ())):
        return function

    def keep(context: click.Context, _parameter: click.Parameter, value: Path) -> None:
        context.meta[_STATE_DIR] = StateDir.at(value)

    return click.option(
        "--state-dir", type=click.Path(path_type=Path, file_okay=False), default=Path(".triton-gateway"),
        show_default=True, envvar="TRITON_GATEWAY_STATE_DIR", show_envvar=True, expose_value=False, callback=keep,
        help="State directory of an `up` on this machine. The command uses its gateway. It also uses its ClearML "
        "server and serving Task if you give this option, or if no other ClearML server is configured.",
    )(function)  # fmt: skip


def chosen_state_dir() -> StateDir:
    """Return the state directory of the running command."""
    found: StateDir = click.get_current_context().meta[_STATE_DIR]
    return found


def following_options(function: F) -> F:
    """Add the options of a program that follows a serving Task: which one, how often, and the form of its log.

    The command gets ``serving_task_id``, ``poll_s`` (seconds), ``files_rewrite`` and ``log_format``.
    """
    for add in (
        click.option(
            "--log-format", type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True,
            envvar="TRITON_GATEWAY_LOG_FORMAT", show_envvar=True, help="Format of the log on stderr.",
        ),
        click.option(
            "--files-rewrite", default="", envvar="TRITON_GATEWAY_FILES_REWRITE", show_envvar=True,
            metavar="FROM=TO,…",
            help="Replace this prefix of file addresses: FROM is what the uploader wrote, TO is what this machine can "
            "reach.",
        ),
        click.option(
            "--poll-frequency", "poll_s", type=CLEARML_DURATION, default="5s", show_default=True,
            envvar=["TRITON_GATEWAY_POLL_FREQUENCY", "CLEARML_SERVING_POLL_FREQ"], show_envvar=True,
            help="Time between two checks of the serving Task for changes. A bare number means minutes, as in "
            "clearml-serving.",
        ),
        SERVING_TASK,
    ):  # fmt: skip
        function = add(function)
    return function


def gateway_options(function: F) -> F:
    """Decorate a command with the options for one gateway; it gets ``gateway``, an address without a `/` at its end."""

    @click.option("--url", default="", envvar="TRITON_GATEWAY_URL", show_envvar=True,
                  help=f"Address of the gateway.  {_GATEWAY_OF}")  # fmt: skip
    @functools.wraps(function)
    def wrapped(*args: Any, url: str, **kwargs: Any) -> Any:
        return function(*args, gateway=_addresses([url] if url else [])[0], **kwargs)

    return cast(F, state_dir_option(wrapped))


def gateways_options(function: F) -> F:
    """Decorate a command with the option for several gateways; it gets ``gateways``, their addresses."""

    @click.option("--url", "gateways", multiple=True, envvar="TRITON_GATEWAY_URL", show_envvar=True,
                  help=f"Address of a gateway. Repeat the option for every gateway.  {_GATEWAY_OF}")  # fmt: skip
    @functools.wraps(function)
    def wrapped(*args: Any, gateways: tuple[str, ...], **kwargs: Any) -> Any:
        return function(*args, gateways=_addresses(gateways), **kwargs)

    return cast(F, state_dir_option(wrapped))


def _addresses(given: Iterable[str]) -> tuple[str, ...]:
    """Return the given gateways, otherwise the one of `up`, otherwise the default one."""
    found = tuple(address.rstrip("/") for address in given)
    return found or (str(chosen_state_dir().recall().get("gateway") or _DEFAULT_GATEWAY).rstrip("/"),)


def who() -> str:
    """Return who runs this command, as records name them: TRITON_GATEWAY_USER, otherwise user@host."""
    named = os.environ.get("TRITON_GATEWAY_USER", "").strip()[:100]
    return named or f"{os.environ.get('USER', 'somebody')}@{socket.gethostname()}"


def registry_options(function: F) -> F:
    """Decorate a command with the options for the serving Task; it gets ``open_registry``, which connects to it.

    The variables that `up` wrote for the shell are used if ``--state-dir`` was given, or if no other ClearML server is
    configured.
    """

    @SERVING_TASK
    @functools.wraps(function)
    def wrapped(*args: Any, serving_task_id: str, **kwargs: Any) -> Any:
        def open_registry() -> ClearMLRegistry:
            from gateway.registry import ClearMLRegistry  # the client takes long to import, and --help must be fast

            nonlocal serving_task_id
            variables = _variables_of_up()
            os.environ.update(variables)
            serving_task_id = serving_task_id or variables.get("CLEARML_SERVING_TASK_ID", "")
            return ClearMLRegistry(serving_task_id, say=lambda text: click.echo(text, err=True))

        return function(*args, open_registry=open_registry, **kwargs)

    return cast(F, state_dir_option(wrapped))


def _variables_of_up() -> dict[str, str]:
    """Return the variables of the ``up`` to use; empty if none is to be used."""
    if not (names_state_dir() or uses_no_clearml(os.environ)):
        return {}
    state = chosen_state_dir()
    variables = state.read_env()
    if names_state_dir() and not variables and uses_no_clearml(os.environ):
        raise DeployError(
            f"{state.root} is not the state directory of an `up`",
            hint="start `triton-gateway up`, or set CLEARML_API_HOST and its keys",
        )
    server = variables.get("CLEARML_API_HOST", "")
    if urllib.parse.urlsplit(server).hostname == "127.0.0.1" and not http_client.listens(server):
        raise DeployError(
            f"the `up` of {state.root} is not running: nothing answers at {server}",
            hint="start it again with `triton-gateway up`",
        )
    return variables


def names_state_dir() -> bool:
    """Return whether the command line names the folder of an ``up``."""
    given = click.get_current_context().get_parameter_source("state_dir")
    return given not in (None, ParameterSource.DEFAULT)


def stop_on_signal() -> threading.Event:
    """Return an event that Ctrl-C and SIGTERM set instead of ending the process.

    A thread sets it. Otherwise a signal that arrives while the main thread or another handler holds the event's lock
    would deadlock (a part of `up` gets two signals when its parent is killed). `threading.Thread` has a lock, too.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _thread.start_new_thread(stop.set, ()))
    return stop
