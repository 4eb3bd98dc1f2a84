"""What ``make test`` leaves to ``make long`` is listed, and little."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
MOST: Final = 0.05
"""Share of the cases: more would be another suite."""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_is_left_out_is_listed_and_little() -> None:
    """File by file with the number of cases; `UPDATE_DOCS=1 make long ARGS=tests/docs` writes the numbers anew."""
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "long", "-p", "no:cacheprovider"],
        cwd=ROOT, env={**os.environ, "PYTEST_ADDOPTS": ""}, capture_output=True, text=True, timeout=500, check=True,
    ).stdout  # fmt: skip
    found = Counter(re.findall(r"^tests/(\S+?)::", collected, re.M))
    of_all = re.search(r"^(\d+)/(\d+) tests collected", collected, re.M)
    assert of_all is not None, collected[-1000:]
    chosen, cases = int(of_all[1]), int(of_all[2])
    assert chosen == sum(found.values())
    assert chosen <= MOST * cases
    text = PAGE.read_text()
    if os.environ.get("UPDATE_DOCS"):
        for file, number in found.items():
            text = re.sub(rf"^(\| `{re.escape(file)}` \|) \d+ ", rf"\g<1> {number} ", text, flags=re.M)
        text = re.sub(r"\d+ of [\d,]+ cases", f"{chosen} of {cases:,} cases", text)
        PAGE.write_text(text)
    assert found == {file: int(number) for file, number in re.findall(r"^\| `(\S+\.py)` \| (\d+) \|", text, re.M)}
    assert f"{chosen} of " in text
