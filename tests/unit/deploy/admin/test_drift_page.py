"""The drift report as one HTML file: changes come first, nothing is loaded or run, and names are escaped."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser

from deploy.admin import drift_page
from deploy.admin.drift_segments import Part
from gateway.metrics.drift import Standing, Verdict, enum_bins, scalar_bins

MADE = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
EVIL = "<img src=x onerror=alert(1)>\"'\u202e"


class Document(HTMLParser):
    """The document as a browser parses it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def verdict(
    variable: str, counts: tuple[float, ...], *, endpoint: str = "e", days: float = 0.1, whole: float = 0.1
) -> Verdict:
    """An enum of which 70 of 100 were good."""
    bins = enum_bins({"GOOD": 7000, "BAD": 3000})
    standing = Standing(days, whole, 0.05, 1_700_000_000.0, 30.0)
    return Verdict(endpoint, "1", variable, bins.names, bins.ratios(), counts, bins.total, standing)


def rendered(*found: Verdict) -> str:
    """The page of these."""
    return drift_page.render(found, made=MADE, source="a test")


def test_segments_of_a_variable_are_a_table_and_their_names_are_text() -> None:
    """Below the variable's bins, a table shows what moved in each segment and its number of values."""
    whole = verdict("predicted_label", (700, 300, 0, 0))
    parts = [
        Part(name, 400, replace(whole, counts=counts), dict(replace(whole, counts=counts).moved))
        for name, counts in (("acme", (100.0, 300.0, 0.0, 0.0)), (EVIL, (280.0, 120.0, 0.0, 0.0)))
    ]
    page = drift_page.render(
        [whole], made=MADE, source="a test", parts={("e", "1", "predicted_label"): parts}, by="tenant"
    )
    document = Document(page)
    assert 2 == document.tags["table"]
    assert 0 == document.tags["img"]
    assert "acmeGOOD -45.0%, BAD +44.8%" in document.text
    assert "tenantmovedvaluesPSI" in document.text


def test_what_drifted_comes_first_with_how_sure_since_when_and_what_moved() -> None:
    """Steady variables are collapsed; the endpoint's evidence is shown with the alarm's threshold."""
    page = rendered(
        verdict("a_steady", (700, 300, 0, 0), endpoint="a"),
        verdict("z_moved", (4000, 6000, 0, 0), days=400.0, whole=120.0),
        verdict("b_steady", (700, 300, 0, 0), whole=120),
    )  # fmt: skip
    text = Document(page).text
    assert text.index("z_moved") < text.index("b_steady") < text.index("a_steady")
    assert (
        "drifted: z_moved, since about 2023-11-14 22:13 UTC (chance alone: at most once in 120 days; "
        "alarm from 30 days)" in text
    )
    assert "BAD: 30.0% → 60.0% (+30.0 points)" in text
    assert "Chance alone: at most once in 400 days" in text
    assert "10,000 values against 10,000 of the reference" in text
    assert 1 == page.count("<details class=variable open>")
    assert 3 == page.count("<details class=variable")


def test_names_are_text_and_nothing_is_loaded_or_run() -> None:
    """This holds for all names; characters that change the direction of text are not written."""
    bins = enum_bins({EVIL: 60, "x" * 300: 40})
    evil = Verdict(EVIL, EVIL, EVIL, bins.names, bins.ratios(), (90.0, 10.0, 0.0, 0.0), 100.0, Standing(90.0, 90.0))
    page = rendered(evil)
    document = Document(page)
    assert {"img": 0, "script": 0, "link": 0, "iframe": 0} == {
        tag: document.tags[tag] for tag in ("img", "script", "link", "iframe")
    }
    assert not [name for name, _ in document.attributes if name.startswith("on") or name in ("src", "href")]
    assert "\u202e" not in page
    assert "x" * 81 not in document.text
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")


def test_bins_of_numbers_say_up_to_what_they_go() -> None:
    """The last one is open; the share of each bin is drawn and written."""
    bins = scalar_bins([float(n) for n in range(100)], bins=4)
    counts = (*[25.0] * (len(bins.counts) - 1), 0.0)
    page = rendered(Verdict("e", "", "token_length", bins.names, bins.ratios(), counts, bins.total))
    text = Document(page).text
    assert "up to 24" in text
    assert "24 – 49" in text
    assert "above 74" in text
    assert "number of tokens of a text, including special tokens" in text
    assert "Not judged yet" in text
    assert len(bins.names) == page.count("<rect class=now y=2")


def test_words_that_rose_are_named_beside_the_variables_of_words() -> None:
    """Words of callers are escaped."""
    moved = {("e", "1"): {"rose": [{"word": "<b>flimmer", "now": 0.02, "was": None}], "fell": []}}
    found = [verdict("risen_word", (700, 300, 0, 0)), verdict("script", (700, 300, 0, 0))]
    page = drift_page.render(found, moved, made=MADE, source="a test")
    assert 1 == Document(page).text.count("words that rose: <b>flimmer 2.0% (was not frequent)")
    assert "words that fell" not in page


def test_nothing_to_report_is_said_and_a_variable_without_values_is_drawn() -> None:
    """Neither fails."""
    assert "no variable has a reference" in rendered()
    empty = verdict("x", (0, 0, 0, 0), days=math.nan, whole=math.nan)
    assert "0 values" in Document(rendered(empty)).text


def test_how_often_versions_are_right_is_said_if_labels_came() -> None:
    """A line each, as text; without labels there is no such part."""
    page = drift_page.render([], made=MADE, source="a test", sections={EVIL: [f"{EVIL} 1: 90.0% right by labels"]})
    document = Document(page)
    assert "90.0% right by labels" in document.text
    assert 0 == document.tags["img"]
    assert "Right answers" not in rendered()
