"""The demo's decisions, the stock CLI's failures, and which registry `up` uses; with stand-ins for the tools."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from deploy.controlplane import Credentials
from deploy.laptop.demo import minilm
from deploy.laptop.demo.minilm import cosine, register, stage_times, why_not_served
from deploy.laptop.serving_task import Seen
from deploy.laptop.stack import Stack, UpOptions
from deploy.laptop.state_dir import StateDir
from deploy.tools import http_client
from deploy.tools.errors import DeployError, StockCliFailed
from deploy.tools.stock_cli import StockCli

TASK = "a" * 32


class RecordingCli:
    """Stands for the stock CLI: notes what it was asked, hands out ids."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def upload_model(self, task_id: str, folder: Path, **_: Any) -> str:
        self.calls.append(f"upload {folder.name}")
        return "new"

    async def add_endpoint(self, task_id: str, endpoint: str, model_id: str, **_: Any) -> None:
        self.calls.append(f"add {endpoint} {model_id}")


CURRENT = {"task_id": TASK, "bundle": "minilm-1", "model_id": "old"}


@pytest.mark.parametrize(
    ("served", "remembered", "calls", "model"),
    [
        ("", {}, ["upload minilm-1", "add minilm new"], "new"),
        ("old", CURRENT, [], "old"),
        ("", CURRENT, ["add minilm old"], "old"),
        ("old", {**CURRENT, "bundle": "minilm-0"}, ["upload minilm-1", "add minilm new"], "new"),
        ("theirs", {**CURRENT, "bundle": "minilm-0"}, [], "theirs"),
        ("theirs", {}, [], "theirs"),
        ("", {**CURRENT, "task_id": "other"}, ["upload minilm-1", "add minilm new"], "new"),
    ],
    ids=["first time", "warm", "endpoint removed", "new export", "replaced by its user", "not ours", "another task"],
)
async def test_only_what_is_missing_is_registered(
    served: str, remembered: dict[str, str], calls: list[str], model: str
) -> None:
    """The demo registers what is not there, renews what is its own, and leaves everything else alone."""
    cli: Any = RecordingCli()
    seen = Seen(exists=True, endpoints={"minilm": served} if served else {})
    entry = await register(
        cli, TASK, Path("/x/minilm-1"), seen=seen, remembered=remembered, say=lambda _: None, live=lambda _: None
    )
    assert cli.calls == calls
    assert entry.model_id == model


def test_cosine_is_one_for_equal_directions_and_zero_for_right_angles() -> None:
    """The similarity shown is the cosine, not the dot product."""
    assert cosine([1, 0], [5, 0]) == pytest.approx(1)
    assert cosine([1, 0], [0, 2]) == pytest.approx(0)


def test_stage_times_are_shown_when_the_gateway_sends_them() -> None:
    """Headers become one readable phrase; without them nothing is shown."""
    headers = {"x-total-time": "9", "x-tokenization-time": "1", "x-inference-time": "7"}
    assert stage_times(headers) == "total 9 ms (tokenization 1, inference 7)"
    assert stage_times({}) == ""


def test_what_is_in_the_way_is_told_by_the_part_nearest_to_it() -> None:
    """A model that fails to load is a better reason than the gateway's waiting for it."""
    waiting = {"pending": [{"url": minilm.ENDPOINT, "state": "building", "reason": "not loaded"}]}
    failed = {"models": [{"endpoint": minilm.ENDPOINT, "state": "failed", "reason": "bad graph"}]}
    assert why_not_served(waiting, failed) == "its Triton model is failed: bad graph"
    assert why_not_served(waiting, None) == "building: not loaded"
    assert why_not_served({}, failed) == "the gateway does not answer"


# --- the stock CLI


def stock(tmp_path: Path, script: str) -> StockCli:
    """A `clearml-serving` that is the given script."""
    package = tmp_path / "clearml_serving"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(script)
    return StockCli(env={**os.environ, "PYTHONPATH": str(tmp_path)}, log=tmp_path / "log", timeout=60)


async def test_new_ids_are_read_from_what_the_tool_prints(tmp_path: Path) -> None:
    """The last id counts; other lines do not matter."""
    cli = stock(tmp_path, f"print('noise'); print('New Serving Service created: id={TASK}')")
    assert await cli.create_service("name") == TASK


@pytest.mark.parametrize(
    "script",
    [
        "import sys; print('Error: no such thing'); sys.exit(1)",
        "print('clearml.Task - ERROR - Action failed <400/0: tasks.edit/v1.0 (no such thing)>')",
        "print('Exception encountered while uploading: no such thing')",
    ],
    ids=["exit code", "refused write with exit code 0", "failed upload with exit code 0"],
)
async def test_failure_of_the_tool_is_a_failure_whatever_its_exit_code(tmp_path: Path, script: str) -> None:
    """The stock tool exits 0 after many failures; its own words are the reason shown."""
    with pytest.raises(StockCliFailed) as caught:
        await stock(tmp_path, script).run("model", "list")
    assert "`clearml-serving model list` failed" in caught.value.line()
    assert "no such thing" in caught.value.line()
    assert str(tmp_path / "log") in caught.value.line()


async def test_tool_that_hangs_is_ended(tmp_path: Path) -> None:
    """The stock tool retries an unreachable server in silence; here it gets a limit."""
    cli = StockCli(env=stock(tmp_path, "import time; time.sleep(600)").env, log=tmp_path / "log", timeout=0.2)
    with pytest.raises(StockCliFailed, match="did not finish"):
        await cli.run("list")


# --- which registry


class Silent:
    """A screen nobody looks at."""

    def say(self, text: str) -> None: ...
    def show(self, text: str) -> None: ...
    def live(self, text: str) -> None: ...
    def elapsed(self) -> float:
        return 0.0


REAL = {"CLEARML_API_HOST": "http://clearml", "CLEARML_API_ACCESS_KEY": "k", "CLEARML_API_SECRET_KEY": "s"}


def stack(tmp_path: Path, environ: dict[str, str], **options: Any) -> Stack:
    """A stack that is not started."""
    return Stack(UpOptions(state=StateDir.at(tmp_path), environ=environ, **options), Silent())


def test_server_named_by_the_environment_is_used(tmp_path: Path) -> None:
    """Host and both keys together name a ClearML server; the option turns them off."""
    assert not stack(tmp_path, REAL)._is_embedded()
    assert stack(tmp_path, REAL, embedded_controlplane=True)._is_embedded()
    assert stack(tmp_path, {})._is_embedded()


def test_half_a_configuration_is_refused(tmp_path: Path) -> None:
    """A host without keys is a mistake, and guessing which way would be another."""
    with pytest.raises(DeployError, match="CLEARML_API_SECRET_KEY"):
        stack(tmp_path, {k: v for k, v in REAL.items() if "SECRET" not in k})._is_embedded()


def test_our_own_environment_file_does_not_name_a_foreign_server(tmp_path: Path) -> None:
    """A shell in which the file of an earlier run was sourced starts the embedded control plane as before."""
    ours = Credentials.load_or_create(StateDir.at(tmp_path).controlplane)
    assert stack(tmp_path, {**REAL, "CLEARML_API_ACCESS_KEY": ours.access_key})._is_embedded()


async def test_server_that_does_not_listen_is_noticed_at_once() -> None:
    """The stock tools would retry it for minutes in silence; behind a proxy only they can tell."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert await http_client.can_connect(address, {})
    assert not await http_client.can_connect(address, {})
    assert not await http_client.can_connect("http://:x", {})
    assert await http_client.can_connect(address, {"http_proxy": "http://proxy:3128"})
