"""Curves of the page, as elements whose values the page's script gives to uPlot. Pure."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

Values = Mapping[str, Any]

_COLOURS: Final = ("--blue", "--orange", "--green", "--violet")
_CHARTS: Final = (
    ("Requests per second", "", 1.0, ("rate",)),
    ("Time of answers", " ms", 1000.0, ("p50", "p95", "p99")),
    ("Mean time of the stages", " ms", 1000.0, ("prepare", "queue", "infer", "finish")),
)
"""Title, unit, factor and curves of each chart."""


def curves(found: Sequence[Values]) -> str:
    """Return the charts of an endpoint's versions; see ``metrics.recent`` for the values."""
    drawn = [of for of in found if len(of["ago"]) > 1]
    if not drawn:
        return ""
    charts = [_chart(of, title, unit, factor, names) for of in drawn for title, unit, factor, names in _CHARTS]
    return f"<h3>Last hour, this gateway</h3><div class=charts>{''.join(charts)}</div>"


def _chart(of: Values, title: str, unit: str, factor: float, names: Sequence[str]) -> str:
    values = [[None if value is None else round(value * factor, 3) for value in of[name]] for name in names]
    lines = [{"colour": colour, "values": line} for colour, line in zip(_COLOURS, values, strict=False)]
    told = html.escape(json.dumps({"ago": of["ago"], "unit": unit, "lines": lines}, separators=(",", ":")))
    title = f"{title}, version {of['version']}" if of["version"] else title
    newest = ", ".join(f"{name} {_newest(line)}{unit}" for name, line in zip(names, values, strict=True))
    return (
        f"<figure><figcaption>{html.escape(title)}{_key(names) if len(names) > 1 else ''}</figcaption>"
        f"<div class=curves role=img aria-label='{html.escape(f'{title}; now {newest}')}' data-curves='{told}'></div>"
        "</figure>"
    )


def _newest(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{known[-1]:g}" if known else "–"


def _key(names: Sequence[str]) -> str:
    marks = (
        f"<span><svg width=10 height=10 aria-hidden=true><rect width=10 height=10 rx=2 fill='var({colour})' /></svg>"
        f"{name}</span>"
        for name, colour in zip(names, _COLOURS, strict=False)
    )
    return f" <span class='key dim'>{''.join(marks)}</span>"
