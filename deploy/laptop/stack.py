"""Starts all parts of ``triton-gateway up`` in order, and stops them again: the composition root of one machine.

Called by ``commands/up.py`` with parsed options; shows progress on a ``Terminal``. The parts are the commands that a
production system runs separately (``controlplane``, ``sync``, ``serve``). Nothing here serves a request, or edits the
registry except through the stock CLI.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from deploy.controlplane import Credentials, environment
from deploy.laptop import relay
from deploy.laptop.demo import minilm
from deploy.laptop.registry_process import is_there
from deploy.laptop.state_dir import StateDir, in_home
from deploy.laptop.supervisor import Part, Probe, Supervisor
from deploy.tools import http_client, ports
from deploy.tools.clearml_serving import LEADS_ELSEWHERE, ClearMLServing
from deploy.tools.errors import DeployError
from deploy.tools.proxies import NAMES, except_loopback
from deploy.tools.terminal import Terminal
from deploy.tritonserver import key, launcher
from gateway.local_names import is_loopback
from gateway.triton import key as control_key

LOOPBACK = "127.0.0.1"
SERVICE_NAME = "triton-gateway"
CLEARML_KEYS = ("CLEARML_API_HOST", "CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY")
_SYNC_TIMEOUT_S = 120.0
"""Seconds after which a model sync that has not touched its file counts as hung."""

CONTROLPLANE_PORT: Final = 8008
"""ClearML's own port for its API."""

_CLI_VARIABLES = (
    "CLEARML_API_HOST", "CLEARML_WEB_HOST", "CLEARML_FILES_HOST", "CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY",
    "CLEARML_CONFIG_FILE", "CLEARML_SERVING_TASK_ID",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of ``up``. Port 0 chooses a free port, the same as last time if possible."""

    state: StateDir
    environ: Mapping[str, str] = field(repr=False)
    host: str = LOOPBACK
    port: int = 8080
    controlplane_port: int | None = None
    """None: ``CONTROLPLANE_PORT``, or a free one if a new state directory finds it taken."""
    workers: int = 1
    demo: bool = False
    model: str = ""
    """A model that ``deploy`` serves once everything is up; empty for none."""


@dataclass(frozen=True, slots=True)
class _Ports:
    gateway: int
    controlplane: int
    triton_grpc: int
    triton_http: int
    triton_metrics: int
    controller: int


async def run(options: UpOptions, screen: Terminal) -> int:
    """Start everything, wait for SIGINT or SIGTERM, and stop everything. Returns the exit code.

    Raises ``DeployError`` if a part cannot be started; everything is stopped again by then.
    """
    state = options.state
    state.prepare()
    with state.locked():
        stack = Stack(options, screen)
        loop = asyncio.get_running_loop()
        stop, received = asyncio.Event(), list[signal.Signals]()

        def on_signal(number: signal.Signals) -> None:
            received.append(number)
            if stop.is_set():
                screen.say("stopping immediately")
                stack.supervisor.hurry()
                boot.cancel()  # also what undoes its changes
            else:
                screen.say("stopping (Ctrl-C again: immediately)" if number == signal.SIGINT else "stopping")
            stop.set()

        is_up = False
        screen.say("starting; Ctrl-C stops everything, in order")
        boot = asyncio.create_task(stack.bring_up())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, on_signal, number)
        try:
            failed = stack.supervisor.failed
            ends: list[asyncio.Future[Any]] = [asyncio.create_task(stop.wait()), failed]
            await asyncio.wait([boot, *ends], return_when=asyncio.FIRST_COMPLETED)
            if boot.done():
                await boot
                is_up = True
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            else:
                boot.cancel()
                await asyncio.wait({boot})
                if not boot.cancelled():
                    boot.exception()  # a part that could not start any more: it was told to stop
            if failed.done():
                await failed
            return 0 if is_up else 128 + received[0]
        finally:
            await stack.take_down()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)


class Stack:
    """One run of ``up``: its choices, child processes and addresses."""

    def __init__(self, options: UpOptions, screen: Terminal) -> None:
        self._options = options
        self._state = options.state
        self._screen = screen
        self.supervisor = Supervisor(self._state.logs, screen.say)

    async def bring_up(self) -> None:
        """Start the parts in order, deploy the demo or model if requested, and show all addresses."""
        options, state, screen = self._options, self._state, self._screen
        state.clear_scratch()
        state.scratch.mkdir()
        triton = launcher.detect_server()
        is_embedded = self._is_embedded()
        bundle = await asyncio.to_thread(minilm.bundle, state.demo) if options.demo else None
        chosen = self._choose_ports(is_embedded=is_embedded)
        env = self._base_environment(chosen, is_embedded=is_embedded)
        cli = ClearMLServing(env=env, log=state.logs / "clearml-serving.log")
        gateway = f"http://{http_client.reachable_host(options.host)}:{chosen.gateway}"

        async with _task_group() as group:
            # children stop in the reverse of the order in which these tasks begin
            registry_up = group.create_task(self._start_registry(env, chosen, is_embedded=is_embedded))
            triton_up = group.create_task(self._start_triton(env, chosen))
            await registry_up
            env["CLEARML_SERVING_TASK_ID"] = await self._serving_task(cli, env, is_embedded=is_embedded)
            triton_grpc = await triton_up
            # the controller beside model sync carries out rollouts and judges drift
            its = {"TRITON_GATEWAY_URL": gateway, "TRITON_GATEWAY_CONTROLLER_HEALTH_PORT": str(chosen.controller)}
            sync_up = group.create_task(self._start_sync(triton, triton_grpc, {**its, **env}))
            # a variable in the environment overrides it
            near = {"TRITON_GATEWAY_TRITON_HTTP": str(chosen.triton_http)}
            gateway_up = group.create_task(self._start_gateway(gateway, chosen.gateway, triton_grpc, {**near, **env}))
            await sync_up
            await gateway_up
            state.remember(gateway=gateway)
            variables = _cli_environment(env, is_embedded=is_embedded)
            state.write_env(variables)
            if bundle is not None:
                await self._deploy(minilm.deployed(bundle), gateway, env)
            if options.model:
                await self._deploy([options.model], gateway, env)
        for line in self._summary(gateway, triton_grpc, chosen, variables, is_embedded=is_embedded):
            screen.show(line)
        screen.say(f"ready in {screen.elapsed():.1f} s: {gateway}/ shows what is served; Ctrl-C stops everything")

    async def take_down(self) -> None:
        """Stop all parts, the last started first. No process is left afterwards."""
        await self.supervisor.stop()
        launcher.remove_shared_memory(self._state.root)
        self._state.clear_scratch()

    # --- decisions ----------------------------------------------------------------------------------------------

    def _is_embedded(self) -> bool:
        """Return True if the embedded registry is used: no other server is configured."""
        environ = self._options.environ
        named = [name for name in CLEARML_KEYS if environ.get(name)]
        if not named:
            return True
        if len(named) < len(CLEARML_KEYS):
            missing = ", ".join(name for name in CLEARML_KEYS if name not in named)
            raise DeployError(
                f"{', '.join(named)} is set but {missing} is not",
                hint="set all three for your ClearML server, or unset them to use the embedded one",
            )
        with contextlib.suppress(OSError, DeployError):
            # the shell has sourced our own env file: it names the server that is about to be started
            ours = Credentials.load(self._state.controlplane)
            return environ["CLEARML_API_ACCESS_KEY"] == ours.access_key
        return False

    def _choose_ports(self, *, is_embedded: bool) -> _Ports:
        options = self._options
        ports.require_free(options.host, options.port, what="gateway", option="--port")
        last = self._state.recall().get("ports", {})
        controlplane = options.controlplane_port
        if controlplane is None:
            controlplane = int(last.get("controlplane", 0)) or CONTROLPLANE_PORT
            if is_embedded and not last and not ports.is_free(LOOPBACK, controlplane):
                # registered models name the port: only a new state directory may take another one
                self._screen.say(f"port {controlplane} is taken: the control plane gets another port")
                controlplane = 0
        if is_embedded:
            ports.require_free(LOOPBACK, controlplane, what="embedded control plane", option="--controlplane-port")
        used: set[int] = set()

        def choose(name: str, host: str, port: int) -> int:
            return ports.choose(host, port, remembered=int(last.get(name, 0)), avoid=used)

        chosen = _Ports(
            gateway=choose("gateway", options.host, options.port),
            controlplane=choose("controlplane", LOOPBACK, controlplane),
            triton_grpc=choose("triton_grpc", LOOPBACK, 0),
            triton_http=choose("triton_http", LOOPBACK, 0),
            triton_metrics=choose("triton_metrics", LOOPBACK, 0),
            controller=choose("controller", LOOPBACK, 0),
        )
        self._state.remember(ports=asdict(chosen))
        return chosen

    def _base_environment(self, chosen: _Ports, *, is_embedded: bool) -> dict[str, str]:
        state, environ = self._state, dict(self._options.environ)
        except_loopback(environ)
        # The parts read and write UTF-8 also if the terminal does not.
        environ["PYTHONUTF8"] = "1"
        environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        environ.setdefault("TRITON_GATEWAY_LOG_FORMAT", "text")
        environ.setdefault("TRITON_GATEWAY_POLL_FREQUENCY", environ.get("CLEARML_SERVING_POLL_FREQ") or "2s")
        # The SDK writes only into our folder. ONNX Runtime keeps a device id and an event store in its cache.
        cache = state.root / "cache" / "home"
        environ |= {
            "CLEARML_CACHE_DIR": str(cache / "clearml"), "XDG_CACHE_HOME": str(cache), "TMPDIR": str(state.scratch),
            "CLEARML_SUPPRESS_UPDATE_MESSAGE": "1", "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        if is_embedded:  # nothing is left that names another server, or leads away from ours
            kept = environ.keys() - LEADS_ELSEWHERE
            environ = {name: environ[name] for name in kept if not name.startswith(("CLEARML_API_", "TRAINS_"))}
            environ["CLEARML_CONFIG_FILE"] = str(state.root / "clearml.conf")
            credentials = Credentials.load_or_create(state.controlplane)
            environ |= environment(credentials, f"http://{LOOPBACK}:{chosen.controlplane}")
        return environ

    # --- parts --------------------------------------------------------------------------------------------------

    async def _start_registry(self, env: Mapping[str, str], chosen: _Ports, *, is_embedded: bool) -> None:
        if not is_embedded:
            server = env["CLEARML_API_HOST"]
            if not await asyncio.to_thread(http_client.listens, server, env):
                # the stock tools would retry silently for minutes
                raise DeployError(
                    f"the ClearML server at {server} (CLEARML_API_HOST) does not answer",
                    hint="start it, correct the variable, or unset it and its keys to use the embedded control plane",
                )
            self._screen.say(f"using the ClearML server at {server} (from the environment)")
            return
        address = f"http://{LOOPBACK}:{chosen.controlplane}"
        argv = _own_command("controlplane", state_dir=self._state.controlplane, host=LOOPBACK, port=chosen.controlplane)
        await self._start(Part("controlplane", argv, env, _http_probe(f"{address}/healthz")), address)

    async def _start_triton(self, env: Mapping[str, str], chosen: _Ports) -> str:
        argv = _own_command(
            "triton", state_dir=self._state.root, repository=self._state.repository, grpc_port=chosen.triton_grpc,
            http_port=chosen.triton_http, metrics_port=chosen.triton_metrics,
        )  # fmt: skip
        http = f"http://{LOOPBACK}:{chosen.triton_http}/v2"

        key_file = control_key.key_file(env.get("TRITON_GATEWAY_TRITON_KEY_FILE", ""), self._state.root)

        def hide_key(pid: int) -> None:
            if not key.hide(control_key.read_key(key_file), pid):
                self._screen.say("the key of Triton's control APIs is visible in this machine's process list (ps)")

        address = f"{LOOPBACK}:{chosen.triton_grpc}"
        await self._start(
            Part("triton", argv, env, _http_probe(f"{http}/health/live"), stop_grace=20.0, when_up=hide_key), address
        )
        return address

    async def _start_sync(self, triton: launcher.Server, triton_grpc: str, env: Mapping[str, str]) -> None:
        alive = self._state.sync_alive
        alive.unlink(missing_ok=True)

        async def has_synced() -> bool:
            return is_syncing(alive)

        argv = (*_own_command(
            "sync", state_dir=self._state.root, repository=self._state.repository, triton_grpc=triton_grpc,
            engine=triton.engine,
        ), "--controller")  # fmt: skip
        # Here all pools that endpoints name are this one Triton.
        env = {"TRITON_GATEWAY_POOL": "*", **env}
        await self._start(Part("sync", argv, env, has_synced))

    async def _start_gateway(self, address: str, port: int, triton_grpc: str, env: Mapping[str, str]) -> None:
        options = self._options
        its = {"state_dir": self._state.root, "host": options.host, "port": port, "workers": options.workers,
               "triton_grpc": triton_grpc}  # fmt: skip
        env = {
            "TRITON_GATEWAY_POOLS": f"*={triton_grpc}", **env,
            **{f"TRITON_GATEWAY_{name.upper()}": str(value) for name, value in its.items()},
        }  # fmt: skip
        if is_loopback(options.host):
            env["TRITON_GATEWAY_LOCAL_NAMES"] = options.host
        # longer than the gateway's own drain timeout of 30 s
        await self._start(
            Part("gateway", _own_command("serve"), env, _http_probe(f"{address}/v2/health/live"), stop_grace=40.0),
            address,
        )

    async def _start(self, part: Part, address: str = "") -> None:
        self._screen.live(f"starting {part.name}")
        took = await self.supervisor.start(part)
        self._screen.say(f"{part.name} is up ({took:.1f} s){f'  {address}' if address else ''}")

    async def _serving_task(self, cli: ClearMLServing, env: Mapping[str, str], *, is_embedded: bool) -> str:
        """Return the Task to serve: the given one, the one of last time, or a new one."""
        state, screen = self._state, self._screen
        registry = "embedded" if is_embedded else env["CLEARML_API_HOST"]
        known = state.recall().get("task", {})
        remembered = str(known.get("id", "")) if known.get("registry") == registry else ""
        task_id = env.get("CLEARML_SERVING_TASK_ID") or remembered
        if task_id:
            screen.live(f"looking up serving Task {task_id}")
            if await is_there(task_id, env=env, log=cli.log):
                return task_id
            if task_id != remembered:
                raise DeployError(
                    f"serving Task {task_id} (CLEARML_SERVING_TASK_ID) does not exist in this registry",
                    hint="unset the variable, then `up` creates a Task, or run `clearml-serving create --name NAME`",
                )
        screen.live(f"clearml-serving create --name {SERVICE_NAME}")
        task_id = await cli.create_service(SERVICE_NAME)
        state.remember(task={"id": task_id, "registry": registry})
        screen.say(f"clearml-serving create --name {SERVICE_NAME}: serving Task {task_id}")
        return task_id

    async def _deploy(self, model: Sequence[str], gateway: str, env: Mapping[str, str]) -> None:
        """Serve a model by running the command ``deploy`` against this stack."""
        arguments = ("deploy", *model, "--state-dir", str(self._state.root), "--url", gateway)
        await relay.run_ours(arguments, {**env, **hub_folder(self._options.environ)})

    # --- words --------------------------------------------------------------------------------------------------

    def _summary(
        self, gateway: str, triton_grpc: str, chosen: _Ports, variables: Mapping[str, str], *, is_embedded: bool
    ) -> list[str]:
        state = self._state
        endpoint = minilm.ENDPOINT if self._options.demo else "ENDPOINT"
        has_shown = bool(self._options.model or self._options.demo)
        registry = f"{variables['CLEARML_API_HOST']}" if is_embedded else "your ClearML server"
        return [
            "",
            f"  gateway        {gateway}/serve/{endpoint}",
            f"  status page    {gateway}/",
            f"  API docs       {gateway}/docs",
            f"  metrics        {gateway}/metrics",
            f"  control plane  {registry}",
            f"  Triton         gRPC {triton_grpc}, HTTP {LOOPBACK}:{chosen.triton_http}",
            f"  logs           {state.logs}",
            "",
            "For the clearml-serving CLI, in another terminal (the file contains keys; only you can read it):",
            f"  source {shlex.quote(str(state.env_file))}",
            f"  clearml-serving --id {variables['CLEARML_SERVING_TASK_ID']} model list",
            "",
            *([] if has_shown else [
                "To serve a model, in another terminal (./my-model stands for its folder):",
                f"  triton-gateway deploy ./my-model --state-dir {shlex.quote(str(state.root))}",
                "",
            ]),
        ]  # fmt: skip


def hub_folder(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that names the user's Hugging Face folder, with the user's token and downloaded models.

    Without such a folder, or if it cannot be written, nothing: downloads then stay in the state directory.
    """
    caches = environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = in_home(environ.get("HF_HOME") or f"{caches}/huggingface")
    return {"HF_HOME": str(folder)} if folder.is_dir() and os.access(folder, os.W_OK) else {}


def is_syncing(alive: Path) -> bool:
    """Return True if model sync works: it touches this file after each round."""
    with contextlib.suppress(OSError):
        return time.time() - alive.stat().st_mtime < _SYNC_TIMEOUT_S
    return False


def _http_probe(url: str) -> Probe:
    async def probe() -> bool:
        return await http_client.is_ok(url)

    return probe


def _own_command(command: str, **options: object) -> tuple[str, ...]:
    """Return the command line of one of our own sub-commands."""
    flags = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    return (sys.executable, "-P", "-m", "deploy.cli.main", command, *flags)


def _cli_environment(env: Mapping[str, str], *, is_embedded: bool) -> dict[str, str]:
    """Return the variables that a shell needs to reach the same registry. For another server it has the keys."""
    if not is_embedded:
        return {name: env[name] for name in ("CLEARML_SERVING_TASK_ID", *NAMES)}
    return {**{name: env[name] for name in (*_CLI_VARIABLES, *NAMES)}, **dict.fromkeys(LEADS_ELSEWHERE, "")}


@contextlib.asynccontextmanager
async def _task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Return a task group that raises its first failure instead of an exception group."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        found = failures.exceptions
        first = next((error for error in found if isinstance(error, DeployError)), found[0])
        raise first from first.__cause__
