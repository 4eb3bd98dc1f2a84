"""The sources of callers, and the store of their quotas, that the settings name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.callers.following import Source
from gateway.callers.keys import FILE_S, KeyFile, RegistryKeys
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.callers.shared_quotas import SharedQuotas

_STORE = re.compile(
    r"(redis|valkey)s?://([^\s:/@?#]+@)?(\[[0-9a-fA-F:.]+\]|[^\s:/@?#\[\]]+)(:[1-9][0-9]{0,4})?(/[0-9]*)?$"
)
"""The address of a store, without a password."""


def sources_of(settings: Settings) -> dict[str, Source]:
    """Return the sources by name. Raises ``ValueError`` for settings that do not fit together."""
    found: dict[str, Source] = {}
    if settings.keys_file:
        found["keys_file"] = KeyFile(settings.keys_file)
    if settings.keys_from_registry:
        found["registry"] = RegistryKeys()
    if settings.jwt_issuer:
        # Imported here: cryptography takes a moment to load, and most gateways have no issuer.
        from gateway.callers.tokens import CLAIMS, SOURCE, Issuer, IssuerKeys

        audience, keys = _parts(settings.jwt_audience), settings.jwt_keys
        if not audience or not keys:
            raise ValueError(
                "TRITON_GATEWAY_JWT_AUDIENCE and TRITON_GATEWAY_JWT_KEYS are needed with TRITON_GATEWAY_JWT_ISSUER: "
                "without an audience, tokens for other services would be accepted; the address of the keys is jwks_uri "
                "in the issuer's /.well-known/openid-configuration"
            )
        if "://" in keys and not keys.startswith(("https://", "http://")):
            raise ValueError(f"TRITON_GATEWAY_JWT_KEYS: {keys} is not an https address")
        claims = dict(part.partition("=")[::2] for part in _parts(settings.jwt_claims))
        if not set(claims) <= set(CLAIMS) or not all(claims.values()):
            raise ValueError(f"TRITON_GATEWAY_JWT_CLAIMS must be NAME=CLAIM pairs, with NAME of {', '.join(CLAIMS)}")
        found[SOURCE] = IssuerKeys(Issuer(settings.jwt_issuer, audience, keys, claims))
    return found


def check(settings: Settings) -> None:
    """Read the sources that are files. Raises ``ValueError``, which names the file, if one cannot be used.

    The registry and an issuer's address are not checked: they may be away for a moment.
    """
    for source in sources_of(settings).values():
        if source.period == FILE_S:
            source.look()


def shared_quotas_of(
    settings: Settings, report: Callable[[str, bool], None] = lambda _address, _is_good: None
) -> SharedQuotas | None:
    """Return the quotas in the store that the settings name; None if there is none. Connects to nothing.

    Raises ``ValueError`` for unusable settings, and ``ModuleNotFoundError`` if its library is not installed; no message
    repeats the address, which may hold a password.
    """
    address, password = settings.quota_store, settings.quota_store_password_file
    if not address:
        return None
    if not _STORE.match(address):
        raise ValueError(
            "TRITON_GATEWAY_QUOTA_STORE is no address of a store: write redis://HOST:PORT/DATABASE, or with rediss, "
            "valkey or valkeys for redis (an s at the end: with TLS). A password in it could be read by others: write "
            "it to a file, and name the file in TRITON_GATEWAY_QUOTA_STORE_PASSWORD_FILE"
        )
    if password and not os.access(password, os.R_OK):
        raise ValueError(f"TRITON_GATEWAY_QUOTA_STORE_PASSWORD_FILE: {password} cannot be read")
    try:
        # Imported here, because the library is an extra.
        from gateway.callers.shared_quotas import SharedQuotas
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"TRITON_GATEWAY_QUOTA_STORE is set, but {error.name} is not installed; run `pip install "
            '".[redis]"`, or unset it'
        ) from error
    return SharedQuotas(address, password, report)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
