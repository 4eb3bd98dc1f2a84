"""`python -m gateway` over fakes: a real process with workers and sockets, without a control plane or a Triton.

It serves twelve text endpoints ``e0`` to ``e11``, version 1 and 2 of ``v`` with the bare name ``v``, and the canary
``c`` over them. While its folder has a file ``hold``, the fake Triton has none of their models.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from gateway import app, default_version
from gateway.__main__ import main
from gateway.registry.ledger import Record
from gateway.spec import decode, triton_model_name
from tests.fakes import FakeBackend, FakeRegistry
from tests.processes import ROOT, Server, free_port
from tests.waiting import until
from tests.words import text_bundle

URLS = (*(f"e{number}" for number in range(12)), "v/1", "v/2")
NAMES = (*URLS, "v", "c")
BODY = {"text": "good"}
_LONG_S = 60.0
"""A connection that a worker took which was then killed or stopped may never be answered: it is given up."""


class FakeGateway(Server):
    """One such process on a free port. ``settings`` are its variables."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.port = folder, free_port()
        if not (folder / "m.zip").exists():
            bundle = text_bundle(folder / "bundle", max_position_embeddings=32)
            shutil.make_archive(str(folder / "m"), "zip", bundle)
        given = {"port": self.port, "state_dir": folder / "state", "workers": 2, "log_format": "text", **settings}
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_GATEWAY_")}
        environ |= {f"TRITON_GATEWAY_{name.upper()}": str(value) for name, value in given.items()}
        environ["CLEARML_SERVING_POLL_FREQ"] = "1s"
        argv = [sys.executable, "-m", "tests.fake_gateway", str(folder)]
        super().__init__("gateway", argv, env=environ, cwd=ROOT, log=folder / "gateway.log")
        self.url = f"http://127.0.0.1:{self.port}"

    def logged(self) -> str:
        """Return what the process and its workers have logged."""
        return self.log.read_text()

    def hold(self, *, held: bool) -> None:
        """Let new workers wait for their models, or no longer."""
        if held:
            (self.folder / "hold").touch()
        else:
            (self.folder / "hold").unlink()

    def workers(self) -> set[int]:
        """Return the ids of the workers that have begun to run."""
        found = {int(path.name.partition("-")[2]) for path in self.folder.glob("worker-*")}
        return {pid for pid in found if Path(f"/proc/{pid}").exists()}

    def ask(self, name: str = "e0") -> int:
        """Return the status of one request on a connection of its own; 0 if the connection fails."""
        try:
            return httpx.post(f"{self.url}/serve/{name}", json=BODY, timeout=_LONG_S).status_code
        except httpx.TransportError:
            return 0

    def get(self, path: str) -> int:
        """Return the status of an operators' route; 0 if the connection fails."""
        try:
            return httpx.get(f"{self.url}{path}", timeout=_LONG_S).status_code
        except httpx.TransportError:
            return 0

    def in_flight(self) -> int:
        """Return how many requests the workers are answering."""
        text = httpx.get(f"{self.url}/metrics", timeout=_LONG_S).text
        found = re.findall(r"^gateway_requests_in_flight\S* (\d+)", text, re.M)
        return sum(map(int, found))

    def is_listening(self) -> bool:
        """Return whether a connection is possible."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=30):
            return True
        return False

    def served(self, count: int = 2) -> None:
        """Wait until as many workers listen, and every name is answered several times in a row."""
        until(lambda: len(self.workers()) == count and self.logged().count("accepts connections") >= count)
        until(lambda: all(self.ask(name) == 200 for name in NAMES * 3))


class Held(FakeBackend):
    """Has no models while the file exists."""

    def __init__(self, hold: Path) -> None:
        super().__init__()
        self._hold = hold

    async def is_ready(self, model: str) -> bool:
        """See ``Backend.is_ready``."""
        return not self._hold.exists() and await super().is_ready(model)


def _scores(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"logits": np.zeros((len(inputs["input_ids"]), 2), np.float32)}


def run(folder: Path) -> int:
    """Run the gateway over fakes."""
    registry = FakeRegistry()
    registry.add_model("m", folder / "m.zip", is_package=True)
    for url in URLS:
        name, _, version = url.partition("/")
        registry.add_endpoint(name, "m", version=version)
    registry.canary["c"] = {"endpoint": "c", "weights": [0.5, 0.5], "load_endpoints": ["v/1", "v/2"]}
    registry.ledger.write(
        [Record(default_version.KIND, *default_version.record("first", "v", default_version.Default("v/1")))]
    )
    model = registry.model("m")
    specs = decode(registry.task()).endpoints.values()
    backend = Held(folder / "hold")
    for spec in specs:
        tensors = {"input_ids": "int64", "attention_mask": "int64"}
        backend.add(triton_model_name(spec, model), tensors, {"logits": "float32"}, _scores)
    app.ClearMLRegistry = lambda *_, **__: registry  # type: ignore[assignment, misc]
    app.TritonBackend = lambda *_, **__: backend  # type: ignore[assignment, misc]
    os.register_at_fork(after_in_child=lambda: (folder / f"worker-{os.getpid()}").touch())
    return main()


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1])))
