"""Checks whether anybody can load models into a Triton, by trying without a key and without changing anything.

``doctor`` calls ``open_addresses``. ``doctor --kube`` runs ``python -m deploy.sync.open_addresses GRPC HTTP`` in model
sync's container, next to the Triton, with that container's ``TRITON_TLS`` variables. It tries to read the repository
index, which Triton protects together with loading.
"""

from __future__ import annotations

import http.client
import os
import sys
from typing import Final

from deploy.sync.client import AdminClient, Tls, tls_in_environment
from deploy.tools.errors import GatewayError

_PATIENCE_S: Final = 10.0
REMEDY: Final = "start it with a key: docs/triton.md#who-may-load-models"


def open_addresses(grpc: str, http_address: str = "", tls: Tls | None = None) -> list[str]:
    """Return the addresses (``gRPC HOST:PORT``, ``HTTP HOST:PORT``) where models can be loaded without a key.

    An address that does not answer does not count as open. ``tls`` is for gRPC; Triton's HTTP has none.
    """
    found = []
    client = AdminClient(grpc, timeout_s=_PATIENCE_S, tls=tls)
    try:
        client.index()
        found.append(f"gRPC {grpc}")
    except GatewayError:
        pass
    finally:
        client.close()
    if http_address and _index_over_http(http_address):
        found.append(f"HTTP {http_address}")
    return found


def _index_over_http(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=_PATIENCE_S)
    try:
        connection.request("POST", "/v2/repository/index", b"")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def main(grpc: str, http_address: str = "") -> str:
    """Print each open address. Return why nothing could be checked; empty if the check was possible.

    A Triton that does not answer has no open address, which says nothing about it once it answers.
    """
    tls = tls_in_environment(os.environ)
    found = open_addresses(grpc, http_address, tls)
    for address in found:
        print(address)  # noqa: T201 - read by `doctor --kube`
    if found:
        return ""
    client = AdminClient(grpc, tls=tls)
    try:
        return "" if client.is_live(timeout_s=_PATIENCE_S) else f"no Triton answers at {grpc}"
    finally:
        client.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]) or 0)
