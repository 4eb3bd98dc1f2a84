"""The documentation tells what the code does: generated tables are current, links lead somewhere, names exist."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from gateway.metrics.catalog import CATALOG
from gateway.settings import Settings
from tests.docs.generated_tables import chart_values, refresh
from tests.kube_tools import CHART

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), CHART / "README.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_generated_tables_are_current(page: Path) -> None:
    """`UPDATE_DOCS=1 .venv/bin/python -m pytest tests/docs` rewrites them."""
    text = page.read_text()
    current = refresh(text)
    if os.environ.get("UPDATE_DOCS") and current != text:
        page.write_text(current)
        text = current
    assert current == text


def test_every_value_of_the_chart_is_described() -> None:
    """By a comment above it, or above its group, and with the default that Helm reads."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    found = {path: (default, about) for path, default, about in chart_values()}
    assert [*values] == [path for path in found if "." not in path]
    assert [] == [
        path for path, (default, about) in found.items()
        if not about and not found.get(path.rpartition(".")[0], ("", ""))[1] and default is not None
    ]  # fmt: skip


def test_every_setting_and_metric_that_a_page_names_exists() -> None:
    """Settings, variables of the commands, metrics of the gateway, the controller and model sync."""
    code = "".join(_text(path) for room in ("gateway", "deploy", "k8s") for path in (ROOT / room).rglob("*.[pty]*"))
    known = {f"TRITON_GATEWAY_{name.upper()}" for name in Settings.model_fields} | {metric.name for metric in CATALOG}
    pattern = r"\b(?:TRITON_GATEWAY_[A-Z_]+[A-Z]|(?:gateway|controller|model_sync)_[a-z_]+[a-z])\b"
    assert [] == [
        f"{page.name}: {name}"
        for page in PAGES
        for name in sorted(set(re.findall(pattern, page.read_text())))
        if {name, re.sub(r"_(bucket|sum|count|total)$", "", name)}.isdisjoint(known) and name not in code
    ]


def test_every_header_that_code_names_is_documented_and_the_reverse() -> None:
    """Names begin with `x-`, or are in the two tables of the page."""
    code = "".join(path.read_text() for path in (ROOT / "gateway").rglob("*.py"))
    used = set(re.findall(r'"(x-[a-z-]+)"', code))
    tables = re.findall(
        r"^\| (?:request|response) header .*\n((?:\|.*\n)+)", (ROOT / "docs/http-api.md").read_text(), re.M
    )
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", "".join(tables), re.M))
    encodings = {"x-gzip"}
    assert len(tables) == 2
    assert set() == used - encodings - listed
    assert set() == {name for name in listed if name not in code}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Relative links name existing files, and sections that these have."""
    targets = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)", page.read_text())
    assert [] == [
        f"{name}#{section}" for name, section in targets
        if not (there := page.parent / name if name else page).exists() or (section and section not in anchors(there))
    ]  # fmt: skip


def anchors(page: Path) -> set[str]:
    """What `page.md#…` may name, as GitHub and MyST make them of headings."""
    headings = re.findall(r"^#{1,6} (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pages_that_code_and_messages_name_exist() -> None:
    """In an error message, a comment, an alert, a value of the chart: the page is there, and the section of it."""
    kept = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    named = {
        (file, *found)
        for file in kept
        if not file.startswith(("tests/data", "benchmarks/results")) and Path(file).suffix not in (".png", ".jsonl")
        for found in re.findall(r"\bdocs/([\w/-]+\.md)(?:#([\w-]+))?", _text(ROOT / file))
    }
    assert len(named) > 50
    assert [] == sorted(
        one for one in named
        if not (page := ROOT / "docs" / one[1]).exists() or (one[2] and one[2] not in anchors(page))
    )  # fmt: skip


def test_sections_of_the_runbook_that_the_page_names_exist() -> None:
    """Each fault that the page can show leads to what to do about it."""
    script = (ROOT / "gateway" / "admin" / "browser" / "page.js").read_text()
    named = dict(re.findall(r"'([\w ]+)': '([\w-]+)',", script.partition("RUNBOOK = {")[2].partition("};")[0]))
    assert set(named.values()) <= anchors(ROOT / "docs" / "on-call.md")
    assert {"not served", "failing", "degraded", "old version", "unguarded", "drift"} <= set(named)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
        return ""
