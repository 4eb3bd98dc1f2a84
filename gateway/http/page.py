"""The gateway's own page: what is served, how it does now, and what has drifted, in one self-contained document.

Pure: the values of ``/v1/status`` in, HTML out. No build step, nothing loaded from elsewhere; one line of script asks
for the page again every few seconds and swaps its content in, so that nothing flickers (without scripts the browser
reloads it). Bars and curves are inline SVG.
"""

from __future__ import annotations

import contextlib
import html
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

_STYLE: Final = """
:root{--ink:#1d2330;--dim:#5b6576;--line:#d9dee8;--card:#f7f8fb;--paper:#fff;--blue:#3b7ddd;--ref:#9aa6ba;--ok:#0a6b38;
--wait:#8a5a00;--bad:#a3162a}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8f0;--dim:#98a2b5;--line:#343b4a;--card:#1d222d;--paper:#161a22;
--blue:#6aa5f5;--ref:#5d6880;--ok:#5fd08f;--wait:#e8b65a;--bad:#ff8594}}
body{font:15px/1.5 system-ui,sans-serif;margin:1.5rem auto;max-width:74rem;padding:0 1rem;color:var(--ink);
background:var(--paper)}
h1{font-size:1.3rem;margin:0}h2{font-size:1.05rem;margin:1.8rem 0 .5rem}h3{font-size:1rem;margin:0}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.35rem .7rem;border-bottom:1px solid var(--line);vertical-align:middle}
th{font-weight:600;font-size:.85rem;color:var(--dim)}.n{text-align:right;font-variant-numeric:tabular-nums}
code{font:13px ui-monospace,monospace;background:var(--card);padding:.1rem .3rem;border-radius:3px}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.8rem 1rem;margin:.8rem 0}
.card table td:last-child,.card table th:last-child{padding-right:0}.card tr:last-child td{border-bottom:0}
.split{display:flex;height:10px;border-radius:5px;overflow:hidden;margin:.5rem 0 .2rem;background:var(--line)}
.split i{display:block;min-width:2px}
.key i{display:inline-block;width:.7em;height:.7em;border-radius:2px;margin:0 .3em 0 1em}
.drifts{display:flex;flex-wrap:wrap;gap:1rem}.drift{width:17rem}.drift p{margin:.1rem 0;font-size:.85rem}
.ok{color:var(--ok)}.wait{color:var(--wait)}.bad{color:var(--bad)}.dim{color:var(--dim)}
svg{display:block}svg text{font:10px ui-monospace,monospace;fill:var(--dim)}
"""

_SCRIPT: Final = (
    "setInterval(async()=>{try{const r=await fetch(location.pathname,{cache:'no-store'});"
    "if(r.ok)document.body.innerHTML=new DOMParser().parseFromString(await r.text(),'text/html').body.innerHTML}"
    "catch{}},3000)"
)
"""In the head, so that what it replaces does not hold it."""

_SAID: Final = {"moved": "moved, little"}
"""What a variable's state is called here, if not by its own name."""

_COLOURS: Final = ("var(--blue)", "#e07b39", "#4caf7d", "#b16bd6", "#c9a227", "#58b7c4")


def render_page(status: Mapping[str, Any], prefix: str) -> str:
    """Return the page; ``prefix`` is the inference routes' (``/serve/``)."""
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<noscript><meta http-equiv=refresh content=5></noscript>"
        f"<meta name=viewport content='width=device-width'><title>triton-gateway</title><style>{_STYLE}</style>"
        f"<script>{_SCRIPT}</script></head><body>{_body(status, prefix)}</body></html>"
    )


def _body(status: Mapping[str, Any], prefix: str) -> str:
    routes = [
        f"<tr><td><code>POST {_e(prefix + name)}</code></td>"
        f"<td>{', '.join(f'{share:.1%} <code>{_e(url)}</code>' for url, share in shares.items())}</td></tr>"
        for name, shares in status["canaries"].items()
    ]
    faults = [f"<li class=bad><code>{_e(f['subject'])}</code> {_e(f['message'])}</li>" for f in status["faults"]]
    return (
        _head(status)
        + _last_minute(status.get("last_minute", []))
        + _drift(status.get("drift", []))
        + "<h2>Endpoints</h2>"
        + _table(("Path", "State", "Task", "Model", "Note"), _endpoints(status, prefix), "nothing is deployed yet")
        + ("<h2>Canaries</h2>" + _table(("Path", "Shares"), routes, "") if routes else "")
        + (f"<h2>Configuration faults</h2><ul>{''.join(faults)}</ul>" if faults else "")
        + "<p class=dim><a href=/docs>API</a> · <a href=/metrics>metrics</a> · <a href=/v1/status>JSON</a></p>"
    )


def _head(status: Mapping[str, Any]) -> str:
    if not status["ready"]:
        ready = f"<span class=bad>not ready</span>: {_e('; '.join(status['not_ready_because']))}"
    elif status["degraded"]:
        ready = "<span class=wait>ready, degraded</span>"
    else:
        ready = "<span class=ok>ready</span>"
    task = status["serving_task"]
    triton = ", ".join(
        f"<code>{_e(a)}</code> <span class={'ok' if up else 'bad'}>{'answers' if up else 'does not answer'}</span>"
        for a, up in status["triton"].items()
    )
    registry = status["registry"]["error"]
    return (
        f"<h1>triton-gateway</h1><p>{ready}"
        + (f" · serving Task {_e(task['name'])} <code>{_e(task['id'])}</code>" if task else "")
        + f" · revision <code>{_e(status['revision'] or '–')}</code>"
        + (f" · Triton {triton}" if triton else "")
        + (f"</p><p class=bad>registry: {_e(registry)}" if registry else "")
        + "</p>"
    )


def _endpoints(status: Mapping[str, Any], prefix: str) -> list[str]:
    rows = [
        f"<tr><td><code>POST {_e(prefix + ep['url'])}</code></td><td class=ok>serving</td>"
        f"<td>{_e(str(ep['details'].get('task', '')))}</td>"
        f"<td>{_e(ep['model_name'])} <span class=dim>{_e(ep['model_id'])}</span></td>"
        f"<td>{_successor(ep)}</td></tr>"
        for ep in status["endpoints"]
    ]
    rows += [
        f"<tr><td><code>{_e(p['url'])}</code></td><td class={'wait' if p['state'] == 'building' else 'bad'}>"
        f"{_e(p['state'])}</td><td></td><td></td><td>{_e(p['reason'])}</td></tr>"
        for p in status["pending"]
    ]
    return rows


def _last_minute(rows: Sequence[Mapping[str, Any]]) -> str:
    """One card per endpoint: how its requests are split, and a line for each version and route."""
    cards = []
    for endpoint, found in groupby(rows, key=lambda row: str(row["endpoint"])):
        group = list(found)
        rate = sum(row["rate"] for row in group)
        split = ""
        if len(group) > 1:
            names = [f"{row['version'] or '–'} {_shown(row['route'])}".strip() for row in group]
            split = (
                "<div class=split>"
                + "".join(
                    f"<i style='width:{row['share']:.2%};background:{_COLOURS[i % len(_COLOURS)]}'></i>"
                    for i, row in enumerate(group)
                )
                + "</div><p class='key dim' style='margin:0 0 .3rem -1em'>"
                + "".join(
                    f"<i style='background:{_COLOURS[i % len(_COLOURS)]}'></i>{_e(name)} {row['share']:.0%}"
                    for i, (name, row) in enumerate(zip(names, group, strict=True))
                )
                + "</p>"
            )
        heads = ("Version", "Route", "Requests", "5 minutes", "Failed", "p50", "p95", "p99", "Rows per call")
        cards.append(
            f"<section class=card><h3>{_e(endpoint or '(unknown path)')} "
            f"<span class=dim>{rate:.3g} requests/s</span></h3>{split}"
            + _table(heads, [_line(row) for row in group], "", right=(2, 4, 5, 6, 7, 8))
            + "</section>"
        )
    return "<h2>Last minute</h2>" + "".join(cards) if cards else ""


def _line(row: Mapping[str, Any]) -> str:
    failed = "ok" if row["failed"] < 0.001 else "wait" if row["failed"] < 0.01 else "bad"
    rows_per_call = "–" if row["rows_per_call"] is None else format(row["rows_per_call"], ".3g")
    return (
        f"<tr><td>{_e(row['version'] or '–')}</td><td class=dim>{_e(row['route'])}</td>"
        f"<td class=n>{row['rate']:.3g}/s</td><td>{_curve(row.get('history', []))}</td>"
        f"<td class='n {failed}'>{row['failed']:.2%}</td>"
        + "".join(f"<td class=n>{_ms(row[name])}</td>" for name in ("p50", "p95", "p99"))
        + f"<td class=n>{rows_per_call}</td></tr>"
    )


def _curve(rates: Sequence[float]) -> str:
    """A version's rate in steps, the newest at the right edge."""
    if len(rates) < 2:
        return ""
    most = max(*rates, 0.001)
    step = 160 / max(len(rates) - 1, 11)
    points = " ".join(
        f"{160 - (len(rates) - 1 - i) * step:.1f},{23 - 21 * rate / most:.1f}" for i, rate in enumerate(rates[-60:])
    )
    return (
        f"<svg width=160 height=24 role=img aria-label='requests per second, at most {most:.3g}'>"
        f"<polyline points='{points}' fill=none stroke='var(--blue)' stroke-width=1.5 /></svg>"
    )


def _drift(found: Sequence[Mapping[str, Any]]) -> str:
    """One card per version that has a reference: each variable's bins now, over what they were."""
    cards = []
    for (endpoint, version), variables in groupby(found, key=lambda v: (v["endpoint"], v["version"])):
        cards.append(
            f"<section class=card><h3>{_e(f'{endpoint} {version}')}</h3><div class=drifts>"
            + "".join(_histogram(variable) for variable in variables)
            + "</div></section>"
        )
    if not cards:
        return ""
    key = (
        "<span class='key dim' style='font-weight:400;font-size:.85rem'><i style='background:var(--blue)'></i>last hour"
        "<i style='background:none;border:1.5px solid var(--ref);width:.5em;height:.5em'></i>reference</span>"
    )
    return f"<h2>Drift{key}</h2>" + "".join(cards)


def _histogram(variable: Mapping[str, Any]) -> str:
    n, bins = variable["n"], variable["bins"]
    now = [count / n if n else 0.0 for count in variable["counts"]]
    scale = 62 / max(*now, *variable["reference"], 0.001)
    wide = 272 / len(bins)
    drawn = []
    for i, (name, share, reference) in enumerate(zip(bins, now, variable["reference"], strict=True)):
        x, label = i * wide, f"{name}: {share:.1%} now, {reference:.1%} in the reference"
        drawn.append(
            f"<g><title>{_e(label)}</title>"
            f"<rect x={x + 2:.1f} y={66 - share * scale:.1f} width={max(wide - 4, 1):.1f} height={share * scale:.1f} "
            "fill='var(--blue)' opacity=.8 />"
            f"<rect x={x + 1:.1f} y={66 - reference * scale:.1f} width={max(wide - 2, 2):.1f} "
            f"height={reference * scale:.1f} fill=none stroke='var(--ref)' stroke-width=1.5 />"
            f"<text x={x + wide / 2:.1f} y=78 text-anchor=middle>{_e(_short(name, wide))}</text></g>"
        )
    state = {"drift": "bad", "moved": "wait", "steady": "ok"}.get(variable["state"], "dim")
    psi = "–" if variable["psi"] is None else f"{variable['psi']:.3f}"
    noise = "–" if variable["noise"] is None else f"{variable['noise']:.3f}"
    return (
        f"<div class=drift><p><code>{_e(variable['variable'])}</code> "
        f"<span class={state}>{_e(_SAID.get(variable['state'], variable['state']))}</span></p>"
        f"<svg width=272 height=80 role=img aria-label='{_e(variable['variable'])}: now over the reference'>"
        f"{''.join(drawn)}</svg><p class=dim>PSI {psi} · noise {noise} · n {n:.0f}</p></div>"
    )


def _short(name: str, wide: float) -> str:
    with contextlib.suppress(ValueError):
        name = f"{float(name):.2g}" if name != "+Inf" else "∞"
    if len(name) * 6 <= wide:
        return name
    return name[: int(wide // 6) - 1] + "…" if wide > 18 else ""


def _shown(route: str) -> str:
    return "" if route == "direct" else route


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _successor(endpoint: Mapping[str, Any]) -> str:
    successor = endpoint["successor"]
    if successor is None:
        return ""
    text = _e(f"{successor['state']}: {successor['reason']}")
    return f"<span class={'wait' if successor['state'] == 'building' else 'bad'}>new version {text}</span>"


def _table(heads: tuple[str, ...], rows: list[str], empty: str, right: tuple[int, ...] = ()) -> str:
    if not rows:
        return f"<p class=dim>{empty}</p>"
    named = "".join(f"<th{' class=n' if i in right else ''}>{h}</th>" for i, h in enumerate(heads))
    return f"<table><tr>{named}</tr>{''.join(rows)}</table>"


def _e(text: str) -> str:
    return html.escape(text)
