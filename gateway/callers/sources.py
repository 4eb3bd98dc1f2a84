"""Which sources of callers the settings name."""

from __future__ import annotations

from gateway.callers.files import KeyFile
from gateway.callers.following import Source
from gateway.callers.registry_keys import RegistryKeys
from gateway.registry.ledger import Ledger
from gateway.settings import Settings

KEYS_FILE = "keys_file"
REGISTRY = "registry"


def sources_of(settings: Settings, ledger: Ledger | None = None) -> dict[str, Source]:
    """Return them by name; the registry's only with its ``ledger``. Raises ``ValueError`` for settings that cannot be
    meant.
    """
    found: dict[str, Source] = {}
    if settings.keys_file:
        found[KEYS_FILE] = KeyFile(settings.keys_file, settings.pepper_file)
    if settings.keys_from_registry:
        if not settings.pepper_file:
            raise ValueError(
                "TRITON_GATEWAY_PEPPER_FILE is needed with TRITON_GATEWAY_KEYS_FROM_REGISTRY: every gateway has "
                "the same"
            )
        if ledger is not None:
            found[REGISTRY] = RegistryKeys(
                ledger, settings.pepper_file, period=settings.poll_frequency,
                kept=settings.state_dir / "gateway" / "callers.json",
            )  # fmt: skip
    if settings.jwt_issuer:
        # Imported here: cryptography takes a moment to load, and most gateways have no issuer.
        from gateway.callers.tokens import ALGORITHMS, CLAIMS, SOURCE, Issuer, JwksSource

        audience = _parts(settings.jwt_audience)
        if not audience:
            raise ValueError(
                "TRITON_GATEWAY_JWT_AUDIENCE is needed with TRITON_GATEWAY_JWT_ISSUER: without it tokens that were "
                "made for others are good here"
            )
        algorithms = _parts(settings.jwt_algorithms)
        if not algorithms or not set(algorithms) <= set(ALGORITHMS):
            raise ValueError(f"TRITON_GATEWAY_JWT_ALGORITHMS must be of {', '.join(ALGORITHMS)}")
        claims = dict(part.partition("=")[::2] for part in _parts(settings.jwt_claims))
        if not set(claims) <= set(CLAIMS) or not all(claims.values()):
            raise ValueError(f"TRITON_GATEWAY_JWT_CLAIMS must be NAME=CLAIM pairs, with NAME of {', '.join(CLAIMS)}")
        found[SOURCE] = JwksSource(Issuer(settings.jwt_issuer, audience, settings.jwt_keys, algorithms, claims))
    return found


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
