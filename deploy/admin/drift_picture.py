"""Draws the picture of ``drift report``: the current bins of each variable over its reference, with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.figure import Figure

from deploy.admin.drift_counts import Verdicts

_COLUMNS: Final = 3
_COLOURS: Final = {"drift": "#a3162a", "moved": "#8a5a00", "steady": "#0a6b38", "too few": "#5b6576"}


def draw(found: Verdicts, path: Path) -> None:
    """Write one picture with a panel per variable. The suffix decides the format (``.png``, ``.svg``, ``.pdf``).

    Raises ``ValueError`` for an unknown suffix, ``OSError`` if the file cannot be written.
    """
    rows = max(1, -(-len(found) // _COLUMNS))
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(4.4 * _COLUMNS, 2.9 * rows), layout="constrained")
        axes = figure.subplots(rows, _COLUMNS, squeeze=False)
        for axis in axes.flat[len(found) :]:
            axis.set_axis_off()
        for axis, verdict in zip(axes.flat, found, strict=False):
            now = [count / verdict.n if verdict.n else 0.0 for count in verdict.counts]
            places = range(len(verdict.bins))
            axis.bar(places, now, width=0.8, color="#3b7ddd", label="now")
            axis.bar(places, verdict.reference, width=0.92, fill=False, edgecolor="#5b6576", label="reference")
            axis.set_xticks(places, verdict.bins, rotation=45, ha="right")
            axis.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
            axis.set_title(f"{verdict.endpoint} {verdict.version} · {verdict.variable}", loc="left")
            axis.set_title(verdict.state, loc="right", color=_COLOURS[verdict.state])
            numbers = f"PSI {verdict.psi:.3f}, n {verdict.n:.0f}" if verdict.n else "n 0"
            axis.set_xlabel(numbers)
        axes.flat[0].legend(frameon=False, loc="upper right")
        figure.savefig(path, dpi=120)
