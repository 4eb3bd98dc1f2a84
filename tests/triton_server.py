"""The real tritonserver of this environment as a child process, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deploy.tritonserver import launcher
from deploy.tritonserver.launcher import Ports, detect_server, prepared, remove_shared_memory
from tests.processes import LOOPBACK, Server, free_ports


class TritonServer(Server):
    """Live from its making until ``stop``, on free ports. It waits a second for connections that are still open.

    Raises ``ServerFailed`` if it ends before it is live.
    """

    def __init__(
        self, folder: Path, repository: Path, *, server: launcher.Server | None = None, host: str = LOOPBACK,
        ports: Ports | None = None, key: str = "", arguments: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.folder, self.ports = folder, ports or Ports(*free_ports(3))
        self.grpc, self.http, self.metrics = (f"{host}:{port}" for port in self.ports)
        argv, env, cwd = prepared(
            server or detect_server(), state_dir=folder, repository=repository, ports=self.ports, host=host, key=key,
            extra_arguments=("--exit-timeout-secs=1", *arguments),
        )  # fmt: skip
        super().__init__("triton", argv, env=env, log=folder / "logs" / "triton.log", cwd=cwd)
        try:
            self.wait_for(f"http://{self.http}/v2/health/live")
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it with everything that it started."""
        super().stop()
        remove_shared_memory(self.folder)
