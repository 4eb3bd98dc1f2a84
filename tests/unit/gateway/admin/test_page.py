"""The status page: drawn from the status, safe for any names, and updated in a real browser."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.admin.page import POLICY, render_live, render_page
from gateway.metrics import drift, variables
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


class Tags(HTMLParser):
    """Counts the tags that a browser would find in a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def test_names_are_escaped_everywhere() -> None:
    """Names of endpoints, models and variables, and errors, also in open rows, add no script."""
    for opened in ((), (EVIL,)):
        assert 1 == Tags(render_page(STATUS, f"/{EVIL}/", opened)).tags.count("script")


@pytest.mark.parametrize(("degraded", "said"), [([], ">ready<"), (["e is pending: x"], ">ready, degraded<")])
def test_a_ready_gateway_shows_whether_it_is_degraded(degraded: list[str], said: str) -> None:
    """Versions that are not served are in the list of endpoints."""
    assert said in render_page({**STATUS, "ready": True, "degraded": degraded}, "/serve/")


def test_the_page_loads_nothing_from_other_hosts() -> None:
    """It is one document with links only to this gateway."""
    addresses = set(Tags(render_page(STATUS, "/serve/")).addresses)
    assert {"docs", "metrics", "v1/status"} == {address for address in addresses if not address.startswith("?open=")}


def test_the_page_of_an_empty_gateway() -> None:
    """It says so and has no empty sections."""
    empty: dict[str, Any] = {"endpoints": [], "pending": [], "last_minute": [], "drift": [], "canaries": {}}
    page = render_page({**STATUS, **empty}, "/serve/")
    assert "Nothing is deployed yet." in page
    assert "triton-gateway deploy ./my-model" in page
    assert "<details" not in page
    assert "class=tiles" not in page


def endpoint(name: str, *, failed: float = 0.0, refused: float = 0.0, drifts: str = "", broken: str = "") -> Any:
    """Return the status of one endpoint with the given parts."""
    served = {"url": f"{name}/1", "endpoint": name, "version": "1", "details": {}, "model_name": f"model of {name}",
              "model_id": "", "successor": None}  # fmt: skip
    counted = {"endpoint": name, "version": "1", "route": "direct", "rate": 1970.0, "share": 1.0, "failed": failed,
               "refused": refused, "p50": 0.0123, "p95": 1.3, "p99": 12.0, "rows_per_call": 63.96}  # fmt: skip
    drift = {"endpoint": name, "version": "1", "variable": "length", "bins": ["1", "missing"], "counts": [3000, 0],
             "reference": [0.5, 0.5], "n": 3000,
             "state": drifts or "steady", "days": 40.0 if drifts else 0.2, "alarm_days": 30.0, "visible": 0.08,
             "since": 1_700_000_000.0}  # fmt: skip
    pending = [{"url": f"{name}/2", "state": "failed", "reason": broken}] if broken else []
    return served, counted, drift, pending


def status_of(*endpoints: Any) -> dict[str, Any]:
    """Return the status of a ready gateway with these endpoints."""
    return {
        **STATUS, "ready": True, "degraded": [], "faults": [], "canaries": {}, "triton": {}, "registry": {"error": ""},
        "serving_task": {"id": "t", "name": "task"}, "endpoints": [e[0] for e in endpoints],
        "last_minute": [e[1] for e in endpoints], "drift": [e[2] for e in endpoints],
        "pending": [pending for e in endpoints for pending in e[3]], "compared": [],
    }  # fmt: skip


def test_a_canary_with_other_texts_is_a_warning_and_with_other_answers_a_note() -> None:
    """Other texts make every comparison unfair. Other answers are the purpose of a new model."""
    how = {
        "answers": "it answers differently from stable (predicted_label: en 90.0%, stable 50.0%)",
        "texts": "it gets other texts than stable (language: en 90.0%, stable 50.0%): the traffic is split unevenly",
    }

    def beside(*kinds: str) -> list[dict[str, Any]]:
        sentences = {kind: how[kind] for kind in kinds}
        return [{"endpoint": "e", "version": "2", "beside": "1", "sentences": sentences}]

    page = render_page(status_of(endpoint("e")) | {"compared": beside("answers")}, "/serve/", ("e",))
    assert "<span class=ok>serving</span>" in page
    assert f"version 2: {how['answers']}" in page
    found = beside("answers", "texts")
    page = render_page(status_of(endpoint("e")) | {"compared": found}, "/serve/", ("e",))
    assert "<span class=wait>uneven split</span>" in page
    assert "<h3>Version 2 compared with 1</h3>" in page
    assert all(f"<p class=wait>{sentence}</p>" in page for sentence in how.values())
    page = render_page(status_of(endpoint("e")) | {"compared": beside()}, "/serve/", ("e",))
    assert "No difference so far." in page
    for share in (1.0, 0.0):  # weights were turned round: version 1 answers nothing any more
        over = status_of(endpoint("e")) | {"compared": found, "canaries": {"e": {"e/2": 1.0 - share, "e/1": share}}}
        assert (share == 1.0) == ("Version 2 compared with" in render_page(over, "/serve/", ("e",)))
    assert "Version 2 compared with" not in render_page(status_of(endpoint("e")) | {"compared": found}, "/serve/")


def test_variables_that_changed_come_first() -> None:
    """A phone shows the first histogram and scrolls to the others."""
    served, counted, drifted, pending = endpoint("e")
    found = status_of((served, counted, drifted, pending))
    found["drift"] = [
        {**drifted, "variable": state.replace(" ", ""), "state": state}
        for state in ("too few", "moved", "steady", "drift")
    ]
    page = render_page(found, "/serve/", ("e",))
    assert ["moved", "drift", "toofew", "steady"] == re.findall(r"<div class=drift><p><code>(\w+)</code>", page)


def test_the_worst_rows_come_first_and_keep_their_place() -> None:
    """Sorted by state, then by name. A changing rate moves no row. Client errors are not faults."""
    found = status_of(
        endpoint("calm"), endpoint("broken", broken="no such model"), endpoint("mistaken", refused=0.5),
        endpoint("failing", failed=0.2), endpoint("adrift", drifts="drift"), endpoint("busy"),
    )  # fmt: skip
    names = re.findall(r"data-name='(\w+)'", render_page(found, "/serve/"))
    assert ["failing", "broken", "adrift", "busy", "calm", "mistaken"] == names
    for i, row in enumerate(found["last_minute"]):
        row["rate"] = float(i)
    assert names == re.findall(r"data-name='(\w+)'", render_page(found, "/serve/"))


def test_requests_that_fail_are_named_before_a_version_that_does_not_start() -> None:
    """An endpoint whose callers get errors is worse than one that serves an older version."""
    both = endpoint("both", failed=0.2, broken="no such model")
    page = render_page(status_of(endpoint("broken", broken="no such model"), both), "/serve/")
    assert ["both", "broken"] == re.findall(r"data-name='(\w+)'", page)
    assert ">failing</span>" in page
    assert "20.00% of requests fail; both/2: no such model" in page
    served, counted, drifted, pending = both
    gone = status_of((served, counted, drifted, pending)) | {"endpoints": []}
    page = render_page(gone, "/serve/")
    assert ">not served</span>" in page
    assert "both/2: no such model; 20.00% of requests fail" in page


def test_the_outcomes_of_most_failures_are_named() -> None:
    """The most frequent outcomes over all routes, escaped."""
    found = status_of(endpoint("e", failed=0.2))
    (row,) = found["last_minute"]
    few = {"model_failed": 0.15, "deadline_exceeded": 0.05}
    found["last_minute"] = [{**row, "failures": few}, {**row, "rate": 9000.0, "failures": {"<b>": 0.2, "rare": 0.001}}]
    page = render_page(found, "/serve/")
    assert "20.00% of requests fail: &lt;b&gt;, model_failed<" in page


def test_only_open_rows_are_drawn_whole() -> None:
    """A page of 300 endpoints stays small. Rows can be opened without scripts too."""
    found = status_of(*(endpoint(f"e{i:03d}") for i in range(300)))
    page = render_live(found, "/serve/", ("e007",))
    assert (300, 1) == (page.count("<details"), page.count(" open><summary>"))
    assert 1 == page.count("now, and in the reference")
    assert len(page) < 300_000
    assert len(gzip.compress(page.encode(), 1)) < 25_000


def test_numbers_are_written_as_people_write_them() -> None:
    """Without powers of ten. A share above zero is never shown as 0."""
    page = render_page(status_of(endpoint("e", failed=0.00001)), "/serve/", ("e",))
    for shown in ("1,970/s", "12.3 ms", "1.3 s", "12.0 s", "64.0", "under 0.01%", "n 3,000"):
        assert shown in page, shown
    assert not re.search(r"\de[+-]\d", re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S))


def test_the_policy_allows_only_the_pages_own_style_and_script() -> None:
    """By their hashes, so no element may have a style or an event handler."""
    page = render_page(status_of(endpoint("e", broken="x")), "/serve/", ("e",))
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, flags=re.S)
        hashed = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{hashed}'" in POLICY
    assert not re.search(r"<[^>]*\s(style|on\w+)=", page)


async def test_the_page_is_compressed_and_has_security_headers(stack: Any) -> None:
    """They prevent framing and other content types."""
    reply = await stack.client.get("/", headers={"accept-encoding": "gzip"})
    assert "gzip" == reply.headers["content-encoding"]
    assert ("nosniff", POLICY) == (
        reply.headers["x-content-type-options"], reply.headers["content-security-policy"],
    )  # fmt: skip
    assert "<main id=live>" in reply.text
    assert "content-encoding" not in (await stack.client.get("/", headers={"accept-encoding": "identity"})).headers


async def traffic(stack: Any, seconds: float) -> None:
    """Send requests to a canary and its stable version, like the reference except for the scores."""
    rng = np.random.default_rng(1)
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        texts = [
            " ".join(["good" if rng.random() < 0.9 else "bad", *["film"] * int(rng.integers(0, 9))]) for _ in range(4)
        ]
        await asyncio.gather(
            *(
                stack.client.post("/serve/sentiment", json={"text": text if rng.random() > 0.002 else ""})
                for text in texts
            ),
            stack.client.post("/serve/topics", json={"text": ["hello world"] * int(rng.integers(1, 5))}),
        )
        await asyncio.sleep(float(rng.uniform(0.001, 0.02)))


def chromium() -> str:
    """Return the browser. A test that needs it fails without it and is never skipped."""
    found = shutil.which("chromium")
    assert found, "chromium is not on PATH: install Debian's chromium, or leave these tests out: -m 'not browser'"
    return found


def dom(address: str, folder: Path, *flags: str, virtual_ms: int) -> str:
    """Open an address in Chromium. Return its document as it is after ``virtual_ms`` of the page's time."""
    return subprocess.run(
        [chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--no-first-run", f"--user-data-dir={folder / 'profile'}", *flags, f"--virtual-time-budget={virtual_ms}",
         "--dump-dom", address],
        check=True, capture_output=True, text=True, timeout=LIMIT_S,
    ).stdout  # fmt: skip


def said(document: Path, folder: Path, *flags: str, virtual_ms: int) -> Any:
    """Return the JSON that a document has in its element `said` after ``virtual_ms``."""
    found = re.search(
        r'<pre id="said">(.*?)</pre>', dom(document.as_uri(), folder, *flags, virtual_ms=virtual_ms), re.S
    )
    assert found is not None
    return json.loads(html.unescape(found[1]))


def framed(document: Path, folder: Path, scheme: str, *, virtual_ms: int) -> Any:
    """Return what a document with frames says, light or dark; a window is never narrower than 500 px, a frame is."""
    return said(document, folder, "--hide-scrollbars", "--window-size=1400,1000",
                *(["--force-dark-mode"] if scheme == "dark" else []), virtual_ms=virtual_ms)  # fmt: skip


@pytest.mark.browser
async def test_the_page_updates_itself_in_a_browser(
    monkeypatch: pytest.MonkeyPatch, stack: Any, tmp_path: Path
) -> None:
    """Chromium draws it, its script replaces the content, and it requests nothing from other hosts."""
    monkeypatch.setattr("gateway.metrics.publisher.STEP_S", 2.0)
    references = stack.settings.state_dir / "references" / "sentiment"
    references.mkdir(parents=True)
    lengths = drift.reference_of({"4": 200, "8": 400, "12": 300, "+Inf": 0})
    labels = drift.reference_of({"GOOD": 900, "BAD": 100})
    scores = drift.reference_of({
        **{drift.bin_of(one): 10 for one in variables.BOUNDS["top_score"] if one > 0.5}, drift.ABOVE: 0
    })  # fmt: skip
    text = drift.encode(drift.Reference({"token_length": lengths, "predicted_label": labels, "top_score": scores}))
    for version in ("1", "2"):
        (references / f"{version}.json").write_text(text)
    stack.registry.canary["sentiment"] = {
        "endpoint": "sentiment", "weights": [0.2, 0.8], "load_endpoints": ["sentiment/2", "sentiment/1"],
    }  # fmt: skip
    stack.deploy("topics")
    for version in ("1", "2"):
        stack.deploy("sentiment", version=version)
    stack.backend.latency = 0.002
    await stack.served("topics", "sentiment/1", "sentiment/2")
    async with listening(stack.gateway) as port:
        while b"class=curves" not in (await stack.client.get("/?open=sentiment")).content:
            await traffic(stack, 0.5)  # a curve needs two points
        # Virtual time runs the page for ten of its seconds: the script has then swapped its content at least once.
        url = f"http://127.0.0.1:{port}/?open=sentiment&open=topics"
        reading = asyncio.create_task(asyncio.to_thread(dom, url, tmp_path, virtual_ms=10_000))
        while not reading.done():
            await traffic(stack, 0.1)
        page = await reading
    tags = Tags(page).tags
    assert tags.count("svg") >= 2 * 3, "histograms"
    assert tags.count("canvas") >= 2 * 3, "curves"
    for text in ("sentiment", "canary", "predicted_label", "p99", "not judged"):
        assert text in page


_LOOKED_AT = """
const faults=[],colour=text=>text.match(/[\\d.]+/g).map(Number);
const light=c=>c.slice(0,3).map(v=>v/255).map(v=>v<=.04045?v/12.92:((v+.055)/1.055)**2.4)
.reduce((sum,v,i)=>sum+v*[.2126,.7152,.0722][i],0);
function look(frame){const page=frame.contentDocument,view=frame.contentWindow,wide=page.documentElement.clientWidth;
const fault=(what,one)=>faults.push(frame.title+': '+what+' '+(one?one.outerHTML.slice(0,90):''));
const named=one=>one.getAttribute('aria-label')||one.textContent.trim()||one.labels?.length;
if(page.documentElement.scrollWidth>wide)fault('is wider than its window, '+page.documentElement.scrollWidth);
for(const name of ['main','header','nav','footer'])if(page.querySelectorAll(name).length!==1)fault('no one '+name);
if(!page.documentElement.lang||!page.title)fault('no language or title');
const levels=[...page.querySelectorAll('h1,h2,h3,h4')].map(one=>+one.tagName[1]);
levels.forEach((level,i)=>{if(level>(i?levels[i-1]:0)+1)fault('a heading of level '+level+' is left out before')});
const ids=[...page.querySelectorAll('[id]')].map(one=>one.id);
if(new Set(ids).size!==ids.length)fault('an id twice');
for(const one of page.querySelectorAll('a,button,input,select,summary,svg[role=img],dt'))
if(!named(one))fault('no name',one);
for(const one of page.querySelectorAll('svg:not([role=img]):not([aria-hidden])'))fault('neither told nor hidden',one);
for(const one of page.querySelectorAll('table'))if(!one.querySelector('th[scope]'))fault('no heads',one);
const lines=one=>{const all=page.createRange();all.selectNodeContents(one);
return new Set([...all.getClientRects()].map(at=>Math.round(at.bottom/6))).size};
for(const one of page.querySelectorAll('.wide')){
if(one.tabIndex||!one.getAttribute('role')||!one.getAttribute('aria-label'))
fault('a keyboard cannot scroll it, or it has no name',one);
if(wide<500&&one.clientHeight>450)fault('a tall part, '+one.clientHeight,one);}
for(const one of page.querySelectorAll('.drift'))if(wide<500&&one.getBoundingClientRect().width>wide-60)
fault('one histogram hides that there are more',one);
for(const one of page.querySelectorAll('td.n'))if(lines(one)>1)fault('a number in two lines',one);
for(const one of page.querySelectorAll('details:not([open])>summary'))
if(one.getBoundingClientRect().height>(wide<500?140:110))fault('a tall row, '+one.getBoundingClientRect().height,one);
for(const one of page.querySelectorAll('summary .n,summary>b,summary>span:first-child')){
const at=one.getBoundingClientRect();if(!at.width||at.left<0||at.right>wide+1)fault('out of sight',one);}
const texts=page.createTreeWalker(page.body,NodeFilter.SHOW_TEXT);let seen=0;
while(texts.nextNode()){const one=texts.currentNode.parentElement;
if(!texts.currentNode.data.trim()||!one.getClientRects().length||one.closest('script,style,option'))continue;
let ground=one;while(ground&&!colour(view.getComputedStyle(ground).backgroundColor)[3]&&
colour(view.getComputedStyle(ground).backgroundColor).length>3)ground=ground.parentElement;
const style=view.getComputedStyle(one),ink=light(colour(one.closest('svg')?style.fill:style.color)),
paper=ground?light(colour(view.getComputedStyle(ground).backgroundColor)):1;seen++;
const ratio=(Math.max(ink,paper)+.05)/(Math.min(ink,paper)+.05);
if(ratio<4.5)fault('contrast '+ratio.toFixed(2),one);}
return seen;}
addEventListener('load',()=>{let seen=0;for(const frame of document.querySelectorAll('iframe'))seen+=look(frame);
const said=document.createElement('pre');said.id='said';said.textContent=JSON.stringify({seen,faults,
dark:matchMedia('(prefers-color-scheme:dark)').matches});document.body.append(said);});
"""
"""Looks at every page of a document of frames as WCAG asks: does it fit, are things named, can texts be read."""


_SCRIPTED = """
const later=(done,ms)=>setTimeout(done,ms),said=[],note=()=>said.push(document.getElementById('news').textContent),
report=()=>{const one=document.createElement('pre');one.id='said';one.textContent=JSON.stringify(said);
document.body.append(one);};
const page=async()=>new Response(document.documentElement.outerHTML);let answer=page;window.fetch=()=>answer();
"""
"""Tests of the page's script: what stands in for the gateway, and what has been seen."""


def run_in_browser(page: str, script: str, folder: Path, *, width: int = 800, virtual_ms: int = 30_000) -> Any:
    """Run a script in the page in Chromium. Return the value that it puts into `said`."""
    document = folder / "page.html"
    document.write_text(page.replace("<head>", f"<head><script>{_SCRIPTED}{script}</script>", 1))
    return said(document, folder, f"--window-size={width},900", virtual_ms=virtual_ms)


@pytest.mark.browser
@pytest.mark.parametrize(
    "outage", ["async()=>{throw new TypeError('gone')}", "async()=>new Response('',{status:502})"],
    ids=["gone", "refused"],
)  # fmt: skip
def test_numbers_that_are_not_updated_are_marked_as_old(tmp_path: Path, outage: str) -> None:
    """Without an answer the page keeps the last numbers and shows since when. The next answer ends that."""
    script = (
        "addEventListener('load',()=>{later(()=>{note();answer=" + outage + "},4000);"
        "later(()=>{note();said.push(document.body.classList.contains('old'));answer=page},11000);"
        "later(()=>{note();said.push(document.body.classList.contains('old'));report()},18000);});"
    )
    before, during, is_old, after, is_still_old = run_in_browser(
        render_page(status_of(endpoint("e")), "/serve/"), script, tmp_path
    )
    assert ("", "") == (before, after)
    assert re.match(r"no answer from the gateway since \d", during)
    assert (True, False) == (is_old, is_still_old)


@pytest.mark.browser
def test_what_is_scrolled_sideways_keeps_its_position_and_focus_over_updates(tmp_path: Path) -> None:
    """On a narrow screen the quantiles and most histograms are at the right."""
    script = (
        "addEventListener('load',()=>{const all=()=>[...document.querySelectorAll('.wide')].slice(-2);"
        "all().forEach(one=>one.scrollLeft=60);all()[1].focus();const was=all();"
        "later(()=>{said.push(all()[0]!==was[0],all().indexOf(document.activeElement),"
        "...all().map(one=>one.scrollLeft));report()},8000)})"
    )
    served, counted, drifted, pending = endpoint("long-name-" * 5)
    found = status_of((served, counted, drifted, pending)) | {"drift": [drifted] * 3}
    page = render_page(found, "/serve/", ("long-name-" * 5,))
    assert [True, 1, 60, 60] == run_in_browser(page, script, tmp_path, width=500)


@pytest.mark.browser
def test_selected_text_stays_over_updates(tmp_path: Path) -> None:
    """So that an error can be copied. The page is updated again afterwards."""
    script = (
        "let asked=0;answer=()=>{asked++;return page()};addEventListener('load',()=>{const chosen=getSelection();"
        "chosen.selectAllChildren(document.querySelector('#live summary b'));"
        "later(()=>{said.push(asked,chosen.toString());chosen.removeAllRanges();"
        "later(()=>{said.push(asked);report()},7000)},7000)})"
    )
    page = render_page(status_of(endpoint("broken", broken="no such model")), "/serve/")
    asked, selected, asked_again = run_in_browser(page, script, tmp_path, virtual_ms=16_000)
    assert (0, "broken") == (asked, selected)
    assert asked_again >= 2


CURVES = [
    {"version": "1", "ago": [30.0, 15.0, 0.0], "rate": [0.0, 4.0, 5.0], "failed": [None, 0.0, 0.5],
     **{name: [None, 0.02, 0.03] for name in ("p50", "p95", "p99", "prepare", "queue", "infer", "finish")}}
]  # fmt: skip


def test_curves_say_their_newest_values_and_no_traffic_is_no_number() -> None:
    """What a curve shows is its name too; 0 % of nothing is not a number."""
    idle = endpoint("idle")
    idle[1]["rate"] = 0.0
    found = status_of(endpoint("e"), idle) | {"curves": {"e": CURVES, "idle": [{**CURVES[0], "ago": [0.0]}]}}
    page = render_live(found, "/serve/", ("e", "idle"))
    assert "Time of answers, version 1; now p50 30 ms, p95 30 ms, p99 30 ms" in html.unescape(page)
    assert 3 == page.count("class=curves"), "none before there are two points"
    assert "<span class='n dim'>–<small>failed</small></span>" in page


def rollout(**more: Any) -> dict[str, Any]:
    """Return a rollout of `e/2` beside `e/1` as the status has it."""
    return {
        "endpoint": "e", "canary": "e/2", "stable": "e/1", "phase": "running", "state": "holding", "why": EVIL,
        "weight": 5.0, "steps": [1.0, 5.0, 100.0], "guard": "controller-a",
        "way_back": "triton-gateway canary abort --endpoint e",
        "decisions": [{"at": 1_700_000_000.0, "what": "start", "weight": 1.0, "why": EVIL}], **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "word", "said", "not_said"),
    [
        ({}, ">serving<", ["running, 5 % of steps 1 %, 5 %, 100 %", "guarded by controller-a",
                           "canary abort --endpoint e"], "nobody"),
        ({"guard": ""}, ">unguarded<", ["nobody looks after the canary e/2", "start <code>triton-gateway controller"],
         "guarded by"),
        ({"phase": "promoted", "guard": "", "weight": 100.0, "way_back": "triton-gateway default e 1"},
         ">serving<", ["promoted", "The way back: <code>triton-gateway default e 1"],
         "canary abort"),
        ({"phase": "rolled_back", "guard": "", "weight": 0.0, "way_back": ""}, ">serving<",
         ["rolled back, 0 %"], "The way back"),
    ],
    ids=["running", "unguarded", "promoted", "rolled back"],
)  # fmt: skip
def test_a_rollout_is_shown_with_its_guard_its_reasons_and_the_way_back(
    more: dict[str, Any], word: str, said: list[str], not_said: str
) -> None:
    """A canary that nobody guards is a warning; one that has ended needs no guard."""
    page = render_live(status_of(endpoint("e")) | {"rollouts": [rollout(**more)]}, "/serve/", ("e",))
    assert word in page
    assert [] == [one for one in said if one not in page]
    assert not_said not in page
    assert html.escape(EVIL) in page
    assert EVIL not in page


_ASKED = """
const asked=[];window.fetch=async(at,how)=>{asked.push([String(at),how?.method||'GET',how?.body||'']);
return String(at).endsWith('lineage')?new Response(JSON.stringify({model:{name:'m'},task:{name:'training',id:'t1'},
datasets:[{name:'<b>reviews'}],notes:[]})):new Response('{"label":"GOOD"}',{headers:{'x-served-by':'e/1'}})};
addEventListener('load',()=>{const press=one=>document.querySelector(one).click();press('[data-example]');
later(()=>{press('#panel button');later(()=>{said.push(at('panel').innerText);press('[data-lineage]');
later(()=>{said.push(at('panel').innerText,asked.filter(one=>!one[0].includes('part=live')),
document.querySelectorAll('.curves canvas').length);report()},500)},500)},500)});
"""


@pytest.mark.browser
def test_a_request_is_tried_and_lineage_is_shown_beside_the_curves(tmp_path: Path) -> None:
    """The box has the example, the answer, who gave it and the same as curl; names and values add no markup."""
    page = render_page(status_of(endpoint("e")) | {"curves": {"e": CURVES}}, "/serve/", ("e",))
    tried, shown, asked, drawn = run_in_browser(page, _ASKED, tmp_path)
    assert re.search(r"200 after \d+ ms, answered by e/1\s+\{\"label\":\"GOOD\"\}", tried)
    assert '-d \'{"text": "Hello there"}\'' in tried
    assert re.search(r"Trained by Task\s+training · t1\s+Data set\s+<b>reviews", shown)
    assert ["POST", '{"text": "Hello there"}'] == asked[0][1:]
    assert asked[0][0].endswith("/serve/e/1")
    assert ["v1/endpoints/e/1/lineage"] == [address for address, *_ in asked[1:]]
    assert 3 == drawn


def pages_by_size() -> dict[int, str]:
    """Return pages with no endpoint, three and 300, some of them open, one with a dozen watched variables."""
    worst = [
        endpoint("broken-" * 6, broken="no such model: " + "x" * 200), endpoint("failing", failed=0.2),
        endpoint("adrift", drifts="drift"),
    ]  # fmt: skip
    found = status_of(*worst)
    (adrift,) = (variable for variable in found["drift"] if variable["endpoint"] == "adrift")
    found["drift"] += [{**adrift, "variable": f"variable_{i}", "state": "steady"} for i in range(11)]
    return {
        0: render_page(status_of(), "/serve/"),
        3: render_page(
            found | {"compared": [{**STATUS["compared"][0], "endpoint": "adrift"}],
                     "curves": {"adrift": CURVES}, "rollouts": [rollout(endpoint="adrift", why="w", guard="")]},
            "/serve/",
            ("adrift", "failing"),
        ),
        300: render_page(status_of(*(endpoint(f"e{i:03d}") for i in range(300))), "/serve/", ("e007",)),
    }  # fmt: skip


@pytest.mark.browser
@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.long), "dark"])
def test_page_fits_and_can_be_read_at_three_widths(tmp_path: Path, scheme: str) -> None:
    """With no endpoint, three and 300, one of them open, in light and dark."""
    frames = "".join(
        f"<iframe title='{count} endpoints, {width} px' width={width} height=900 srcdoc='{html.escape(page)}'></iframe>"
        for count, page in pages_by_size().items() for width in (390, 800, 1440)
    )  # fmt: skip
    document = tmp_path / "frames.html"
    document.write_text(f"<!doctype html><meta charset=utf-8><script>{_LOOKED_AT}</script>{frames}")
    found = framed(document, tmp_path, scheme, virtual_ms=5_000)
    assert (scheme == "dark") == found["dark"]
    assert found["seen"] > 3 * 300 * 8
    assert [] == found["faults"]
