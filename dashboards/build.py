"""Generates, compares and writes every generated file: rules and boards, in the Helm chart's ``files/``.

The folders ``prometheus`` and ``grafana`` of this package are links to them, which an installed package has as files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dashboards import boards, rules

FILES: Final = Path(__file__).parents[1] / "k8s" / "helm" / "triton-gateway" / "files"


def generated() -> dict[Path, str]:
    """Return the texts of all generated files by path."""
    found = {FILES / "rules" / name: text for name, text in rules.files().items()}
    return found | {FILES / "boards" / name: text for name, text in boards.files().items()}


def stale() -> list[Path]:
    """Return the files that differ from what is generated, and files that are no longer generated."""
    wanted = generated()
    present = {*FILES.glob("rules/*.yml"), *FILES.glob("boards/*.json")}
    return sorted(
        [p for p, text in wanted.items() if not p.is_file() or p.read_text() != text] + [*(present - {*wanted})]
    )


def write() -> list[Path]:
    """Write every file that differs; return what was changed."""
    changed = stale()
    wanted = generated()
    for path in changed:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path])
        else:
            path.unlink()
    return changed
