"""The sources of callers, and the store of their quotas, that the settings name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from gateway.callers.files import KeyFile
from gateway.callers.following import Source
from gateway.callers.keys import BadKeys, read_pepper
from gateway.callers.registry_keys import RegistryKeys
from gateway.callers.shared_quotas import QuotaStore
from gateway.registry.ledger import Ledger
from gateway.settings import Settings

KEYS_FILE = "keys_file"
REGISTRY = "registry"
_STORES = ("redis", "rediss", "valkey", "valkeys")


def sources_of(settings: Settings, ledger: Ledger | None = None) -> dict[str, Source]:
    """Return the sources by name; that of the registry only with its ``ledger``. Raises ``ValueError`` for settings
    that do not fit together.
    """
    found: dict[str, Source] = {}
    if settings.keys_file:
        found[KEYS_FILE] = KeyFile(settings.keys_file, settings.pepper_file)
    if settings.keys_from_registry:
        if not settings.pepper_file:
            raise ValueError(
                "TRITON_GATEWAY_PEPPER_FILE is needed with TRITON_GATEWAY_KEYS_FROM_REGISTRY: give every gateway the "
                "same file"
            )
        if ledger is not None:
            found[REGISTRY] = RegistryKeys(
                ledger, settings.pepper_file, period=settings.poll_frequency,
                last_good=settings.state_dir / "gateway" / "callers.json",
            )  # fmt: skip
    if settings.jwt_issuer:
        # Imported here: cryptography takes a moment to load, and most gateways have no issuer.
        from gateway.callers.tokens import ALGORITHMS, CLAIMS, SOURCE, Issuer, JwksSource

        audience = _parts(settings.jwt_audience)
        if not audience:
            raise ValueError(
                "TRITON_GATEWAY_JWT_AUDIENCE is needed with TRITON_GATEWAY_JWT_ISSUER: without it, tokens for other "
                "services would be accepted"
            )
        algorithms = _parts(settings.jwt_algorithms)
        if not algorithms or not set(algorithms) <= set(ALGORITHMS):
            raise ValueError(f"TRITON_GATEWAY_JWT_ALGORITHMS must be of {', '.join(ALGORITHMS)}")
        setting, place = ("KEYS", settings.jwt_keys) if settings.jwt_keys else ("ISSUER", settings.jwt_issuer)
        if (setting == "ISSUER" or "://" in place) and not place.startswith(("https://", "http://")):
            raise ValueError(f"TRITON_GATEWAY_JWT_{setting}: {place} is not an https address")
        claims = dict(part.partition("=")[::2] for part in _parts(settings.jwt_claims))
        if not set(claims) <= set(CLAIMS) or not all(claims.values()):
            raise ValueError(f"TRITON_GATEWAY_JWT_CLAIMS must be NAME=CLAIM pairs, with NAME of {', '.join(CLAIMS)}")
        found[SOURCE] = JwksSource(Issuer(settings.jwt_issuer, audience, settings.jwt_keys, algorithms, claims))
    return found


def check(settings: Settings) -> None:
    """Read the sources that are files. Raises ``ValueError`` with the setting's name if one cannot be used.

    The registry and an issuer's address are not checked: they may be away for a moment.
    """
    for name, source in sources_of(settings).items():
        if name == KEYS_FILE:
            _check_readable("KEYS_FILE", source.look)
        elif settings.jwt_keys and "://" not in settings.jwt_keys:
            _check_readable("JWT_KEYS", source.look)
    if settings.keys_from_registry:
        _check_readable("PEPPER_FILE", lambda: read_pepper(Path(settings.pepper_file).read_bytes()))


def store_of(settings: Settings) -> QuotaStore | None:
    """Return the store of quotas; None if there is none. Connects to nothing.

    Raises ``ValueError`` for unusable settings, and ``ModuleNotFoundError`` if its library is not installed; no message
    repeats the address, which may hold a password.
    """
    address = settings.quota_store
    others = {"PASSWORD_FILE": settings.quota_store_password_file, "AUTHORITY": settings.quota_store_authority}
    if not address:
        idle = next((name for name, value in others.items() if value), "")
        if idle:
            raise ValueError(f"TRITON_GATEWAY_QUOTA_STORE_{idle} does nothing without TRITON_GATEWAY_QUOTA_STORE")
        return None
    if not settings.knows_callers:
        raise ValueError(
            "TRITON_GATEWAY_QUOTA_STORE does nothing without keys, tokens or client certificates: callers have no "
            "tenants, so there are no quotas (docs/access.md)"
        )
    try:
        parts = urlsplit(address)
        has_place = bool(parts.hostname) and parts.port != 0
        password = parts.password
    except ValueError:
        has_place, password, parts = False, None, urlsplit("")
    if password:
        raise ValueError(
            "TRITON_GATEWAY_QUOTA_STORE contains a password, which others could read: write it to a file, and name the "
            "file in TRITON_GATEWAY_QUOTA_STORE_PASSWORD_FILE"
        )
    if parts.scheme not in _STORES or not has_place or parts.query or not (parts.path.strip("/") or "0").isdecimal():
        raise ValueError(
            "TRITON_GATEWAY_QUOTA_STORE is no address of a store: write redis://HOST:PORT/DATABASE, or with rediss, "
            "valkey or valkeys for redis (an s at the end: with TLS)"
        )
    if settings.quota_store_authority and parts.scheme not in ("rediss", "valkeys"):
        raise ValueError("TRITON_GATEWAY_QUOTA_STORE_AUTHORITY does nothing without TLS: write rediss:// or valkeys://")
    for name, path in others.items():
        if path:
            _check_readable(f"QUOTA_STORE_{name}", Path(path).read_bytes)
    try:
        # Imported here, because the library is an extra.
        from gateway.callers.redis_store import RedisStore
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"TRITON_GATEWAY_QUOTA_STORE is set, but {error.name} is not installed; run `pip install "
            '"triton-gateway[redis]"`, or unset it'
        ) from error
    return RedisStore(
        address, password_file=settings.quota_store_password_file, authority=settings.quota_store_authority,
        name=settings.quota_store_name,
    )  # fmt: skip


def _check_readable(setting: str, look: Callable[[], object]) -> None:
    try:
        look()
    except OSError as error:
        raise ValueError(f"TRITON_GATEWAY_{setting}: {error.filename} cannot be read: {error.strerror}") from error
    except BadKeys as error:
        raise ValueError(f"TRITON_GATEWAY_{setting}: {error}") from error


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
