"""How a model's origin is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.cli.commands.lineage import lineage
from deploy.tools.errors import DeployError
from tests.fakes import FakeRegistry
from tests.unit.deploy.cli.test_state_file import make_store


def test_a_name_without_a_version_means_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a request."""
    store: FakeRegistry = make_store(tmp_path)
    monkeypatch.setattr(store, "lineage", lambda model_id: {"model": model_id})
    assert {"url": "faq/2", "served_as": ["faq/2"], "model": "m2"} == lineage(store, "/faq")  # type: ignore[arg-type]
    assert "faq/1" == lineage(store, "faq/1")["url"]  # type: ignore[arg-type]
    with pytest.raises(DeployError, match="there is no endpoint nothing"):
        lineage(store, "nothing")  # type: ignore[arg-type]
