"""Draws a saved run. A separate program for an environment with matplotlib; see ``report``.

Arguments: the run's JSON and a folder for PNG files. Titles come as JSON on stdin. Prints the names of the pictures.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

_SIZE = (9, 4.8)


def main(run_file: str, folder: str) -> None:
    """Draw every plot for which the run has cells."""
    run, plan = json.loads(Path(run_file).read_text()), json.loads(sys.stdin.read())
    drawings = {"cpu": cpu, "throughput": throughput, "latency": latency, "open-loop": open_loop, "scaling": scaling}
    for name, draw in drawings.items():
        figure, axes = plt.subplots(figsize=_SIZE)
        if draw(axes, run["cells"], plan):
            axes.set_title(plan["plots"][name])
            figure.tight_layout()
            figure.savefig(Path(folder) / f"benchmark-{name}.png", dpi=110)
            sys.stdout.write(f"{name}\n")
        plt.close(figure)


def _points(cells: list[dict[str, Any]], figure: str, by: str, **where: Any) -> dict[str, list[tuple[float, float]]]:
    """Return medians of ``figure`` by system as (``by``, value) in rising order."""
    found: dict[str, dict[float, list[float]]] = {}
    for cell in cells:
        if all(cell[k] == v for k, v in where.items()):
            found.setdefault(cell["system"], {}).setdefault(cell[by], []).append(cell[figure])
    return {s: sorted((x, statistics.median(v)) for x, v in points.items()) for s, points in found.items()}


def cpu(axes: Any, cells: list[dict[str, Any]], plan: dict[str, Any]) -> bool:
    where = {"backend": "instant", "texts": "short", "connections": 64, "rate": 0.0}
    own, triton = (_points(cells, name, "connections", **where) for name in ("own_us", "triton_us"))
    names = [name for name in plan["titles"] if name in own][::-1]
    first = [own[name][0][1] for name in names]
    axes.barh(names, first, label="in front of Triton", color="#2a6f97")
    axes.barh(names, [triton[name][0][1] for name in names], left=first, label="Triton", color="#a9d6e5")
    axes.set_xlabel("CPU µs per request (instant model, short texts, 64 connections)")
    axes.legend()
    return bool(names)


def _lines(axes: Any, series: dict[str, list[tuple[float, float]]]) -> bool:
    drawn = False
    for system, points in series.items():
        if len(points) > 2:
            axes.plot(*zip(*points, strict=True), marker="o", label=system)
            drawn = True
    axes.grid(visible=True, alpha=0.3)
    if drawn:
        axes.legend(fontsize=8)
    return drawn


def throughput(axes: Any, cells: list[dict[str, Any]], _plan: dict[str, Any]) -> bool:
    axes.set_xscale("log", base=2)
    axes.set_xlabel("connections")
    axes.set_ylabel("requests/s (instant model, short texts)")
    return _lines(axes, _points(cells, "rps", "connections", backend="instant", texts="short", rate=0.0))


def latency(axes: Any, cells: list[dict[str, Any]], _plan: dict[str, Any]) -> bool:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("connections")
    axes.set_ylabel("p50 in ms (instant model, short texts)")
    return _lines(axes, _points(cells, "p50_ms", "connections", backend="instant", texts="short", rate=0.0))


def open_loop(axes: Any, cells: list[dict[str, Any]], _plan: dict[str, Any]) -> bool:
    offered = [cell for cell in cells if cell["rate"]]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("requests per second offered (instant model, short texts)")
    axes.set_ylabel("p99 in ms, from the time a request was due")
    return _lines(axes, _points(offered, "p99_ms", "rate"))


def scaling(axes: Any, _cells: list[dict[str, Any]], plan: dict[str, Any]) -> bool:
    points = plan["scaling"]
    if not points:
        return False
    axes.plot(*zip(*points, strict=True), marker="o", label="gateway, from measured CPU per request")
    axes.axhline(plan["gain"], linestyle="--", color="grey", label=f"ClearML article: {plan['gain']} ×")
    axes.set_xlabel("gateway cores")
    axes.set_ylabel("throughput over the ensemble")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return True


if __name__ == "__main__":
    main(*sys.argv[1:3])
