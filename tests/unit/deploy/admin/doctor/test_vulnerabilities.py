"""The table of Triton's known vulnerabilities is complete and agrees with the bulletins."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from deploy.admin.doctor import vulnerabilities
from deploy.admin.doctor.vulnerabilities import BEHIND_THE_KEY, FIXES, RELEASES, ROUND_THE_KEY, WHEELS, known, look

ROOT = Path(__file__).parents[5]


def cves(version: str) -> set[str]:
    """Return the CVEs of a version."""
    return {cve for fix in known(version) for cve in fix.scores}


def test_the_release_before_the_first_chain_of_2025_was_mended_has_it() -> None:
    """25.06 is the last release with it; 25.07 has only those found later."""
    chain = {"CVE-2025-23310", "CVE-2025-23311", "CVE-2025-23317", "CVE-2025-23319", "CVE-2025-23320", "CVE-2025-23334"}
    assert chain <= cves("2.59.0")
    assert not chain & cves("2.59.1")
    assert "CVE-2026-24207" in cves("2.66.0")
    assert "CVE-2026-24207" not in cves("2.67.0")


def test_one_that_came_with_a_release_is_not_in_those_before() -> None:
    """Only 24.11 has it."""
    assert ["2.52.0"] == [version for version in RELEASES if "CVE-2024-53880" in cves(version)]


def test_the_image_that_we_build_on_has_none_that_is_known() -> None:
    """The pinned release is newer than all fixes."""
    pinned = re.search(r"tritonserver:(\d\d\.\d\d)-py3", (ROOT / "deploy/docker/triton.Dockerfile").read_text())
    assert pinned is not None
    version = next(version for version, release in RELEASES.items() if release == pinned[1])
    assert known(version) == ()
    assert look(version, "t", has_key=True).state == "ok"


def test_the_embedded_one_is_named_with_what_protects_it() -> None:
    """The installed wheel is in the table, and CVEs that bypass the key are named."""
    version = WHEELS[metadata.version("nvidia-pytriton")]
    found = look(version, "the embedded Triton", has_key=True, is_wheel=True)
    assert found.state == "note"
    for part in ("2.51.0 (24.10)", "CVE-2025-23310 (9.8)", "CVE-2026-24206, CVE-2026-24207, CVE-2026-47481 bypass"):
        assert part in found.detail
    assert len(found.detail) < 500
    assert cves(version) == set(re.findall(r"CVE-[0-9-]+", found.listed))
    assert "the wheel has no newer Triton" in found.remedy


@pytest.mark.parametrize(("version", "state"), [("", "note"), ("dev", "note"), ("2.59.1.post1", "note"), ("9.0", "ok")])
def test_any_version_gets_an_answer(version: str, state: str) -> None:
    """This includes unknown versions."""
    assert look(version, "t", has_key=False).state == state


def test_the_table_agrees_with_itself() -> None:
    """Versions match releases, identifiers are valid, and the sets about the key contain only known CVEs."""
    every = [cve for fix in FIXES for cve in fix.scores]
    assert len(every) == len(set(every))
    assert all(re.fullmatch(r"CVE-20\d\d-\d{4,5}", cve) for cve in every)
    assert all(RELEASES[fix.version] == fix.release for fix in FIXES)
    assert set(every) >= BEHIND_THE_KEY | ROUND_THE_KEY


def test_the_page_tells_the_date_of_the_table() -> None:
    """The page shows the date of the table."""
    assert vulnerabilities.AS_OF in (ROOT / "docs/triton.md").read_text()
