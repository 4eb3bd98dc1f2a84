"""The sources of callers and the store of shared quotas that the settings name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.callers.sources import shared_quotas_of, sources_of
from gateway.settings import Settings
from tests.unit.gateway.callers.test_keys import written_file

ISSUER = {"jwt_issuer": "https://issuer.example/", "jwt_audience": "gateway", "jwt_keys": "https://h/k"}


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    """Settings of a gateway that knows callers."""
    (tmp_path / "keys.json").write_bytes(written_file())
    return {"keys_file": str(tmp_path / "keys.json")}


def test_every_source_that_is_set_is_followed(keys: dict[str, Any]) -> None:
    """By its name in the metrics."""
    settings = Settings(**keys, **ISSUER, keys_from_registry=True, jwt_claims="tenant=org")
    assert ["keys_file", "registry", "jwt"] == list(sources_of(settings))


@pytest.mark.parametrize(
    ("address", "place"),
    [("redis://h", "h:6379"), ("valkeys://gateway@h:7000/2", "h:7000"), ("valkey://[::1]:7000", "::1:7000")],
)
def test_usable_addresses_connect_to_nothing_yet(keys: dict[str, Any], address: str, place: str) -> None:
    """A store that is away never keeps a gateway from its start."""
    found = shared_quotas_of(Settings(**keys, quota_store=address))
    assert found is not None
    assert (place, None) == (found.address, found.is_good)
