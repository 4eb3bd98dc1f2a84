"""TLS to Triton: which files, and the name that the certificate must have. No gRPC here.

Triton offers TLS for gRPC only. ``grpc`` makes channels with it, for gateways; model sync and ``doctor`` make their own
(``deploy/sync/client.py``). Files are read at each new connection, so replaced files need no restart.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TritonTls:
    """PEM files for TLS to Triton: the authority to trust (empty: the system's), and a client certificate with its key.

    ``name`` is the name that the server's certificate must have; empty: the host of the address.
    """

    authority: str = ""
    certificate: str = ""
    key: str = ""
    name: str = ""

    def changed(self) -> tuple[float, ...]:
        """Return the files' modification times. Raises ``OSError`` for a file that cannot be read."""
        return tuple(Path(name).stat().st_mtime for name in (self.authority, self.certificate, self.key) if name)

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return the authority, the client's key and its certificate, None if not named. Raises ``OSError``."""
        authority, key, certificate = (
            Path(name).read_bytes() if name else None for name in (self.authority, self.key, self.certificate)
        )
        return authority, key, certificate


def in_folder(folder: str, name: str) -> TritonTls | None:
    """Return the TLS of ``Settings.triton_tls`` and its ``name``; None if both are empty.

    The folder has ``ca.crt``, or ``tls.crt`` with ``tls.key``, or all three.
    """
    if not folder:
        return TritonTls(name=name) if name else None
    authority, certificate, key = (Path(folder) / file for file in ("ca.crt", "tls.crt", "tls.key"))
    if not certificate.exists():
        return TritonTls(str(authority), name=name)
    return TritonTls(str(authority) if authority.exists() else "", str(certificate), str(key), name)


def for_address(address: str, tls: TritonTls | None) -> TritonTls | None:
    """Return ``tls``, or default TLS if the address (or one of several) begins with ``grpcs://``."""
    return tls or (TritonTls() if "grpcs://" in address else None)
