"""The payload log that the settings ask for, and settings that prevent a start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.payloads.opening import check, payload_log
from gateway.settings import Settings


def made(**fields: Any) -> dict[str, Any] | None:
    """Return the status of the log for given settings."""
    found = payload_log(Settings(**fields), lambda _outcome, _records: None)
    return None if found is None else found.status()


def test_the_log_is_off_by_default() -> None:
    """Also if all shares are zero."""
    assert made() is None
    assert made(payload_log="*=0") is None


def test_the_log_writes_to_the_state_folder(tmp_path: Path) -> None:
    """The status says so."""
    found = made(payload_log="*=1", state_dir=tmp_path)
    assert found is not None
    assert str(tmp_path / "payloads") == found["to"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"payload_log": "everything"}, "TRITON_GATEWAY_PAYLOAD_LOG: 'everything' is not ENDPOINT=SHARE"),
        ({"payload_log_redact": "secrets"}, "TRITON_GATEWAY_PAYLOAD_LOG_REDACT: 'secrets' is no rule"),
    ],
)
def test_contradictory_settings_are_refused_by_name(fields: dict[str, str], said: str) -> None:
    """Before a worker starts, with the right form."""
    with pytest.raises(ValueError, match=said):
        check(Settings(**{"payload_log": "*=1", **fields}))


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    """At start, not with the first record."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"TRITON_GATEWAY_PAYLOAD_LOG: the folder .* cannot be made"):
        check(Settings(payload_log="*=1", state_dir=tmp_path / "file"))
