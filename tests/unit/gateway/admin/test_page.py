"""The status page: drawn from the status in a real browser, safe for any names."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.page import POLICY, page
from tests.core_client import listening
from tests.waiting import LIMIT_S

EVIL = "<script>alert(1)</script>"
STATUS: dict[str, Any] = {
    "ready": False, "not_ready_because": [EVIL], "serving_task": {"id": "t", "name": EVIL}, "revision": "r",
    "triton": {EVIL: False}, "registry": {"error": EVIL}, "canaries": {EVIL: {EVIL: 0.5}},
    "faults": [{"subject": EVIL, "message": EVIL}], "lost": [{"endpoint": EVIL, "restore": EVIL}],
    "endpoints": [{"url": EVIL, "endpoint": EVIL, "version": EVIL, "details": {"task": EVIL}, "model_name": EVIL,
                   "model_id": EVIL, "successor": {"state": EVIL, "reason": EVIL}}],
    "pending": [{"url": EVIL, "state": EVIL, "reason": EVIL}],
    "last_minute": [
        {"endpoint": EVIL, "version": EVIL, "route": EVIL, "rate": 1.0, "share": 0.5, "failed": 0.0, "refused": 0.0,
         "p50": 0.1, "p95": None, "p99": None, "rows_per_call": None}
    ] * 2,
    "drift": [{"endpoint": EVIL, "version": EVIL, "variable": EVIL, "bins": [EVIL, "missing"], "counts": [3, 0],
               "reference": [0.5, 0.5], "n": 3, "state": EVIL,
               "days": 2.0, "alarm_days": 30.0, "visible": 0.1, "since": 7.0}],
    "compared": [{"endpoint": EVIL, "version": EVIL, "beside": EVIL, "sentences": {"texts": EVIL}}],
}  # fmt: skip


def endpoint(name: str, *, failed: float = 0.0, refused: float = 0.0, drifts: str = "", broken: str = "") -> Any:
    """Return the status of one endpoint with the given parts."""
    served = {"url": f"{name}/1", "endpoint": name, "version": "1", "details": {}, "model_name": f"model of {name}",
              "model_id": "", "successor": None}  # fmt: skip
    counted = {"endpoint": name, "version": "1", "route": "direct", "rate": 1970.0, "share": 1.0, "failed": failed,
               "refused": refused, "failures": {}, "p50": 0.0123, "p95": 1.3, "p99": 12.0,
               "rows_per_call": 63.96}  # fmt: skip
    drift = {"endpoint": name, "version": "1", "variable": "length", "bins": ["1", "missing"], "counts": [3000, 0],
             "reference": [0.5, 0.5], "n": 3000,
             "state": drifts or "steady", "days": 40.0 if drifts else 0.2, "alarm_days": 30.0, "visible": 0.08,
             "since": 1_700_000_000.0}  # fmt: skip
    pending = [{"url": f"{name}/2", "state": "failed", "reason": broken}] if broken else []
    return served, counted, drift, pending


def status_of(*endpoints: Any, **more: Any) -> dict[str, Any]:
    """Return the status of a ready gateway with these endpoints."""
    return {
        **STATUS, "ready": True, "degraded": [], "faults": [], "lost": [], "canaries": {}, "triton": {},
        "registry": {"error": ""}, "serving_task": {"id": "t", "name": "task"}, "endpoints": [e[0] for e in endpoints],
        "last_minute": [e[1] for e in endpoints], "drift": [e[2] for e in endpoints],
        "pending": [pending for e in endpoints for pending in e[3]], "compared": [], **more,
    }  # fmt: skip


def rollout(**more: Any) -> dict[str, Any]:
    """Return a rollout of `e/2` beside `e/1` as the status has it."""
    return {
        "endpoint": "e", "canary": "e/2", "stable": "e/1", "phase": "running", "state": "holding", "why": EVIL,
        "weight": 5.0, "steps": [1.0, 5.0, 100.0], "guard": "controller-a",
        "way_back": "triton-gateway canary abort --endpoint e",
        "decisions": [{"at": 1_700_000_000.0, "what": "start", "weight": 1.0, "why": EVIL}], **more,
    }  # fmt: skip


CURVES = [
    {"version": "1", "ago": [30.0, 15.0, 0.0], "rate": [0.0, 4.0, 5.0], "failed": [None, 0.0, 0.5],
     **{name: [None, 0.02, 0.03] for name in ("p50", "p95", "p99", "prepare", "queue", "infer", "finish")}}
]  # fmt: skip
ANSWERS = "it answers differently from stable (predicted_label: en 90.0%, stable 50.0%)"
TEXTS = "it gets other texts than stable (language: en 90.0%, stable 50.0%): the traffic is split unevenly"


def beside(**sentences: str) -> list[dict[str, Any]]:
    """Return how version 2 of `e` compares with 1."""
    return [{"endpoint": "e", "version": "2", "beside": "1", "sentences": sentences}]


SORTED = status_of(
    endpoint("calm"), endpoint("broken", broken="no such model"), endpoint("mistaken", refused=0.5),
    endpoint("failing", failed=0.2), endpoint("adrift", drifts="drift"), endpoint("busy"),
    endpoint("both", failed=0.2, broken="no such model"),
)  # fmt: skip
_ROUTE = endpoint("e", failed=0.2)[1]
CASES: dict[str, tuple[dict[str, Any], str, list[str], list[str]]] = {
    "evil": (STATUS, "", [html.escape(EVIL)], ["<script", "compared with", "now, and in"]),
    "evil open": (STATUS, EVIL, [html.escape(EVIL)], ["<script"]),
    "ready": (status_of(), "", [">ready<", "Nothing is deployed yet.", "triton-gateway deploy ./my-model"],
              ["<details", 'class="tiles"']),
    "degraded": (status_of(degraded=["e is pending: x"]), "", [">ready, degraded<"], []),
    "answers": (status_of(endpoint("e"), compared=beside(answers=ANSWERS)), "e",
                ['<span class="ok">serving</span>', f"version 2: {ANSWERS}"], []),
    "texts": (status_of(endpoint("e"), compared=beside(answers=ANSWERS, texts=TEXTS)), "e",
              ['<span class="wait">uneven split</span>', "<h3>Version 2 compared with 1</h3>",
               f'<p class="wait">{ANSWERS}</p>', f'<p class="wait">{TEXTS}</p>'], []),
    "sorted": (SORTED, "", ["20.00% of requests fail; both/2: no such model"], []),
    "busier": ({**SORTED, "last_minute": [{**one, "rate": i} for i, one in enumerate(SORTED["last_minute"])]}, "",
               [], []),
    "gone": (status_of(endpoint("both", failed=0.2, broken="no such model"), endpoints=[]), "",
             [">not served<", "both/2: no such model; 20.00% of requests fail"], []),
    "outcomes": (status_of(endpoint("e"), last_minute=[
        {**_ROUTE, "failures": {"model_failed": 0.15, "deadline_exceeded": 0.05}},
        {**_ROUTE, "rate": 9000.0, "failures": {"<b>": 0.2, "rare": 0.001}},
    ]), "", ["20.00% of requests fail: &lt;b&gt;, model_failed<"], []),
    "variables": (status_of(endpoint("e"), drift=[
        {**endpoint("e")[2], "variable": state.replace(" ", ""), "state": state}
        for state in ("too few", "moved", "steady", "drift")
    ]), "e", [], []),
    "numbers": (status_of(endpoint("e", failed=0.00001), accuracy=[
        {"endpoint": "e", "version": "1", "value": 0.9, "low": 0.6, "high": 0.98, "labels": 1010}
    ]), "e", ["1,970/s", "12.3 ms", "1.3 s", "12.0 s", "64.0", "under 0.01%", "n 3,000",
              "90.0% right by labels (60.0% to 98.0%, 1,010 labels)",
              "chance alone: at most once in less than a day (alarm from 30 on, endpoint)"], []),
    "many": (status_of(*(endpoint(f"e{i:03d}") for i in range(300))), "e007", [], []),
    # What a curve shows is its name too.
    "curves": (status_of(endpoint("e"), curves={"e": CURVES}), "e",
               ["Time of answers, version 1; now p50 30 ms, p95 30 ms, p99 30 ms"], []),
    "running": (status_of(endpoint("e"), rollouts=[rollout()]), "e",
                [">serving<", "running, 5 % of steps 1 %, 5 %, 100 %", "guarded by controller-a",
                 "canary abort --endpoint e", "11-14 22:13:20", html.escape(EVIL)], ["nobody"]),
    "unguarded": (status_of(endpoint("e"), rollouts=[rollout(guard="")]), "e",
                  [">unguarded<", "nobody looks after the canary e/2", "start <code>triton-gateway controller"],
                  ["guarded by"]),
    "promoted": (status_of(endpoint("e"), rollouts=[
        rollout(phase="promoted", guard="", weight=100.0, way_back="triton-gateway default e 1")
    ]), "e", [">serving<", "promoted", "The way back: <code>triton-gateway default e 1"], ["canary abort"]),
}  # fmt: skip
"""By name: a status, the open row, what is shown, and what is not."""


def dom(address: str, folder: Path, *flags: str, virtual_ms: int = 30_000) -> str:
    """Open an address in Chromium. Return its document as it is after ``virtual_ms`` of the page's time."""
    chromium = shutil.which("chromium")
    assert chromium, "chromium is not on PATH: install Debian's chromium, or leave these tests out: -m 'not browser'"
    return subprocess.run(
        [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--no-first-run", f"--user-data-dir={folder / 'profile'}", *flags, f"--virtual-time-budget={virtual_ms}",
         "--dump-dom", address],
        check=True, capture_output=True, text=True, timeout=LIMIT_S,
    ).stdout  # fmt: skip


def with_script(given: dict[str, Any], script: str = "", *opened: str) -> str:
    """Return the page with a gateway that answers ``given``, open rows, and a script of a test."""
    text = json.dumps([given, opened]).replace("</", "<\\/")
    return page("/serve/").replace(
        "</head>", f"<script>const [GIVEN, OPENED] = {text};{_REPORT}{_SCRIPTED}{script}</script></head>"
    )


_REPORT = """
const said = [];
function report() {
  document.body.append(Object.assign(document.createElement('pre'), {id: 'said', textContent: JSON.stringify(said)}));
}
"""
_SCRIPTED = """
const later = (done, ms) => setTimeout(done, ms);
const given = async () => new Response(JSON.stringify(GIVEN));
let answer = given;
window.fetch = () => answer();
for (const name of OPENED) open.add(name);
"""
"""Tests of the page's script: what stands in for the gateway, and what has been seen."""


def run_in_browser(content: str, folder: Path, *flags: str, width: int = 800) -> Any:
    """Open a page in Chromium. Return the value that its script puts into `said`."""
    document = folder / "page.html"
    document.write_text(content)
    shown = dom(document.as_uri(), folder, f"--window-size={width},900", *flags)
    found = re.search(r'<pre id="said">(.*?)</pre>', shown, re.S)
    assert found is not None
    return json.loads(html.unescape(found[1]))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the browser draws of each case, as HTML."""
    script = """
    addEventListener('load', () => {
      for (const [name, [given, opened]] of Object.entries(GIVEN)) {
        open.clear();
        if (opened) open.add(opened);
        status = {curves: {}, ...given};
        draw();
        said.push([name, at('live').innerHTML]);
      }
      report();
    });"""
    found = run_in_browser(
        with_script({name: case[:2] for name, case in CASES.items()}, script), tmp_path_factory.mktemp("drawn")
    )
    assert [*CASES] == [name for name, _ in found]
    return dict(found)


def rows(drawn: str) -> list[str]:
    """Return the names of the rows, in order."""
    return re.findall(r'<details id="row-([^"]+)"', drawn)


@pytest.mark.browser
@pytest.mark.parametrize("case", CASES)
def test_what_is_shown(drawn: dict[str, str], case: str) -> None:
    """States with their reasons, canaries beside stable, rollouts with guard and way back, readable numbers; no empty
    part, and no element of a name's.
    """
    *_, shown, hidden = CASES[case]
    assert [] == [one for one in shown if one not in drawn[case]]
    assert [] == [one for one in hidden if one in drawn[case]]
    assert not re.search(r"\d\.?\d*e[+-]\d", drawn[case])


@pytest.mark.browser
def test_the_worst_comes_first_and_keeps_its_place(drawn: dict[str, str]) -> None:
    """By state, then by name; a changing rate moves no row, callers' errors are no faults. Changed variables first."""
    assert ["both", "failing", "broken", "adrift", "busy", "calm", "mistaken"] == rows(drawn["sorted"])
    assert rows(drawn["sorted"]) == rows(drawn["busier"])
    variables = re.findall(r'<div class="drift"><p><code>(\w+)</code>', drawn["variables"])
    assert ["moved", "drift", "toofew", "steady"] == variables


@pytest.mark.browser
def test_only_open_rows_are_drawn_whole(drawn: dict[str, str]) -> None:
    """A page of 300 endpoints stays quick."""
    assert (300, 1) == (len(rows(drawn["many"])), drawn["many"].count(' open=""'))
    assert 1 == drawn["many"].count("now, and in the reference")
    assert 3 == drawn["curves"].count('class="curves')


def test_the_policy_allows_only_the_pages_own_style_and_script() -> None:
    """By their hashes, so no element may have a style or an event handler."""
    content = page("/'><script>/")
    for tag in ("style", "script"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", content, flags=re.S)
        hashed = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{hashed}'" in POLICY
        content = content.replace(inside, "")
    assert not re.search(r"<[^>]*\s(style|on\w+)=", content)


async def test_the_page_has_security_headers(stack: Any) -> None:
    """They prevent framing and other content types."""
    headers = (await stack.client.get("/")).headers
    assert ("nosniff", POLICY) == (headers["x-content-type-options"], headers["content-security-policy"])
    assert {"none": []} == (await stack.client.get("/v1/status?open=none")).json()["curves"]


@pytest.mark.browser
async def test_the_page_shows_what_a_gateway_says(monkeypatch: pytest.MonkeyPatch, stack: Any, tmp_path: Path) -> None:
    """A canary with curves, drawn in Chromium while requests go on."""
    for module in ("publisher", "views"):
        monkeypatch.setattr(f"gateway.metrics.{module}.STEP_S", 2.0)
    stack.registry.canary["e"] = {"endpoint": "e", "weights": [0.2, 0.8], "load_endpoints": ["e/2", "e/1"]}
    for version in ("1", "2"):
        stack.deploy("e", version=version)
    await stack.served("e/1", "e/2")

    async def seen() -> bool:
        for _ in range(20):
            await stack.client.post("/serve/e", json={"text": "good film"})
        curves = (await stack.client.get("/v1/status?open=e")).json()["curves"]["e"]
        return len(curves) == 2 and all(len(one["ago"]) > 1 for one in curves)

    async with listening(stack.gateway) as port:
        while not await seen():
            await asyncio.sleep(0.1)
        reading = asyncio.create_task(asyncio.to_thread(dom, f"http://127.0.0.1:{port}/?open=e", tmp_path))
        while not reading.done():
            await seen()
            await asyncio.sleep(0.1)
        shown = await reading
    assert shown.count("<canvas") >= 2 * 3, "curves"
    assert [] == [text for text in ("POST /serve/e/1", "canary", "p99") if text not in shown]


@pytest.mark.browser
def test_numbers_that_are_not_updated_are_marked_as_old(tmp_path: Path) -> None:
    """Without an answer the page keeps the last numbers and shows since when. The next answer ends that."""
    script = """
    const note = () => said.push(at('news').textContent, document.body.classList.contains('old'));
    addEventListener('load', () => {
      later(() => { note(); answer = async () => new Response('', {status: 502}); }, 4000);
      later(() => { note(); answer = given; }, 11000);
      later(() => { note(); said.push(rowsOf(status).length); report(); }, 18000);
    });"""
    found = run_in_browser(with_script(status_of(endpoint("e"), curves={}), script), tmp_path)
    assert ["", False, True, "", False, 1] == [*found[:2], *found[3:]]
    assert re.match(r"no answer from the gateway since \d", found[2])


@pytest.mark.browser
def test_selected_text_stays_over_updates_and_rows_are_filtered_sorted_and_opened(tmp_path: Path) -> None:
    """So that an error can be copied. The page is updated again afterwards."""
    script = """
    let asked = 0;
    answer = () => { asked++; return given(); };
    const names = () => [...document.querySelectorAll('#rows>details')].map(row => row.id).join(' ');
    addEventListener('load', () => later(() => {
      at('filter').value = 'MODEL OF B';
      at('filter').oninput();
      said.push(names(), at('shown').textContent);
      at('filter').value = '';
      at('sort').value = 'name';
      at('sort').onchange();
      said.push(names());
      document.querySelector('#rows summary').click();
      later(() => {
        said.push(location.search, document.querySelectorAll('.inside table').length > 0);
        const chosen = getSelection();
        chosen.selectAllChildren(document.querySelector('#live summary b'));
        asked = 0;
        later(() => {
          said.push(asked, chosen.toString());
          chosen.removeAllRanges();
          later(() => { said.push(asked >= 2); report(); }, 7000);
        }, 7000);
      }, 1000);
    }, 1000));"""
    found = status_of(endpoint("c"), endpoint("b", broken="no such model"), endpoint("a"), curves={})
    shown = run_in_browser(with_script(found, script), tmp_path)
    assert ["row-b", "1 of 3 shown", "row-a row-b row-c", "?open=a", True, 0, "a", True] == shown


_ASKED = """
const asked = [];
window.fetch = async (to, how) => {
  if (String(to).startsWith('v1/status')) return given();
  asked.push([String(to), how?.method || 'GET', how?.body || '']);
  return String(to).endsWith('lineage')
    ? new Response(JSON.stringify({model: {name: 'm'}, task: {name: 'training', id: 't1'},
      datasets: [{name: '<b>reviews'}], notes: []}))
    : new Response('{"label":"GOOD"}', {headers: {'x-served-by': 'e/1'}});
};
const press = one => document.querySelector(one).click();
addEventListener('load', () => later(() => {
  press('.inside button');
  later(() => {
    press('#panel button');
    later(() => {
      said.push(at('panel').innerText);
      press('.inside [aria-label*="comes from"]');
      later(() => {
        said.push(at('panel').innerText, asked, document.querySelectorAll('.curves canvas').length);
        report();
      }, 500);
    }, 500);
  }, 500);
}, 1000));
"""


@pytest.mark.browser
def test_a_request_is_tried_and_lineage_is_shown_beside_the_curves(tmp_path: Path) -> None:
    """The box has the example, the answer, who gave it and the same as curl; names and values add no markup."""
    content = with_script(status_of(endpoint("e"), curves={"e": CURVES}), _ASKED, "e")
    tried, shown, asked, drawn = run_in_browser(content, tmp_path)
    assert re.search(r"200 after \d+ ms, answered by e/1\s+\{\"label\":\"GOOD\"\}", tried)
    assert '-d \'{"text":"Hello there"}\'' in tried
    assert re.search(r"Trained by Task\s+training · t1\s+Data set\s+<b>reviews", shown)
    assert ["POST", '{"text":"Hello there"}'] == asked[0][1:]
    assert asked[0][0].endswith("/serve/e/1")
    assert ["v1/endpoints/e/1/lineage"] == [address for address, *_ in asked[1:]]
    assert 3 == drawn


_LOOKED_AT = """
addEventListener('load', () => setTimeout(() => {
  for (const {contentDocument: page} of document.querySelectorAll('iframe')) {
    const found = [...page.querySelectorAll('a,button,input,select,summary,.wide,svg:not([aria-hidden])')];
    const named = one => one.getAttribute('aria-label') || one.textContent.trim() || one.labels?.length;
    said.push(found.length >= 5, page.documentElement.scrollWidth, found.filter(one => !named(one)).length);
  }
  report();
}, 2000));
"""
"""Looks at every page of a document of frames: is it drawn, does it fit, are things named."""


@pytest.mark.browser
def test_page_fits_on_a_phone(tmp_path: Path) -> None:
    """With no endpoint, and with an open one of a dozen variables. A window is never narrower than 500 px."""
    worst = endpoint("broken-" * 6, broken="no such model: " + "x" * 200), endpoint("adrift", drifts="drift")
    full = status_of(
        *worst, compared=[{**STATUS["compared"][0], "endpoint": "adrift"}], curves={"adrift": CURVES},
        rollouts=[rollout(endpoint="adrift", why="w", guard="")],
        drift=[{**worst[1][2], "variable": f"variable_{i}"} for i in range(12)],
    )  # fmt: skip
    pages = with_script(status_of(curves={})), with_script(full, "", "adrift")
    frames = "".join(f"<iframe width=390 height=900 srcdoc='{html.escape(page)}'></iframe>" for page in pages)
    content = f"<!doctype html><meta charset=utf-8><script>{_REPORT}{_LOOKED_AT}</script>{frames}"
    assert [True, 390, 0] * 2 == run_in_browser(content, tmp_path, "--hide-scrollbars", width=1400)
