"""A certificate authority of one cluster, and what it signs; valid for a day."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_NAMES: Final = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "keda-operator.keda.svc")
_ADDRESSES: Final = ("127.0.0.1", "10.96.0.1")
_GROUP: Final = {"admin": "system:masters"}


class Authority:
    """Signs certificates, and keeps them as ``NAME.crt`` and ``NAME.key`` in a folder; its own is ``ca.crt``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a cluster for tests")])
        certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = self._written("ca", certificate, self._key)
        accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.account_key = self._private("accounts", accounts)

    def sign(self, name: str, user: str) -> tuple[Path, Path]:
        """Return the files of a certificate and of its key: for servers on loopback and for ``user``."""
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
        parts += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, _GROUP[user])] if user in _GROUP else []
        known = [x509.DNSName(each) for each in _NAMES]
        known += [x509.IPAddress(ipaddress.ip_address(each)) for each in _ADDRESSES]
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        certificate = (
            self._builder(x509.Name(parts), key.public_key())
            .add_extension(x509.SubjectAlternativeName(known), critical=False)
            .add_extension(usage, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return self._written(name, certificate, key), self.folder / f"{name}.key"

    def _builder(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )

    def _written(self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Path:
        path = self.folder / f"{name}.crt"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self._private(name, key)
        return path

    def _private(self, name: str, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> Path:
        path = self.folder / f"{name}.key"
        path.touch(mode=0o600)
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        return path
