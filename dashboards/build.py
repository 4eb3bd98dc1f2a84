"""Generates, compares and writes every generated file of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dashboards import boards, kubernetes, rules

FOLDER: Final = Path(__file__).parent
CHART: Final = FOLDER.parent / "k8s" / "helm" / "triton-gateway"


def generated() -> dict[Path, str]:
    """Return the texts of all generated files by path."""
    found = {FOLDER / "prometheus" / name: text for name, text in rules.files().items()}
    found |= {FOLDER / "grafana" / name: text for name, text in boards.files().items()}
    if CHART.is_dir():
        found |= kubernetes.files(CHART, rules=rules.files(), boards=boards.files())
    return found


def stale() -> list[Path]:
    """Return the files that differ from what is generated, and files that are no longer generated."""
    wanted = generated()
    present = {*FOLDER.glob("prometheus/*.yml"), *FOLDER.glob("grafana/*.json")}
    present |= {*CHART.glob("files/boards/*.json")}
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
