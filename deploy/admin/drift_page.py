"""Renders ``drift report`` as one HTML file: what changed, since when, how certainly, bin by bin.

Pure: verdicts in, HTML out. The file loads nothing and runs no scripts; its own policy forbids both. Steady variables
are collapsed. Names of endpoints, variables and bins come from callers and models. They are escaped everywhere, and
unprintable characters (for example those that change the direction of text) are replaced.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final

from deploy.admin.drift_counts import MEANINGS, OF_WORDS, Verdict, Verdicts, in_days, word_shares
from deploy.admin.drift_segments import Part, Parts, changes

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1d2330;--dim:#5b6576;--line:#d9dee8;--card:#f7f8fb;--paper:#fff;--blue:#3b7ddd;
--ref:#76839b;--ok:#0a6b38;--wait:#8a5a00;--bad:#a3162a}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8f0;--dim:#a3adbf;--line:#343b4a;--card:#1d222d;--paper:#161a22;
--blue:#6aa5f5;--ref:#8a95a8;--ok:#5fd08f;--wait:#e8b65a;--bad:#ff8594}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;margin:1.5rem auto;max-width:60rem;padding:0 1rem;color:var(--ink);
background:var(--paper);overflow-wrap:anywhere}
h1{font-size:1.35rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .3rem}h3{font-size:1rem;margin:0}p{margin:.3rem 0}
ul{margin:.3rem 0;padding-left:1.2rem}
.dim,small{color:var(--dim)}.ok{color:var(--ok)}.wait{color:var(--wait)}.bad{color:var(--bad)}
.variable{border:1px solid var(--line);border-radius:8px;margin:.6rem 0;padding:.6rem .9rem;background:var(--card)}
summary{cursor:pointer;display:flex;flex-wrap:wrap;gap:.2rem .8rem;align-items:baseline}
summary h3{display:inline}summary::before{content:"▸";color:var(--dim)}details[open]>summary::before{content:"▾"}
summary::-webkit-details-marker{display:none}summary{list-style:none}
table{border-collapse:collapse;width:100%;table-layout:fixed;margin-top:.4rem}
th,td{text-align:right;padding:.1rem .35rem;font-variant-numeric:tabular-nums;vertical-align:middle}
th{font-weight:600;font-size:.8rem;color:var(--dim)}
th:first-child,td:first-child{text-align:left;width:28%}td:first-child{font:13px ui-monospace,monospace}
.bar{width:auto}td.wide,th.wide{width:auto;text-align:left}.n{width:4.6rem;white-space:nowrap}
tr.moved td{font-weight:600}svg{display:block;width:100%;height:14px}.now{fill:var(--blue)}.was{fill:var(--ink)}
.key svg{display:inline-block;width:12px;height:12px;vertical-align:-1px;margin:0 .3em 0 .8em}
@media(max-width:30rem){.n{width:4.1rem}th,td{padding:.1rem .2rem;font-size:.85rem}
th:first-child,td:first-child{width:30%}}
@media print{details{display:block}}
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_CLASSES: Final = {"drift": "bad", "moved": "wait", "steady": "ok", "too few": "dim"}
_WORDS: Final = {
    "drift": "drifted", "moved": "moved, but there is no alarm for the endpoint", "steady": "steady",
    "too few": "not enough values to decide",
}  # fmt: skip
_ORDER: Final = tuple(_WORDS)
_MAX_CHARS: Final = 80
_MAX_WORDS: Final = 20

MovedWords = Mapping[tuple[str, str], Mapping[str, Sequence[Mapping[str, Any]]]]
"""Words that ``rose`` and ``fell``, by endpoint and version."""


def render(
    found: Verdicts, words: MovedWords = MappingProxyType({}), *, made: datetime, source: str,
    sections: Mapping[str, Sequence[str]] = MappingProxyType({}), against: str = "reference",
    parts: Parts = MappingProxyType({}), by: str = "",
) -> str:  # fmt: skip
    """Return the text of the file.

    ``words``: the words that rose and fell. ``source``: where the counts come from, in words. ``sections``: lines of
    further sections by their title. ``against``: what is compared with, in words. ``parts``: the segments of variables
    by the values of the key ``by``.
    """
    endpoints = [(name, list(of)) for name, of in groupby(sorted(found, key=_place), key=lambda v: v.endpoint)]
    endpoints.sort(key=lambda item: _ORDER.index(item[1][0].state))
    body = "".join(_summary(name, of) for name, of in endpoints) or "<li>no variable has a reference</li>"
    shown = "".join(_endpoint(name, of, words, against, parts, by) for name, of in endpoints)
    right = "".join(
        f"<section><h2>{_e(title)}</h2><ul>{''.join(f'<li>{_e(line, 400)}</li>' for line in lines)}</ul></section>"
        for title, lines in sections.items() if lines
    )  # fmt: skip
    key = (
        "<p class='key dim'><svg aria-hidden=true><rect class=now width=12 height=12 rx=2 /></svg>now"
        f"<svg aria-hidden=true><rect class=was x=5 width=2 height=12 /></svg>{_e(against)}</p>"
    )
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        f'<meta http-equiv=Content-Security-Policy content="{_POLICY}">'
        "<meta name=viewport content='width=device-width'><meta name=referrer content=no-referrer>"
        f"<title>Drift report</title><style>{_STYLE}</style></head><body><header><h1>Drift report</h1>"
        f"<p class=dim>made {made.astimezone(UTC):%Y-%m-%d %H:%M} UTC from {_e(source)}</p></header><main>"
        f"<ul>{body}</ul>{right}{key if endpoints else ''}{shown}</main>"
        "<footer><p class=dim>“Chance alone: at most once in 400 days” means: without drift, this much evidence is "
        "seen at most once in 400 days, however often you look. Bins are bold if their share moved by more than noise. "
        "PSI is the distance of all bins together.</p></footer></body></html>"
    )


def _place(verdict: Verdict) -> tuple[str, int, str, float]:
    """Return the sort key of a variable: the worst states of an endpoint first, then the most certain."""
    days = verdict.standing.days
    return verdict.endpoint, _ORDER.index(verdict.state), verdict.version, -days if math.isfinite(days) else 0.0


def _summary(name: str, of: Sequence[Verdict]) -> str:
    state = of[0].state
    bad = [v for v in of if v.state == state]
    told = ", ".join(dict.fromkeys(_e(v.variable) for v in bad)) if state in ("drift", "moved") else ""
    began = [v.standing.since for v in bad if math.isfinite(v.standing.since)]
    since = f", since about {_at(min(began))}" if began and told else ""
    days = of[0].standing.endpoint_days
    sure = (
        f" (chance alone: at most once in {in_days(days)}; alarm from {of[0].standing.alarm_days:g} days)"
        if math.isfinite(days)
        else ""
    )
    word = f"<span class={_CLASSES[state]}>{_WORDS[state]}</span>"
    return f"<li><b>{_e(name)}</b>: {word}{told and ': '}{told}{since}{sure}</li>"


def _endpoint(
    name: str, of: Iterable[Verdict], words: MovedWords, against: str, parts: Parts, by: str
) -> str:  # fmt: skip
    shown = (
        _variable(
            one, words.get((one.endpoint, one.version), {}), against,
            _segments(parts.get((one.endpoint, one.version, one.variable), ()), by),
        )
        for one in of
    )  # fmt: skip
    return f"<section><h2>{_e(name)}</h2>{''.join(shown)}</section>"


def _segments(parts: Sequence[Part], by: str) -> str:
    """Return the segments of one variable as a table; those with a change are bold."""
    rows = "".join(
        f"<tr{' class=moved' if one.moved else ''}><td title='{_e(one.segment, 300)}'>{_e(one.segment, 40)}</td>"
        f"<td class=wide>{_e(changes(one)) or '–'}</td><td class=n>{one.verdict.n:,.0f}</td>"
        f"<td class=n>{f'{one.verdict.psi:.3f}' if one.verdict.n else '–'}</td></tr>"
        for one in parts
    )
    return rows and (
        f"<table><thead><tr><th scope=col>{_e(by)}</th><th scope=col class=wide>moved</th><th scope=col class=n>values"
        f"</th><th scope=col class=n>PSI</th></tr></thead><tbody>{rows}</tbody></table>"
    )


def _variable(
    verdict: Verdict, words: Mapping[str, Sequence[Mapping[str, Any]]], against: str, segments: str
) -> str:  # fmt: skip
    state, standing = verdict.state, verdict.standing
    is_open = " open" if state in ("drift", "moved") else ""
    meaning = MEANINGS.get(verdict.variable, "")
    meant = f"<p class=dim>{_e(meaning.replace('`', ''), 300)}</p>" if meaning else ""
    sure = []
    if math.isfinite(standing.days):
        sure.append(f"chance alone: at most once in {in_days(standing.days)}")
    if state in ("drift", "moved") and math.isfinite(standing.since):
        sure.append(f"since about {_at(standing.since)}")
    if math.isfinite(standing.visible):
        sure.append(f"a change of {standing.visible:.1%} of a share of one half would be detected within a day")
    size = "" if math.isinf(verdict.reference_size) else f" against {verdict.reference_size:,.0f} of the {against}"
    seen = f"{verdict.n:,.0f} values{size}" + (f", PSI {verdict.psi:.3f}" if verdict.n else "")
    return (
        f"<details class=variable{is_open}><summary><h3>{_e(verdict.variable)}</h3>"
        f"<span class={_CLASSES[state]}>{_WORDS[state]}</span>"
        f"<small>version {_e(verdict.version or '–')}</small></summary>{meant}"
        f"{_changes(verdict)}{_words(words) if verdict.variable in OF_WORDS else ''}"
        f"<p>{_sentence('; '.join(sure)) or 'Not judged yet.'}</p>"
        f"{_bins(verdict, against)}<p class=dim>{seen}</p>{segments}</details>"
    )


def _changes(verdict: Verdict) -> str:
    """Return the bins that moved by more than noise, as a list."""
    was = dict(zip(verdict.bins, verdict.reference, strict=True))
    rows = [
        f"<li>{_e(verdict.named(name))}: {was[name]:.1%} → {was[name] + by:.1%} ({100 * by:+.1f} points)</li>"
        for name, by in verdict.moved[:5]
    ]
    return f"<ul>{''.join(rows)}</ul>" if rows else ""


def _words(words: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the words that recently became more or less frequent, as shares of the texts."""
    rows = []
    for name, moved in words.items():
        told = (f"{_e(str(one['word']), 40)} {word_shares(one)}" for one in moved[:_MAX_WORDS])
        rows += [f"<li>words that {_e(name)}: {', '.join(told)}</li>"] if moved else []
    return f"<ul>{''.join(rows)}</ul>" if rows else ""


def _bins(verdict: Verdict, against: str) -> str:
    now = verdict.seen.tolist() if verdict.n else [0.0] * len(verdict.bins)
    scale = 100 / max(*now, *verdict.reference, 1e-9)
    moved = dict(verdict.moved)
    rows = []
    for name, share, was in zip(verdict.bins, now, verdict.reference, strict=True):
        label = verdict.named(name)
        rows.append(
            f"<tr{' class=moved' if name in moved else ''}><td title='{_e(label, 300)}'>{_e(label, 40)}</td>"
            f"<td class=bar><svg role=img aria-label='{share:.1%} now, {was:.1%} in the {_e(against)}'>"
            f"<rect class=now y=2 height=10 rx=2 width='{share * scale * 0.98:.2f}%' />"
            f"<rect class=was width=2 height=14 x='{was * scale * 0.98:.2f}%' /></svg></td>"
            f"<td class=n>{share:.1%}</td><td class=n>{was:.1%}</td></tr>"
        )
    return (
        "<table><thead><tr><th scope=col>bin</th><th scope=col class=bar></th><th scope=col class=n>now</th>"
        f"<th scope=col class=n>was</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _at(since: float) -> str:
    return f"{datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M} UTC"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _e(text: str, most: int = _MAX_CHARS) -> str:
    shown = "".join(one if one.isprintable() else "�" for one in text)
    return html.escape(shown if len(shown) <= most else f"{shown[: most - 1]}…")
