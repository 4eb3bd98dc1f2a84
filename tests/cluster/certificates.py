"""A certificate authority of one cluster, and what it signs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

_NAMES: Final = (
    "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "keda-operator.keda.svc", "127.0.0.1",
    "10.96.0.1",
)  # fmt: skip
_GROUP: Final = {"admin": "system:masters"}


class Authority:
    """Signs certificates, and keeps them as ``NAME.crt`` and ``NAME.key`` in a folder; its own is ``ca.crt``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._ca = trustme.CA()
        self.certificate = self._written("ca", self._ca.cert_pem, self._ca.private_key_pem)
        accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.account_key = folder / "accounts.key"
        self.account_key.touch(mode=0o600)
        self.account_key.write_bytes(
            accounts.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    def sign(self, name: str, user: str) -> tuple[Path, Path]:
        """Return the files of a certificate and of its key: for servers on loopback and for ``user``."""
        made = self._ca.issue_cert(*_NAMES, common_name=user, organization_name=_GROUP.get(user))
        return self._written(name, made.cert_chain_pems[0], made.private_key_pem), self.folder / f"{name}.key"

    def _written(self, name: str, certificate: trustme.Blob, key: trustme.Blob) -> Path:
        path = self.folder / f"{name}.key"
        path.touch(mode=0o600)
        key.write_to_path(str(path))
        certificate.write_to_path(str(path.with_suffix(".crt")))
        return path.with_suffix(".crt")
