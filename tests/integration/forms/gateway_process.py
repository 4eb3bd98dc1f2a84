"""The real gateway with a registry in memory, for client tests: ``python -m … DESCRIPTION.json``."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from gateway.app import Gateway
from gateway.http.server import Server
from gateway.settings import Settings
from gateway.triton.backend import TritonBackend
from tests.fakes import FakeRegistry


def main() -> None:
    """Serve until SIGTERM."""
    described = json.loads(Path(sys.argv[1]).read_text())
    registry = FakeRegistry()
    for model_id, path in described["models"].items():
        registry.add_model(model_id, Path(path), is_package=True)
    for endpoint in described["endpoints"]:
        registry.add_endpoint(endpoint.pop("url"), endpoint.pop("model"), **endpoint)
    for name, weights in described["canaries"].items():
        registry.canary[name] = {
            "endpoint": name, "weights": list(weights.values()), "load_endpoints": list(weights),
        }  # fmt: skip
    settings = Settings(**described["settings"])
    gateway = Gateway(
        settings, registry=registry,
        make_backend=TritonBackend,
    )  # fmt: skip
    listener = socket.create_server((settings.host, settings.port))
    Server(lambda: gateway, [listener], backlog=128, drain_timeout=5).run()


if __name__ == "__main__":
    main()
