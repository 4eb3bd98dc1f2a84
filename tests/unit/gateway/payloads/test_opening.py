"""What the settings make of the payload log, and what is refused before a gateway starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.payloads.opening import check, payload_log
from gateway.settings import Settings


def made(**fields: Any) -> dict[str, Any] | None:
    """The status of the log that the settings ask for."""
    found = payload_log(Settings(**fields), lambda _outcome, _records: None, source="pod")
    return None if found is None else found.status()


def test_it_is_off_unless_it_is_asked_for() -> None:
    """Nothing is kept by default, nor with shares of zero."""
    assert made() is None
    assert made(payload_log="*=0", payload_log_to="/tmp/x") is None


def test_it_writes_beside_the_state_a_folder_or_an_address(tmp_path: Path) -> None:
    """Without credentials in what is shown."""
    for to, shown in (
        ("", str(tmp_path / "payloads")), (str(tmp_path / "other"), str(tmp_path / "other")),
        ("https://u:p@c:1/e", "https://c:1/e"),
    ):  # fmt: skip
        found = made(payload_log="*=1", payload_log_to=to, state_dir=tmp_path)
        assert found is not None
        assert shown == found["to"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"payload_log": "everything"}, "TRITON_GATEWAY_PAYLOAD_LOG: 'everything' is not ENDPOINT=SHARE"),
        ({"payload_log_to": "s3://bucket"}, "TRITON_GATEWAY_PAYLOAD_LOG_TO: s3://bucket is neither"),
        ({"payload_log_redact": "secrets"}, "TRITON_GATEWAY_PAYLOAD_LOG_REDACT: 'secrets' is no rule"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(fields: dict[str, str], said: str) -> None:
    """Before a worker starts, with what to write instead."""
    with pytest.raises(ValueError, match=said):
        check(Settings(**{"payload_log": "*=1", **fields}))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """At the start, not with the first record."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"TRITON_GATEWAY_PAYLOAD_LOG_TO: the folder .* cannot be made"):
        check(Settings(payload_log="*=1", payload_log_to=str(tmp_path / "file" / "in")))
