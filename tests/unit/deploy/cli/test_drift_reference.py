"""References of data sets: what their texts look like, beside what a gateway counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deploy.cli.commands.drift import command
from deploy.cli.data_rows import Text
from deploy.tools.errors import DeployError
from gateway.metrics import drift
from tests.sites import site

ROWS = [
    Text(f"line {n}", "guten Tag, das ist ein Text" if n % 4 == 0 else "this is a text", "AB"[n % 2])
    for n in range(400)
]


def run(*arguments: object) -> Any:
    """Call the command; errors of ours come through."""
    return CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False, standalone_mode=False)


def data(folder: Path, rows: list[Text] = ROWS) -> Path:
    """A data set of these rows."""
    path = folder / "train.csv"
    path.write_text("review,stars\n" + "".join(f'"{row.text}",{row.label}\n' for row in rows))
    return path


def capture(path: Path, *more: object) -> Any:
    """Make a reference of a data set."""
    return run(
        "capture", "--endpoint", "e/1", "--from", path, "--text-column", "review", "--least", 100, *more,
    )  # fmt: skip


def test_with_a_duration_lengths_and_scores_are_those_of_the_requests(tmp_path: Path) -> None:
    """And what texts look like is that of the data set: a gateway looks at some texts only."""
    pages = []
    for count in (10, 410):
        page = "".join(
            f'gateway_variable_{name}{{endpoint="e",version="1",variable="{variable}",{at}}} {count}\n'
            for name, variable, at in (
                ("scalar_bucket", "token_length", 'le="8"'), ("scalar_bucket", "token_length", 'le="+Inf"'),
                ("enum_total", "language", 'value="fr"'),
            )
        )  # fmt: skip
        pages.append(page.encode())
    with site(lambda _: (200, pages.pop(0) if len(pages) > 1 else pages[0])) as url:
        capture(data(tmp_path), "--url", url, "--duration", "0.1s", "--output", tmp_path / "r.json")
    found = drift.decode((tmp_path / "r.json").read_text())
    assert 400 == found["token_length"].total
    assert ("en", "de") == found["language"].values


def test_without_traffic_it_is_what_texts_look_like_and_their_labels(tmp_path: Path) -> None:
    """Of the variables that the gateway's own functions tell of a text; nobody is asked."""
    done = capture(data(tmp_path), "--label-column", "stars", "--output", tmp_path / "r.json")
    assert 0 == done.return_value
    found = drift.decode((tmp_path / "r.json").read_text())
    shares = {name: dict(zip(bins.names, bins.counts, strict=True)) for name, bins in found.items()}
    assert {"en": 300.0, "de": 100.0} == {name: n for name, n in shares["language"].items() if n}
    assert {"A": 200.0, "B": 200.0} == {name: n for name, n in shares["predicted_label"].items() if n}
    assert {"language", "letter_case", "predicted_label"} == found.keys()
    assert "the reference has no words: they need 2,000 texts, and there are only 400" in done.stderr


def test_the_frequent_words_of_a_data_set_are_in_its_reference(tmp_path: Path) -> None:
    """All texts of the data set count, in any order."""
    texts = [f"{'good' if n < 1500 else 'bad'} film number{'abcdefgh'[n % 8]}" for n in range(3000)]
    path = data(tmp_path, [Text("", text, "A") for text in texts])
    done = capture(path, "--output", tmp_path / "r.json")
    assert "11 words of 1000 texts" in done.stdout
    found = drift.decode((tmp_path / "r.json").read_text())
    assert found.words is not None
    assert ("film", 1000) == (found.words.usual[0], found.words.texts)
    assert {"good", "bad"} < {*found.words.usual}
    unusual = dict(zip(found["unusual_word_ratio"].names, found["unusual_word_ratio"].counts, strict=True))
    assert 2000 == found["unusual_word_ratio"].total == unusual["0"]


def test_too_few_texts_are_no_reference(tmp_path: Path) -> None:
    """Rows without a text do not count, and an earlier reference stays."""
    former = tmp_path / "r.json"
    former.write_text("former")
    rows = [Text("", "", "A"), *ROWS[:50]]
    with pytest.raises(DeployError, match=r"train\.csv has 50 texts; 100 are needed"):
        capture(data(tmp_path, rows), "--output", former)
    assert "former" == former.read_text()


def test_of_many_texts_some_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a large set does not take hours; the same ones every time."""
    monkeypatch.setattr("deploy.cli.commands.drift._MOST", 120)
    written = []
    for name in ("a.json", "b.json"):
        capture(data(tmp_path), "--output", tmp_path / name)
        written.append((tmp_path / name).read_text())
    assert 120 == drift.decode(written[0])["language"].total
    assert written[0] == written[1]
