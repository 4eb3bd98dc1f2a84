"""A control plane in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control_planes import InProcess, in_process


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InProcess]:
    """It stores in the test's folder."""
    with in_process(tmp_path) as running:
        yield running
