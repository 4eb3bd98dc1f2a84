"""The compatibility page lists exactly the calls that are implemented."""

import re
from pathlib import Path

from deploy.controlplane.app import build
from deploy.controlplane.credentials import Credentials
from deploy.controlplane.store import Store

PAGE = Path(__file__).parents[4] / "docs" / "clearml-compatibility.md"


def test_every_implemented_call_is_documented_and_no_other(tmp_path: Path) -> None:
    """A call that is added or removed changes the page in the same commit."""
    store = Store(tmp_path / "db")
    app = build(state_dir=tmp_path, store=store, credentials=Credentials.generate())
    implemented = set(app.routes[-1].endpoint.__self__._endpoints)
    store.close()
    calls = PAGE.read_text(encoding="utf-8").split("## Calls")[1].split("**Queries**")[0]
    assert set(re.findall(r"`([a-z]+\.[a-z_]+)`", calls)) == implemented
