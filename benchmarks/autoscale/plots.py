"""Draws a scenario: load, gateways, Tritons, and failed or late requests, one line per signal. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.played import Trial

_COLOURS = {"cpu": "#c1666b", "ours": "#2a6f97"}


def draw(trials: Sequence[Trial], path: Path) -> None:
    """Write a PNG of one scenario's trials."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(4, 1, figsize=(9, 8), sharex=True, height_ratios=(1, 1.6, 1.2, 1.6))

    def lines(at: Any, name: str, title: str) -> None:
        for trial in trials:
            minutes = [t / 60 for t in trial.times]
            style = {"color": _COLOURS[trial.signal], "lw": 2.2 if trial.signal == "ours" else 1.2}
            at.plot(minutes, getattr(trial, name), label=trial.signal, drawstyle="steps-post", **style)
        at.set_ylabel(title)
        at.grid(alpha=0.3)

    first = trials[0]
    axes[0].fill_between([t / 60 for t in first.times], [rate / 1000 for rate in first.rates], color="#cccccc")
    axes[0].set_ylabel("1000 requests/s")
    axes[0].set_title(f"{first.scenario.name}: {first.scenario.about}", fontsize=10)
    lines(axes[1], "gateways", "gateways ready")
    lines(axes[2], "tritons", "Tritons ready")
    lines(axes[3], "bad", "failed or late /s")
    axes[1].legend(fontsize=8, ncol=len(trials))
    axes[3].set_xlabel("min")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)
