"""`make release` on this checkout: what it makes installs and agrees. Part of `make clients`."""

from __future__ import annotations

import hashlib

import pytest

from deploy.docker import release

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def test_a_release_installs_and_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    """Wheel, sdist, chart, site, notes, and the hashes of all of them; images are CI's with containers."""
    assert 0 == release.main(["--no-images"]), capsys.readouterr().err
    number = release.version()
    made = {path.name for path in release.OUT.iterdir()}
    assert {
        f"triton_gateway-{number}-py3-none-any.whl", f"triton_gateway-{number}.tar.gz", f"triton-gateway-{number}.tgz",
        f"triton-gateway-{number}-site.zip", "NOTES.md", "SHA256SUMS",
    } == made  # fmt: skip
    for line in (release.OUT / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert digest == hashlib.sha256((release.OUT / name).read_bytes()).hexdigest()
    assert "images are left out" in capsys.readouterr().err
