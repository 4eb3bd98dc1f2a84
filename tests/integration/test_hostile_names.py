"""Whatever an address in the registry says, a download stays in its folder.

The names are those of models, packages and code on a file server that has a file at every address, and on a disk.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.errors import GatewayError
from gateway.registry.cache import ArtifactCache
from gateway.registry.clearml import ClearMLRegistry
from gateway.spec import ArtifactRef, ModelRecord
from tests.control_planes import RunningControlPlane
from tests.sites import site
from tests.stock import Client

pytestmark = pytest.mark.integration

_PACKED = io.BytesIO()
with zipfile.ZipFile(_PACKED, "w") as _archive:
    _archive.writestr("says.txt", "packed")
CONTENT = _PACKED.getvalue()

HOSTILE = [
    "", ".", "..", "..%2F..%2F..%2Fescaped.txt", "%2e%2e", "%2E%2e", "%2e%2e%2f%2e%2e%2fescaped.txt", "%2Fabs%2Fpath",
    "%2Fescaped.txt", "a%00b.py", "%00", f"{'n' * 300}.onnx", "%C3%A9" * 200, "ร้าน.onnx", "%E0%B8%A3.py", "%FF%FE.bin",
    "..%5C..%5Cescaped.txt", "C:%5Cescaped.txt", "model.onnx.", "model.onnx...", " ", "%20", "a%0Ab.py", "%0d%0a",
    "CON", "nul.txt", "LPT1", "~", "-rf", "files", "archive.zip", "manifest.json", "keep", "\ud800.py", "a%2Fb.py",
]  # fmt: skip
"""Last parts of addresses."""


@dataclass(frozen=True)
class World:
    """A registry, and the address of a server that has ``CONTENT`` at every address."""

    registry: ClearMLRegistry
    store: str


@pytest.fixture(scope="module")
def world(server: RunningControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The embedded control plane, and the store beside it."""
    client = Client(server, tmp_path_factory.mktemp("world"))
    with site(lambda _: (200, CONTENT), protocol="HTTP/1.1") as store, client.here():
        yield World(ClearMLRegistry(client.create("names")), f"{store}/m")


def names() -> st.SearchStrategy[str]:
    """Anything, and what is made of the worst parts."""
    parts = st.sampled_from(
        ["..", "%2F", "%5C", "%00", "%2e", "/", "x", "é", ".py", "?", "#", ":", "%", "%ff", "[", "@"]
    )
    return st.one_of(st.sampled_from(HOSTILE), st.lists(parts, max_size=9).map("".join), st.text(max_size=40))


def fetched(world: World, root: Path, address: str, *, is_package: bool) -> list[GatewayError]:
    """Fetch a model and code at an address, and check where they are; return why they could not be fetched."""
    cache = ArtifactCache(root, world.registry)
    model_id = hashlib.sha256(repr(address).encode()).hexdigest()[:32]
    model = ModelRecord(model_id, "m", address, "", is_package)
    code = ArtifactRef("py_code_m", address, None, is_archive=is_package)
    refusals = []
    for fetch in (lambda: cache.without_weights(model), lambda: cache.model(model), lambda: cache.artifact(code)):
        try:
            place = fetch()
        except GatewayError as error:
            refusals.append(error)
        else:
            assert place.is_relative_to(root)
            assert place.exists()
    return refusals


@settings(max_examples=50)
@given(name=names(), is_package=st.booleans(), is_whole=st.booleans())
@example(name="..%2F..%2F..%2F..%2F..%2Fescaped.txt", is_package=False, is_whole=False)
@example(name="%2Fescaped.txt", is_package=True, is_whole=False)
@example(name="\ud800", is_package=False, is_whole=False)
def test_a_download_stays_in_its_folder(
    world: World, tmp_path_factory: pytest.TempPathFactory, name: str, is_package: bool, is_whole: bool
) -> None:
    """With any last part of an address, and with any address; only our own errors come, and none is a full disk."""
    root = tmp_path_factory.mktemp("machine")
    address = name if is_whole else f"{world.store}/{name}"
    refusals = fetched(world, root / "deep" / "cache", address, is_package=is_package)
    assert [] == [error for error in refusals if "disk" in error.hint]
    assert {"deep"} >= {path.name for path in root.iterdir()}
    assert {"cache"} >= {path.name for path in root.glob("deep/*")}
    assert not Path("/escaped.txt").exists()
