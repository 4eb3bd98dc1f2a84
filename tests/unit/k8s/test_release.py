"""What a release is made of states one version, and its notes are the changelog's.

tests/integration/long_release.py makes one.
"""

from __future__ import annotations

import pytest

from deploy.docker.release import ROOT, ReleaseRefused, notes, stated, version

CHANGELOG = (
    "# Changelog\n\n## Unreleased\n\n- new\n\n## 0.2.0 - 2026-11-01\n\n### Fixed\n\n- this\n\n## 0.1.0\n\n- that\n"
)


def test_every_place_states_the_version_of_pyproject() -> None:
    """Chart, images, compose file, manifests and pages."""
    found = dict(stated())
    assert {version()} == set(found.values())
    assert {"images of docker-compose.yml", "images of docs/deploy-compose.md", "Dockerfile ARG VERSION"} <= set(found)


@pytest.mark.parametrize(
    ("number", "said"), [("0.2.0", "### Fixed\n\n- this"), ("0.1.0", "- that"), ("0.3.0", "- new")]
)
def test_notes_are_the_changelogs_part_for_the_version(number: str, said: str) -> None:
    """Under its own heading, or what is unreleased as long as there is none."""
    assert f"# triton-gateway {number}\n\n{said}\n" == notes(CHANGELOG, number)


def test_a_version_the_changelog_says_nothing_of_is_refused() -> None:
    """With the line to add."""
    with pytest.raises(ReleaseRefused, match=r"add `## 0\.3\.0`"):
        notes(CHANGELOG.replace("- new", ""), "0.3.0")


def test_the_changelog_has_notes_for_the_next_release() -> None:
    """Or nobody could make it."""
    assert notes((ROOT / "CHANGELOG.md").read_text(), version())
