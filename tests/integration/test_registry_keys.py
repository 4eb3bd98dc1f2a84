"""Keys beside the serving Task, from the command that makes one to the gateway process that answers by it.

Through the real clearml session and a control plane that is strict, as a ClearML server is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.control_planes import RunningControlPlane, control_plane
from tests.gateways import GatewayProcess
from tests.processes import free_port
from tests.stock import Client
from tests.waiting import until

pytestmark = pytest.mark.integration

ECHO = """
class Preprocess:
    def process(self, body, state, collect_custom_statistics_fn=None):
        return {"n": body["n"]}
"""


class Service(Client):
    """With the endpoint `echo`, and a gateway process that follows it and knows its keys."""

    def __init__(self, server: RunningControlPlane, folder: Path) -> None:
        super().__init__(server, folder)
        self.pepper = folder / "pepper"
        self.port = free_port()
        self.create("keys")
        (folder / "echo.py").write_text(ECHO)
        self.add("echo", "--preprocess", str(folder / "echo.py"), engine="custom")

    def keys(self, *arguments: str) -> str:
        """Run the command in a process of its own, as a person does."""
        where = ("--registry", "--pepper-file", str(self.pepper))
        return self.ours("keys", arguments[0], *where, *arguments[1:]).strip()

    def gateway(self) -> GatewayProcess:
        """Start a process on the same port and state."""
        return GatewayProcess(
            self, self.folder / "state", port=self.port, keys_from_registry="true", pepper_file=self.pepper,
        )  # fmt: skip


def asked(process: GatewayProcess, key: str) -> tuple[int, str]:
    """Status of one inference with a key, and why it was refused; 0 for no connection."""
    try:
        answer = process.post({"n": 1}, authorization=f"Bearer {key}")
    except httpx.TransportError:
        return 0, ""
    return answer.status_code, answer.headers.get("x-refused-because", "")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """See the class."""
    with control_plane(tmp_path / "controlplane") as server:
        yield Service(server, tmp_path)


@pytest.mark.long
def test_a_key_of_the_registry_works_until_it_is_revoked(service: Service) -> None:
    """Made by one process and revoked by another while a gateway runs; another key goes on, after a restart too."""
    first = service.keys("create", "--tenant", "acme")
    other = service.keys("create", "--tenant", "other")
    with service.gateway() as process:
        until(lambda: asked(process, first)[0] == 200)
        assert 200 == asked(process, other)[0]
        assert (401, "unknown_key") == asked(process, first[:-1])
        service.keys("revoke", first.split("_")[1])
        until(lambda: asked(process, first) == (401, "revoked"))
        assert 200 == asked(process, other)[0]
        third = service.keys("create", "--tenant", "acme")
        until(lambda: asked(process, third)[0] == 200)
        process.end()
    with service.gateway() as process:
        until(lambda: asked(process, third)[0] == 200)
        assert (401, "revoked") == asked(process, first)
    for file in (service.pepper, *service.pepper.parent.glob("state/**/last-good.json")):
        assert 0o600 == file.stat().st_mode & 0o777
