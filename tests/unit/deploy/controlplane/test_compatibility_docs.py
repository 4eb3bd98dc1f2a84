"""The compatibility page lists exactly the calls that are implemented."""

import re
from pathlib import Path

from deploy.controlplane.app import CALLS

PAGE = Path(__file__).parents[4] / "docs" / "clearml-compatibility.md"


def test_every_implemented_call_is_documented_and_no_other() -> None:
    """A call that is added or removed changes the page in the same commit."""
    calls = PAGE.read_text(encoding="utf-8").split("## Calls")[1].split("**Queries**")[0]
    assert set(re.findall(r"`([a-z]+\.[a-z_]+)`", calls)) == CALLS
