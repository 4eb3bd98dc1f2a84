"""The status page: one row per endpoint, the worst first. An open row shows its versions, routes, curves and drift.

Pure: takes the values of ``/v1/status`` and curves, returns HTML. There is no build step, and the page loads nothing
from other hosts. Its script (``browser/page.js``) fetches the content every few seconds (``?part=live``) and replaces
it, unless a part of it is selected; it filters and sorts the rows, draws curves with uPlot, tries requests and shows
lineage. Only open rows (``?open=NAME``) are drawn whole, so that a page of hundreds of endpoints stays small. Without
scripts, the browser reloads the page. No element has a ``style`` attribute, so the page's policy (``POLICY``) allows
only its own style sheet and script.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from gateway.admin import charts
from gateway.metrics import drift
from gateway.pools import DEFAULT

_FILES: Final = Path(__file__).with_name("browser")
_STYLE: Final = "".join((_FILES / name).read_text() for name in ("page.css", "uPlot.min.css"))
_SCRIPT: Final = "".join((_FILES / name).read_text() for name in ("uPlot.iife.min.js", "page.js"))


def _sha256(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


POLICY: Final = (
    f"default-src 'none'; style-src {_sha256(_STYLE)}; script-src {_sha256(_SCRIPT)}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page's Content-Security-Policy. Only the page's own script runs, even if a name contains HTML."""

_MAX_CAUSES: Final = 2

_CHANGED: Final = ("drift", "moved")
"""The states of variables that are shown before the others."""

_FAILED: Final = (0.001, 0.01)
"""Shares of failed requests from which a row is shown as a warning, and as bad."""

_WORST: Final = ("not served", "failing")
"""States in which callers get errors. They are sorted before an old version that still answers."""

_RUNBOOK: Final = {
    "not served": "gatewaymodelstuckloading", "degraded": "gatewaymodelstuckloading", "old version":
    "gatewaymodelstuckloading", "failing": "gatewayerrorbudgetburn",
    "unguarded": "gatewaycanaryunguarded", "drift": "gatewaydrift", "registry": "gatewayconfigurationstale",
    "faults": "gatewayconfigurationfault", "triton": "gatewaybackenddown", "not ready": "when-a-gateway-is-ready",
}  # fmt: skip
"""State, or what is at fault → the section of ``docs/on-call.md`` that says what to do."""

_GOOD, _LOOK, _BAD = range(3)
_CLASSES: Final = ("ok", "wait", "bad")

Values = Mapping[str, Any]


@dataclass
class _Row:
    """The data of one endpoint. ``state`` may be read only once all of it is added."""

    name: str
    served: list[Values] = field(default_factory=list)
    pending: list[Values] = field(default_factory=list)
    routes: list[Values] = field(default_factory=list)
    drifts: list[Values] = field(default_factory=list)
    beside: list[Values] = field(default_factory=list)
    """The comparisons of its canaries with the stable version."""
    curves: Sequence[Values] = ()
    rollout: Values | None = None
    accuracies: list[Values] = field(default_factory=list)
    shares: Mapping[str, float] = field(default_factory=dict)
    default: str = ""
    """The url of the default version, which the bare name calls."""

    @property
    def rate(self) -> float:
        return float(sum(row["rate"] for row in self.routes if row["route"] != "fallback"))

    @property
    def failed(self) -> float:
        return _mean([(row["failed"], row["rate"]) for row in self.routes])

    @property
    def failing(self) -> str:
        """How many requests fail, and with which outcomes most of them do."""
        found: dict[str, float] = {}
        for row in self.routes:
            for outcome, share in row.get("failures", {}).items():
                found[outcome] = found.get(outcome, 0.0) + share * row["rate"]
        causes = sorted(found, key=lambda outcome: (-found[outcome], outcome))[:_MAX_CAUSES]
        return f"{_share(self.failed)} of requests fail" + (f": {', '.join(causes)}" if causes else "")

    @property
    def refused(self) -> float:
        return _mean([(row["refused"], row["rate"]) for row in self.routes])

    @property
    def pairs(self) -> list[Values]:
        """Return its canaries beside stable, without those without a share of the requests: their rollout is over."""
        return [one for one in self.beside if self.shares.get(f"{self.name}/{one['beside']}", 1.0) > 0]

    @cached_property
    def state(self) -> tuple[int, str, str]:
        """Return the level (good, warning, bad), the state as a word, and the reason."""
        broken = [p for p in self.pending if p["state"] != "pending"]
        failed_successors = [e for e in self.served if e["successor"] and e["successor"]["state"] != "pending"]
        why = [f"{broken[0]['url']}: {broken[0]['reason']}"] if broken else []
        failing = [self.failing] if self.failed >= _FAILED[1] else []
        if broken and not self.served:
            return _BAD, "not served", "; ".join(why + failing)
        if failing:
            return _BAD, "failing", "; ".join(failing + why)
        if broken:
            return _BAD, "degraded", why[0]
        if failed_successors:
            told = failed_successors[0]
            return _BAD, "old version", f"{told['url']}: the new version {told['successor']['reason']}"
        if self.rollout is not None and self.rollout["phase"] == "running" and not self.rollout["guard"]:
            return _LOOK, "unguarded", f"nobody looks after the canary {self.rollout['canary']}: no controller runs"
        drifted = [v["variable"] for v in self.drifts if v["state"] == "drift"]
        if drifted:
            return _LOOK, "drift", f"{', '.join(dict.fromkeys(drifted))} drifted"
        if self.failed >= _FAILED[0]:
            return _LOOK, "failing", self.failing
        differs = [(one["version"], one["sentences"]) for one in self.pairs]
        uneven = [(version, of["texts"]) for version, of in differs if "texts" in of]
        if uneven:
            return _LOOK, "uneven split", _brief(*uneven[0])
        building = [*self.pending, *(e["successor"] | {"url": e["url"]} for e in self.served if e["successor"])]
        if building:
            return _LOOK, "building", f"{building[0]['url']}: {building[0]['reason']}"
        return _GOOD, "serving", "; ".join(_brief(version, how) for version, of in differs for how in of.values())


def render_live(status: Values, prefix: str, opened: Collection[str] = ()) -> str:
    """Return the content that changes. ``prefix``: of the inference routes (``/serve/``); ``opened``: the open rows.

    ``status`` has the values of ``/v1/status``, and ``curves`` by name for the open rows.
    """
    rows = _rows(status)
    live = _head(status) + _tiles(status, rows) + _faults(status) + _list(rows, prefix, frozenset(opened))
    return f"<main id=live>{live}</main>"


def render_page(status: Values, prefix: str, opened: Collection[str] = ()) -> str:
    """Return the whole page; see ``render_live``."""
    tools = (
        "<div class=tools role=search><label>Filter <input id=filter type=search autocomplete=off></label>"
        "<label>Sort <select id=sort><option value=worst>worst first<option value=name>by name"
        "<option value=busy>most requests first</select></label><span id=shown class=dim aria-live=polite></span>"
        "<span id=news role=status></span></div>"
    )
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<noscript><meta http-equiv=refresh content=5></noscript>"
        f"<meta name=viewport content='width=device-width'><title>triton-gateway</title><style>{_STYLE}</style>"
        f"<script>{_SCRIPT}</script></head><body><header><h1>triton-gateway</h1></header>"
        f"<nav aria-label=Endpoints>{tools}</nav>{render_live(status, prefix, opened)}"
        "<section id=panel aria-live=polite hidden></section>"
        "<footer><p class=dim><a href=docs>API</a> · <a href=metrics>metrics</a> · <a href=v1/status>JSON</a> · "
        "each fault names the section of the runbook docs/on-call.md that says what to do</p>"
        "</footer></body></html>"
    )


def _rows(status: Values) -> list[_Row]:
    """Return a row for each endpoint, the worst first, then by name. A row keeps its place while its state stays."""
    found: dict[str, _Row] = {}

    def row(name: str) -> _Row:
        return found.setdefault(name, _Row(name))

    for endpoint in status["endpoints"]:
        row(endpoint["endpoint"]).served.append(endpoint)
    for pending in status["pending"]:
        url = pending["url"]
        row(url if url in found or "/" not in url else url.rpartition("/")[0]).pending.append(pending)
    for counted in status.get("last_minute", ()):
        row(counted["endpoint"]).routes.append(counted)
    for variable in status.get("drift", ()):
        row(variable["endpoint"]).drifts.append(variable)
    for one in status.get("compared", ()):
        if one["endpoint"] in found:
            row(one["endpoint"]).beside.append(one)
    for labelled in status.get("accuracy", ()):
        if labelled["endpoint"] in found:
            row(labelled["endpoint"]).accuracies.append(labelled)
    for name, shares in status["canaries"].items():
        row(name).shares = shares
    for name, url in status.get("defaults", {}).items():
        row(name).default = url
    for rollout in status.get("rollouts", ()):
        if rollout["endpoint"] in found:
            found[rollout["endpoint"]].rollout = rollout
    for name, curves in status.get("curves", {}).items():
        if name in found:
            found[name].curves = curves
    return sorted(found.values(), key=lambda one: (-one.state[0], one.state[1] not in _WORST, one.name))


def _head(status: Values) -> str:
    if not status["ready"]:
        ready = (
            f"<span class=bad>not ready</span>: {_e('; '.join(status['not_ready_because']))}{_what_to_do('not ready')}"
        )
    elif status["degraded"]:
        ready = "<span class=wait>ready, degraded</span>"
    else:
        ready = "<span class=ok>ready</span>"
    task = status["serving_task"]
    named = {one["address"]: one["pool"] for one in status.get("pools", ())}
    triton = ", ".join(
        f"<code>{_e(a)}</code> {_pool(named.get(a, ''))}"
        f"<span class={'ok' if up else 'bad'}>{'answers' if up else 'does not answer'}</span>"
        for a, up in status["triton"].items()
    )
    registry = status["registry"]["error"]
    return (
        f"<p>{ready}"
        + (f" · serving Task {_e(task['name'])} <code>{_e(task['id'])}</code>" if task else "")
        + f" · revision <code>{_e(status['revision'] or '–')}</code>"
        + (f" · Triton {triton}" if triton else "")
        + ("" if all(status["triton"].values()) else _what_to_do("triton"))
        + (f"</p><p class=bad>registry: {_e(registry)}{_what_to_do('registry')}" if registry else "")
        + "</p>"
    )


def _what_to_do(fault: str) -> str:
    """Return where the runbook says what to do; empty for what is no fault."""
    return f" <span class=dim>→ docs/on-call.md#{_RUNBOOK[fault]}</span>" if fault in _RUNBOOK else ""


def _pool(name: str) -> str:
    return "" if name in ("", DEFAULT) else f"<span class=dim>pool {_e(name)}</span> "


def _tiles(status: Values, rows: Sequence[_Row]) -> str:
    """Return the tiles that summarise the gateway in a few numbers."""
    if not rows:
        return ""
    routes = [route for row in rows for route in row.routes]
    failed, refused = (_mean([(route[kind], route["rate"]) for route in routes]) for kind in ("failed", "refused"))
    asked = any(row.rate for row in rows)
    bad = sum(row.state[0] == _BAD for row in rows)
    drifted = sum(any(v["state"] == "drift" for v in row.drifts) for row in rows)
    tiles = (
        ("Endpoints", str(len(rows)), ""), ("Endpoints with a fault", str(bad), "bad" if bad else ""),
        ("Versions served", str(len(status["endpoints"])), ""),
        ("Requests", f"{_rate(sum(row.rate for row in rows))}", ""),
        ("Failed", _share(failed) if asked else "–", _CLASSES[_graded(failed)] if asked else ""),
        ("Refused (caller errors)", _share(refused) if asked else "–", ""),
        ("Endpoints with drift", str(drifted), "wait" if drifted else ""),
    )  # fmt: skip
    shown = "".join(f"<div><dt>{name}</dt><dd class='{kind}'>{value}</dd></div>" for name, value, kind in tiles)
    return f"<dl class=tiles>{shown}</dl>"


def _faults(status: Values) -> str:
    faults = [f"<li class=bad><code>{_e(f['subject'])}</code> {_e(f['message'])}</li>" for f in status["faults"]]
    faults += [
        f"<li class=bad><code>{_e(one['endpoint'])}</code> was lost by a stale write of another ClearML client; if it "
        f"was not removed on purpose: <code>{_e(one['restore'])}</code>" for one in status.get("lost", ())
    ]  # fmt: skip
    return f"<h2>Configuration faults{_what_to_do('faults')}</h2><ul>{''.join(faults)}</ul>" if faults else ""


def _list(rows: Sequence[_Row], prefix: str, opened: frozenset[str]) -> str:
    if not rows:
        return "<p>Nothing is deployed yet.</p><p>To serve a model: <code>triton-gateway deploy ./my-model</code></p>"
    shown = "".join(_row(place, row, prefix, is_open=row.name in opened) for place, row in enumerate(rows))
    return f"<h2>Endpoints, last minute</h2><div id=rows>{shown}</div>"


def _row(place: int, row: _Row, prefix: str, *, is_open: bool) -> str:
    level, word, why = row.state
    slowest = max((one["p95"] for one in row.routes if one["p95"] is not None), default=None)
    searched = " ".join([row.name, word, why, *(e["model_name"] for e in row.served)]).lower()
    name = row.name or "(unknown path)"
    inside = _inside(row, prefix) if is_open else f"<p><a href='?open={_e(quote(row.name, safe=''))}'>show</a></p>"
    return (
        f"<details id='row-{_e(quote(row.name, safe=''))}' data-name='{_e(row.name)}' data-place={place} "
        f"data-rate={row.rate:.3f} data-text='{_e(searched)}'{' open' if is_open else ''}><summary>"
        f"<span class={_CLASSES[level]}>{word}</span><b>{_e(name)}</b>"
        f"<span class=n>{_rate(row.rate)}</span>"
        + (
            f"<span class='n {_CLASSES[_graded(row.failed)]}'>{_share(row.failed)}<small>failed</small></span>"
            if row.rate
            else "<span class='n dim'>–<small>failed</small></span>"
        )
        + f"<span class=n>{_ms(slowest)}<small>p95</small></span>"
        f"<span class='note dim'>{_e(why)}</span>"
        f"</summary><div class=inside>{inside}</div></details>"
    )


def _inside(row: _Row, prefix: str) -> str:
    versions = [
        f"<tr><td><code>POST {_e(prefix + ep['url'])}</code></td><td class=ok>serving</td>"
        f"<td>{_e(str(ep['details'].get('task', '')))}</td>"
        f"<td>{_e(ep['model_name'])} <span class=dim>{_e(ep['model_id'])}</span> {_pool(ep.get('pool', ''))}</td>"
        f"<td>{_successor(ep)}{_actions(ep, prefix)}</td></tr>"
        for ep in row.served
    ]
    versions += [
        f"<tr><td><code>{_e(p['url'])}</code></td><td class={'wait' if p['state'] == 'pending' else 'bad'}>"
        f"{_e(p['phase'] if p['state'] == 'pending' else p['state'])}</td><td></td><td></td>"
        f"<td>{_e(p['reason'])}</td></tr>"
        for p in row.pending
    ]
    weights = ", ".join(f"{share:.1%} <code>{_e(url)}</code>" for url, share in row.shares.items())
    default = f"<p>Default <code>POST {_e(prefix + row.name)}</code>: <code>{_e(row.default)}</code></p>"
    return (
        (f"<p>What to do{_what_to_do(row.state[1])}</p>" if row.state[1] in _RUNBOOK else "")
        + (default if row.default else "")
        + (f"<p>Canary <code>POST {_e(prefix + row.name)}</code>: {weights}</p>" if weights else "")
        + (_table("Versions", ("Path", "State", "Task", "Model", "Note"), versions) if versions else "")
        + ("" if row.rollout is None else _rollout(row.rollout))
        + (_table("Requests", _HEADS, [_line(one) for one in row.routes], _NUMBERS) if row.routes else "")
        + charts.curves(row.curves)
        + ("<h3>Accuracy</h3>" if row.accuracies else "")
        + "".join(
            f"<p>Version {_e(one['version'] or '–')}: {_e(drift.right_in_words(one))}</p>" for one in row.accuracies
        )
        + _beside(row.pairs)
        + _drift(row.drifts)
    )


def _rollout(one: Values) -> str:
    """Return where a rollout is, who guards it, the way back, and its last decisions with their reasons."""
    is_under_way = one["phase"] == "running"
    steps = ", ".join(f"{step:g} %" for step in one["steps"])
    guard = (
        f"guarded by {_e(one['guard'])}"
        if one["guard"]
        else ("<span class=bad>nobody guards it: start <code>triton-gateway controller</code></span>")
    )
    lines = [
        f"<tr><td class=dim>{datetime.fromtimestamp(said['at'], UTC):%m-%d %H:%M:%S}</td><td>{_e(said['what'])}</td>"
        f"<td class=n>{said['weight']:g} %</td><td>{_e(said['why'])}</td></tr>"
        for said in reversed(one["decisions"])
    ]
    return (
        f"<h3>Rollout of <code>{_e(one['canary'])}</code> beside <code>{_e(one['stable'])}</code></h3>"
        f"<p>{_e(one['phase'].replace('_', ' '))}, {one['weight']:g} % of steps {steps}"
        + (f", {_e(one['state'])}; {guard}" if is_under_way else "")
        + f"</p><p>{_e(one['why'])}</p>"
        + (f"<p class=dim>The way back: <code>{_e(one['way_back'])}</code></p>" if one["way_back"] else "")
        + _table("Decisions, UTC", ("At", "Decision", "Weight", "Why"), lines, (2,))
    )


def _actions(endpoint: Values, prefix: str) -> str:
    """Return the buttons of a version: try a request, and see where its model comes from."""
    example = json.dumps(endpoint["details"].get("example", {"text": "Hello there"}), ensure_ascii=False)
    url = endpoint["url"]
    return (
        f" <button type=button data-path='{_e(prefix + url)}' data-example='{_e(example)}'>try</button> "
        f"<button type=button data-lineage='{_e(url)}' aria-label='Where {_e(url)} comes from'>lineage</button>"
    )


_HEADS: Final = (
    "Version", "Route", "Requests", "Share", "Failed", "Refused", "p50", "p95", "p99", "Rows per call",
)  # fmt: skip
_NUMBERS: Final = (2, 3, 4, 5, 6, 7, 8, 9)


def _line(row: Values) -> str:
    rows_per_call = "–" if row["rows_per_call"] is None else f"{row['rows_per_call']:.1f}"
    return (
        f"<tr><td>{_e(row['version'] or '–')}</td><td class=dim>{_e(row['route'])}</td>"
        f"<td class=n>{_rate(row['rate'])}</td><td class=n>{row['share']:.0%}</td>"
        f"<td class='n {_CLASSES[_graded(row['failed'])]}'>{_share(row['failed'])}</td>"
        f"<td class='n dim'>{_share(row['refused'])}</td>"
        + "".join(f"<td class=n>{_ms(row[name])}</td>" for name in ("p50", "p95", "p99"))
        + f"<td class=n>{rows_per_call}</td></tr>"
    )


def _drift(found: Sequence[Values]) -> str:
    """Return a histogram of each variable, now over the reference, by version. Changed variables come first."""
    shown = [
        f"<h3>Drift of version {_e(version or '–')}</h3>"
        + _scrolling(
            f"Variables of version {version or '–'}",
            "".join(_histogram(one) for one in sorted(variables, key=lambda one: one["state"] not in _CHANGED)),
            " drifts",
        )
        for version, variables in groupby(found, key=lambda variable: str(variable["version"]))
    ]
    key = (
        "<p class='key dim'><svg width=10 height=10 aria-hidden=true><rect width=10 height=10 fill='var(--blue)' />"
        "</svg>now<svg width=10 height=10 aria-hidden=true><rect x=1 y=1 width=8 height=8 fill=none "
        "stroke='var(--ref)' stroke-width=1.5 /></svg>reference</p>"
    )
    return "".join(shown) + key if shown else ""


def _brief(version: str, how: str) -> str:
    """Return the first part of a difference. The open row shows the explanation too."""
    return f"version {version}: {how.partition('): ')[0]}" + (")" if "): " in how else "")


def _beside(pairs: Sequence[Values]) -> str:
    """Return each canary compared with the stable version: the certain differences."""
    return "".join(
        f"<h3>Version {_e(one['version'])} compared with {_e(one['beside'])}</h3>"
        + (
            "".join(f"<p class=wait>{_e(how)}</p>" for how in one["sentences"].values())
            or "<p class=dim>No difference so far.</p>"
        )
        for one in pairs
    )


def _histogram(variable: Values) -> str:
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
    return (
        f"<div class=drift><p><code>{_e(variable['variable'])}</code> "
        f"<span class={state}>{_e(str(variable['state']))}{', no alarm' * (variable['state'] == 'moved')}</span></p>"
        "<svg width=272 height=80 viewBox='0 0 272 80' role=img "
        f"aria-label='{_e(variable['variable'])}: now, and in the reference'>"
        f"{''.join(drawn)}</svg><p class=dim>{_evidence(variable)}</p>"
        f"<p class=dim>last hour: n {n:,.0f}</p></div>"
    )


def _evidence(variable: Values) -> str:
    """Return the evidence, the alarm threshold, and the smallest visible change."""
    days, visible = variable["days"], variable["visible"]
    if days is None:
        return "not judged: there is no controller, no text yet, or the reference is too small"
    told = f"chance alone: at most once in {drift.in_days(days)} (alarm from {variable['alarm_days']:g} on, endpoint)"
    if variable["state"] in _CHANGED:
        told += f" · since {datetime.fromtimestamp(variable['since'], UTC):%Y-%m-%d %H:%M} UTC"
    return f"{told} · smallest visible change within a day: {visible:.1%}"


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    total = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / total if total else 0.0


def _graded(failed: float) -> int:
    return sum(failed >= limit for limit in _FAILED)


def _short(name: str, wide: float) -> str:
    with contextlib.suppress(ValueError):
        name = f"{float(name):.2g}" if name != "+Inf" else "∞"
    if len(name) * 6 <= wide:
        return name
    return name[: int(wide // 6) - 1] + "…" if wide > 18 else ""


def _number(value: float) -> str:
    """Return a number as people write it: 0.42, 7.3, 1,970."""
    return f"{value:.2f}" if 0 < value < 1 else f"{value:.1f}" if 0 < value < 100 else f"{value:,.0f}"


def _rate(value: float) -> str:
    return f"{_number(value)}/s"


def _share(value: float) -> str:
    """Return a share in percent. A share above zero is never shown as 0."""
    return "under 0.01%" if 0 < value < 0.0001 else f"{value:.2%}"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{_number(seconds * 1000)} ms" if seconds < 0.9995 else f"{_number(seconds)} s"


def _successor(endpoint: Values) -> str:
    successor = endpoint["successor"]
    if successor is None:
        return ""
    text = _e(f"{successor['state']}: {successor['reason']}")
    return f"<span class={'wait' if successor['state'] == 'pending' else 'bad'}>new version {text}</span>"


def _table(label: str, heads: tuple[str, ...], rows: list[str], right: tuple[int, ...] = ()) -> str:
    named = "".join(f"<th scope=col{' class=n' if i in right else ''}>{h}</th>" for i, h in enumerate(heads))
    return _scrolling(label, f"<table><tr>{named}</tr>{''.join(rows)}</table>")


def _scrolling(label: str, content: str, more: str = "") -> str:
    """Return content that scrolls sideways if it is too wide, by keyboard too. ``more``: another class, after a space.

    With the class ``drifts``, content wraps to further lines instead, except on a phone.
    """
    return f"<div class='wide{more}' role=group aria-label='{_e(label)}' tabindex=0>{content}</div>"


def _e(text: str) -> str:
    return html.escape(text)
