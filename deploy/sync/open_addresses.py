"""Checks whether anybody can load models into a Triton, by trying without a key and without changing anything.

Called by ``doctor``. It tries to read the repository index, which Triton protects together with loading.
"""

from __future__ import annotations

import http.client
from typing import Final

from deploy.sync.client import AdminClient, Tls
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
