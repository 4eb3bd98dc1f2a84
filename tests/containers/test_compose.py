"""docker-compose.yml brought up under podman, as it is: one request end to end, every target up, every board with data.

Run by ``.ci/containers/run`` (``.ci/run containers``) in a network namespace of its own, after it has built the images;
never part of the usual run. Prometheus, Alertmanager and HAProxy are Debian's, Grafana is left out: its boards' queries
are asked of the stack's Prometheus instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.callers import Callers
from tests.waiting import until

ROOT = Path(__file__).parents[2]
GATEWAY, PROMETHEUS = "http://127.0.0.1:8080", "http://127.0.0.1:9090"


def sh(*command: str, timeout: float = 120, check: bool = True) -> str:
    """Run a program and return what it printed."""
    done = subprocess.run(command, cwd=ROOT, timeout=timeout, text=True, capture_output=True, check=False)
    assert not check or done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def compose(*arguments: str, timeout: float = 400) -> str:
    """Run Compose over our file and the stand-ins."""
    files = ("-f", "docker-compose.yml", "-f", ".ci/containers/stand-ins.yml")
    return sh(os.environ["COMPOSE"], *files, *arguments, timeout=timeout)


def ask(url: str, body: Any = None) -> tuple[int, Any]:
    """Return status and JSON; 0 when nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, json.loads(reply.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, None
    except (OSError, ValueError):
        return 0, None


def query(expr: str) -> list[dict[str, Any]]:
    """Series of an instant query; an expression that Prometheus refuses fails the test."""
    code, answer = ask(f"{PROMETHEUS}/api/v1/query?{urllib.parse.urlencode({'query': expr})}")
    assert 200 == code, f"{expr}: {code}"
    return list(answer["data"]["result"])


@pytest.fixture(scope="module")
def podman() -> Iterator[None]:
    """Podman's Docker-compatible service, and health checks, which only tick with systemd."""
    address = f"unix://{os.environ['CONTAINERS_WORK']}/podman.sock"
    os.environ |= {"DOCKER_HOST": address, "DOCKER_BUILDKIT": "0"}
    service = subprocess.Popen(["podman", "system", "service", "--time=0", address], stderr=subprocess.DEVNULL)
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(1):
            for container in sh("podman", "ps", "-q", check=False).split():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    sh("podman", "healthcheck", "run", container, check=False, timeout=20)

    def listening() -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return 0 == probe.connect_ex(address.removeprefix("unix://"))

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        until(listening, what="podman's service")
        yield
    finally:
        stop.set()
        ticking.join()
        service.terminate()
        service.wait(20)


@pytest.fixture(scope="module")
def stack(podman: None) -> Iterator[None]:
    """The compose file's default profiles, up; logs are shown when a test failed."""
    try:
        compose("up", "-d", "--no-build")
        until(
            lambda: all(
                200 == ask(f"{GATEWAY}/serve/{url}", {"text": "good"})[0] for url in ("demo", "demo/1", "demo/2")
            ),
            what="answers of both versions through the balancer",
        )
        yield
    finally:
        print(compose("logs", "--no-color", "--tail", "40"))
        compose("down", "-v", "--timeout", "20")


def test_one_request_is_answered_end_to_end(stack: None) -> None:
    """Raw text in, the right answer out: balancer, gateway, Triton in containers of their own."""
    code, answer = ask(f"{GATEWAY}/serve/demo/1", {"text": "what a wonderful film"})
    assert (200, "POSITIVE") == (code, answer["label"])
    code, answer = ask(f"{GATEWAY}/serve/demo/2", {"text": ["a boring mess", "lovely staff"]})
    assert 200 == code
    assert ["NEGATIVE", "POSITIVE"] == [each["label"] for each in answer["results"]]


def test_every_container_runs_as_nobody_on_a_read_only_root(stack: None) -> None:
    """What the compose file asks for is in force in the running containers of ours."""
    for service in ("gateway", "controlplane", "sync", "triton"):
        container = compose("ps", "-q", service).split()[0]
        who = sh("podman", "exec", container, "id", "-u").strip()
        assert "65532" == who, service
        touched = subprocess.run(
            ["podman", "exec", container, "touch", "/opt/venv/x"], capture_output=True, text=True, check=False
        )
        assert "Read-only file system" in touched.stderr, service
        has_torch = "import importlib.util as u; print(u.find_spec('torch'))"
        assert "None" == sh("podman", "exec", container, "python", "-c", has_torch).strip()
        compilers = sh("podman", "exec", container, "sh", "-c", "command -v gcc cc g++ make pip || true")
        assert [] == [line for line in compilers.split() if line.startswith("/opt/venv") or "cc" in line]


def test_every_target_is_up(stack: None) -> None:
    """Two gateways, Triton, the controller, Prometheus and Alertmanager, found by name."""

    def jobs() -> dict[str, int]:
        found: dict[str, int] = {}
        for series in query("up == 1"):
            found[series["metric"]["job"]] = found.get(series["metric"]["job"], 0) + 1
        return found

    wanted = dict.fromkeys(("triton", "controller", "prometheus", "alertmanager"), 1) | {"triton-gateway": 2}
    until(lambda: jobs() == wanted, what=f"{wanted} are up")
    assert [] == query("up == 0")
    _, alertmanagers = ask(f"{PROMETHEUS}/api/v1/alertmanagers")
    assert 1 == len(alertmanagers["data"]["activeAlertmanagers"])
    _, rules = ask(f"{PROMETHEUS}/api/v1/rules")
    groups = rules["data"]["groups"]
    assert groups
    assert [] == [rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "err"]


def test_a_gateway_is_added_and_one_taken_away_without_a_failed_request(stack: None) -> None:
    """`--scale gateway=3`, then 1: the balancer follows; every request meanwhile is answered."""

    def one(_: int) -> str:
        code, _answer = ask(f"{GATEWAY}/serve/demo", {"text": "good"})
        return "" if code == 200 else str(code)

    with Callers(one, pause=0.05) as callers:
        for replicas in (3, 1):
            compose("up", "-d", "--no-build", "--no-recreate", "--scale", f"gateway={replicas}", "gateway")
            until(
                lambda n=replicas: n == len(query('up{job="triton-gateway"} == 1')),
                what=f"{replicas} gateways",
            )
    assert [] == callers.failures
    assert callers.asked > 20


def test_the_laptop_image_is_a_whole_stack() -> None:
    """One container: control plane, Triton, model sync, gateway; read-only root, nobody's user, one answer."""
    name = "triton-gateway-laptop-test"
    sh("podman", "run", "--detach", "--name", name, "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL",
       "--shm-size", "256m", "--network", "none", "localhost/triton-gateway-laptop:0.1.0")  # fmt: skip
    inside = ["podman", "exec", name]
    ask_it = (
        "import json, urllib.request as u; r = u.Request('http://127.0.0.1:8080/serve/demo/1', "
        "b'{\"text\": \"a lovely film\"}', {'content-type': 'application/json'}); "
        "print(json.loads(u.urlopen(r, timeout=5).read())['label'])"
    )
    try:
        until(lambda: sh(*inside, "cat", "/var/lib/triton-gateway/env", check=False), what="`up` is up")
        sh(*inside, "sh", "-c", ". /var/lib/triton-gateway/env && python -m deploy.laptop.demo.seed", timeout=240)
        until(lambda: "POSITIVE" in sh(*inside, "python", "-c", ask_it, check=False), what="an answer")
        assert "65532" == sh(*inside, "id", "-u").strip()
    except AssertionError:
        print(sh("podman", "logs", name, check=False))
        raise
    finally:
        sh("podman", "rm", "--force", "--time", "15", name, check=False)
