"""The documentation site: every page is in it and in its navigation, every link and anchor leads somewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_site_is_whole_and_needs_no_network(tmp_path: Path) -> None:
    """Sphinx reads every page and resolves every link; whatever it warns of is an error.

    Nothing is drawn: `make site` writes the HTML, from the same pages with the same checks.
    """
    argv = f"-q -n -W --keep-going -b dummy -d {tmp_path / 'read'} -c docs . {tmp_path}".split()
    nowhere = {"http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1", "PATH": "", "LANG": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *argv], cwd=ROOT, env=nowhere, capture_output=True, text=True, check=False
    )
    assert (0, "") == (done.returncode, done.stderr)
