"""``triton-gateway controlplane`` as a container starts it: keys from the environment, a config for its clients."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from clearml.utilities.pyhocon import ConfigFactory

from deploy.cli.main import main
from deploy.controlplane import read_endpoint
from tests.waiting import LIMIT_S, until

ROOT = Path(__file__).parents[4]


def test_keys_of_the_environment_and_a_config_for_clients(tmp_path: Path) -> None:
    """The running server takes these keys, and its clients' file says its real address; only its user can read it."""
    config = tmp_path / "clients" / "clearml.conf"
    environ = {
        **os.environ, "TRITON_GATEWAY_CONTROLPLANE_ACCESS_KEY": "A" * 20,
        "TRITON_GATEWAY_CONTROLPLANE_SECRET_KEY": "s" * 40, "TRITON_GATEWAY_CONTROLPLANE_CLIENT_CONFIG": str(config),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "deploy.cli.main", "controlplane", "--port", "0",
         "--state-dir", str(tmp_path / "state")],
        env=environ, cwd=ROOT, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        until(lambda: config.exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr and process.stderr.read()
        running = read_endpoint(tmp_path / "state")
        assert running is not None
        api = ConfigFactory.parse_file(str(config))["api"]
        assert (running["api"], "A" * 20, "s" * 40) == (
            api["api_server"], api["credentials"]["access_key"], api["credentials"]["secret_key"],
        )  # fmt: skip
        assert 0o600 == config.stat().st_mode & 0o777
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT_S)
    assert b"s" * 40 not in said


def test_showing_the_environment_writes_no_config(tmp_path: Path) -> None:
    """`docker compose exec controlplane … --show-env --public-url http://localhost:8008` must not move the clients."""
    config = tmp_path / "clearml.conf"
    arguments = ["--state-dir", str(tmp_path / "state"), "--client-config", str(config), "--show-env"]
    assert 0 == main(["controlplane", *arguments, "--public-url", "http://localhost:8008"])
    assert not config.exists()
