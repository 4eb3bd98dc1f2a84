"""Draws a scenario: load, gateways, Tritons and what failed or came late, one line per signal. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.autoscale.simulate import Run, Scenario

_COLOURS = {"cpu": "#c1666b", "rps": "#d4b483", "in_flight": "#7d82b8", "ours": "#2a6f97"}


def draw(scenario: Scenario, runs: Sequence[Run], path: Path) -> None:
    """Write a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(4, 1, figsize=(9, 8), sharex=True, height_ratios=(1, 1.6, 1.2, 1.6))
    scale, unit = (3600.0, "h") if scenario.seconds > 4 * 3600 else (60.0, "min")

    def lines(at: Any, name: str, title: str) -> None:
        for run in runs:
            hours = [t / scale for t in run.times]
            style = {"color": _COLOURS.get(run.signal, "#444444"), "lw": 2.2 if run.signal == "ours" else 1.2}
            at.plot(hours, getattr(run, name), label=run.signal, drawstyle="steps-post", **style)
        at.set_ylabel(title)
        at.grid(alpha=0.3)

    first = runs[0]
    axes[0].fill_between([t / scale for t in first.times], [rate / 1000 for rate in first.rates], color="#cccccc")
    axes[0].set_ylabel("1000 requests/s")
    axes[0].set_title(f"{scenario.name}: {scenario.about}", fontsize=10)
    lines(axes[1], "gateways", "gateway pods")
    lines(axes[2], "tritons", "Tritons")
    lines(axes[3], "bad", "failed or late /s")
    axes[1].legend(fontsize=8, ncol=len(runs))
    axes[3].set_xlabel(unit)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)
