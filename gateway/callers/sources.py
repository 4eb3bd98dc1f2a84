"""The sources of callers that the settings name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gateway.callers.files import KeyFile
from gateway.callers.following import Source
from gateway.callers.keys import BadKeys, read_pepper
from gateway.callers.registry_keys import RegistryKeys
from gateway.registry.ledger import Ledger
from gateway.settings import Settings

KEYS_FILE = "keys_file"
REGISTRY = "registry"


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


def _check_readable(setting: str, look: Callable[[], object]) -> None:
    try:
        look()
    except OSError as error:
        raise ValueError(f"TRITON_GATEWAY_{setting}: {error.filename} cannot be read: {error.strerror}") from error
    except BadKeys as error:
        raise ValueError(f"TRITON_GATEWAY_{setting}: {error}") from error


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
