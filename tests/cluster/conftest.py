"""One control plane for all tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import programs
from tests.cluster.control_plane import Cluster, started
from tests.cluster.nodes import Played


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep each test's group: pytest-xdist 3.8 writes it into an attribute that pytest 9.2 no longer reads."""
    for item in items:
        if grouped := getattr(item, "_nodeid", ""):
            item._id = type(item._id).parse(grouped)  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running one, with custom resource definitions; pods are ready soon."""
    with tempfile.TemporaryDirectory(prefix="cluster-", ignore_cleanup_errors=True) as folder:
        played = Played(gateway_ready=1, triton_ready=2, gone=1)
        with started(Path(folder), played=played) as running:
            running.define(*programs.MADE_OF)
            yield running
