"""References of data sets: through an endpoint that counts, or from the texts alone."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from deploy.cli import drift_reference
from deploy.cli.commands.drift import command
from deploy.cli.data_rows import Text
from deploy.cli.terminal import Terminal
from deploy.tools.errors import DeployError
from gateway.metrics import drift, exposition
from gateway.metrics.observer import Observer
from gateway.metrics.served import Served
from gateway.spec import MetricSpec, MetricVariable
from gateway.trace import Trace
from tests.sites import Asked, site

ROWS = [
    Text(f"line {n}", "guten Tag, das ist ein Text" if n % 4 == 0 else "this is a text", "AB"[n % 2])
    for n in range(400)
]


class Counting:
    """A gateway that answers texts, and counts their lengths."""

    def __init__(self) -> None:
        self.observer = Observer(later=lambda drain, _: drain())
        declared = MetricSpec(
            "e/1", None,
            (MetricVariable("length", "scalar", (10, 20, 30)), MetricVariable("language", "enum", ("en", "de"))),
        )  # fmt: skip
        self.observer.watch.configure({"e/1": Served("e", "1")}, {"e/1": declared}, 1.0)
        self.asked: list[list[str]] = []
        self.refusals: list[tuple[int, Any]] = []

    def answered(self, texts: list[str]) -> list[Any]:
        trace = Trace("id")
        trace.url, trace.endpoint, trace.version, trace.route = "e/1", "e", "1", "direct"
        trace.body = {"length": [float(len(text)) for text in texts], "language": "en"}
        self.observer.started()
        self.observer.finished(trace)
        return [{"label": "A", "score": 1.0} for _ in texts]

    def __call__(self, asked: Asked) -> tuple[int, Any]:
        if asked.path.startswith("/metrics"):
            return 200, exposition.render(self.observer.snapshot())
        if asked.path != "/serve/e/1":
            return 404, {"error": "there is no endpoint"}
        if self.refusals:
            return self.refusals.pop(0)
        self.asked.append(asked.json["text"])
        return 200, {"results": self.answered(asked.json["text"])}


@contextmanager
def counting() -> Iterator[tuple[Counting, str]]:
    """One, and its address."""
    gateway = Counting()
    with site(gateway) as address:
        yield gateway, address


def run(*arguments: object) -> Any:
    """Call the command; errors of ours come through."""
    return CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False, standalone_mode=False)


def data(folder: Path, rows: list[Text] = ROWS) -> Path:
    """A data set of these rows."""
    path = folder / "train.csv"
    path.write_text("review,stars\n" + "".join(f'"{row.text}",{row.label}\n' for row in rows))
    return path


def capture(url: str, path: Path, *more: object) -> Any:
    """Make a reference of a data set, as fast as it goes."""
    return run(
        "capture", "--url", url, "--endpoint", "e/1", "--from", path, "--text-column", "review",
        "--rate", 1e9, "--least", 100, *more,
    )  # fmt: skip


def test_an_endpoint_is_asked_for_every_text_and_what_it_counts_is_the_reference(tmp_path: Path) -> None:
    """All of its variables are in the reference, and the share of equal labels is shown."""
    with counting() as (gateway, url):
        gateway.answered(["counted before"] * 50)
        done = capture(url, data(tmp_path), "--label-column", "stars", "--output", tmp_path / "r.json")
        assert [16] * 25 == [len(texts) for texts in gateway.asked]
    assert [row.text for row in ROWS] == [text for texts in gateway.asked for text in texts]
    found = drift.decode((tmp_path / "r.json").read_text())
    assert {"length": 400.0, "language": 400.0} == {name: bins.total for name, bins in found.items()}
    language = dict(zip(found["language"].names, found["language"].counts, strict=True))
    assert (300.0, 100.0) == (language["en"], language["de"])  # a gateway looks at some texts only
    assert "the model's label equals that of the data set (A, B) for 50.0% of 400 texts" in done.stderr
    assert "length: 400 values" in done.stdout


def test_whoever_asks_meanwhile_is_told(tmp_path: Path) -> None:
    """A message says that the reference contains requests of others."""
    with counting() as (gateway, url):
        answered = gateway.answered

        def busy(texts: list[str]) -> list[Any]:
            answered(["of another"])
            return answered(texts)

        gateway.answered = busy  # type: ignore[method-assign]
        done = capture(url, data(tmp_path), "--output", tmp_path / "r.json")
    assert "the reference also contains 25 requests of other callers" in done.stderr


def test_answers_of_another_gateway_are_no_reference(tmp_path: Path) -> None:
    """The gateway that counts must be the one that answers."""
    with counting() as (gateway, url):
        gateway.answered(["one of before"])
        gateway.answered = lambda texts: [{} for _ in texts]  # type: ignore[method-assign]
        with pytest.raises(DeployError, match="has counted only 0 of 25 requests: another gateway answered the others"):
            capture(url, data(tmp_path), "--output", tmp_path / "r.json")
    assert not (tmp_path / "r.json").exists()


def test_a_refusal_is_told_with_its_rows_and_leaves_the_former_reference(tmp_path: Path) -> None:
    """Answers 429 and 503 are retried."""
    former = tmp_path / "r.json"
    former.write_text("former")
    with counting() as (gateway, url):
        gateway.refusals = [(429, {"error": "full"}), (422, {"error": "too long"})]
        with pytest.raises(DeployError, match="e/1 answered 422 to line 2 to line 17: too long"):
            capture(url, data(tmp_path), "--output", former)
    assert "former" == former.read_text()
    with pytest.raises(DeployError, match="cannot be read"):
        capture("http://127.0.0.1:1", data(tmp_path), "--output", former)


def test_an_interruption_leaves_the_former_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other file is left."""
    former = tmp_path / "r.json"
    former.write_text("former")
    asked = drift_reference._answered

    def interrupted(gateway: str, url: str, some: Any) -> Any:
        if some[0].where != "line 2":
            raise KeyboardInterrupt
        return asked(gateway, url, some)

    monkeypatch.setattr(drift_reference, "_answered", interrupted)
    path = data(tmp_path)
    with counting() as (_, url), pytest.raises(click.Abort):
        capture(url, path, "--output", former)
    assert "former" == former.read_text()
    assert {former, path} == {*tmp_path.iterdir()}


def test_without_a_model_it_is_what_texts_look_like_and_their_labels(tmp_path: Path) -> None:
    """Of the variables that the gateway's own functions tell of a text; nothing is asked."""
    done = capture(
        "http://127.0.0.1:1", data(tmp_path), "--without-model", "--label-column", "stars", "--output",
        tmp_path / "r.json",
    )  # fmt: skip
    assert 0 == done.return_value
    found = drift.decode((tmp_path / "r.json").read_text())
    shares = {name: dict(zip(bins.names, bins.counts, strict=True)) for name, bins in found.items()}
    assert {"en": 300.0, "de": 100.0} == {name: n for name, n in shares["language"].items() if n}
    assert {"A": 200.0, "B": 200.0} == {name: n for name, n in shares["predicted_label"].items() if n}
    assert "length" not in found


@pytest.mark.parametrize("more", [(), ("--without-model",)], ids=["through a gateway", "without a model"])
def test_the_frequent_words_of_a_data_set_are_in_its_reference(tmp_path: Path, more: tuple[str, ...]) -> None:
    """All texts of the data set count, in any order, even if a gateway has examined fewer."""
    texts = [f"{'good' if n < 1500 else 'bad'} film number{'abcdefgh'[n % 8]}" for n in range(3000)]
    path = data(tmp_path, [Text("", text, "A") for text in texts])
    with counting() as (_, url):
        done = capture(url, path, "--output", tmp_path / "r.json", *more)
    assert "11 words of 1000 texts" in done.stdout
    found = drift.decode((tmp_path / "r.json").read_text())
    assert found.words is not None
    assert ("film", 1000) == (found.words.usual[0], found.words.texts)
    assert {"good", "bad"} < {*found.words.usual}
    unusual = dict(zip(found["unusual_word_ratio"].names, found["unusual_word_ratio"].counts, strict=True))
    assert 2000 == found["unusual_word_ratio"].total == unusual["0"]


def test_a_small_data_set_says_that_it_has_no_words(tmp_path: Path) -> None:
    """With few texts, every word would count as new."""
    done = capture("http://127.0.0.1:1", data(tmp_path), "--without-model", "--output", tmp_path / "r.json")
    assert "the reference has no words: they need 2,000 texts, and there are only 400" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--without-model"], "--without-model needs --from"),
        (["--from", __file__, "--duration", "1s"], "--from cannot be used with --prometheus or --duration"),
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments: list[str], says: str) -> None:
    """They are refused before anything is read."""
    with pytest.raises(click.UsageError, match=says):
        run("capture", "--endpoint", "e", *arguments)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ((), "the model's label equals that of the data set (1, 5) for 0.0% of 400 texts"),
        (("--without-model",), "predicted_label: 400 values in 4 bins"),
    ],
    ids=["through a gateway", "without a model"],
)  # fmt: skip
def test_labels_of_other_names_are_told(tmp_path: Path, more: tuple[str, ...], says: str) -> None:
    """With such a reference, every answer would be a new label."""
    path = data(tmp_path, [row._replace(label="51"[n % 2]) for n, row in enumerate(ROWS)])
    with counting() as (_, url):
        done = capture(url, path, "--label-column", "stars", "--output", tmp_path / "r.json", *more)
    assert says in done.stderr + done.stdout


def test_too_few_texts_are_no_reference(tmp_path: Path) -> None:
    """Rows without a text do not count, and the first of them is named."""
    rows = [Text("", "", "A"), *ROWS[:50]]
    with pytest.raises(DeployError, match=r"train\.csv has 50 texts; 100 are needed"):
        capture("http://127.0.0.1:1", data(tmp_path, rows))


def test_of_many_texts_some_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a large set does not take hours."""
    monkeypatch.setattr("deploy.cli.commands.drift._MOST", 120)
    with counting() as (gateway, url):
        capture(url, data(tmp_path), "--output", tmp_path / "r.json")
    assert 120 == sum(map(len, gateway.asked))


def test_no_more_is_asked_than_the_rate_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch begins when the texts before it are due."""
    now, waits = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(drift_reference.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(drift_reference.time, "sleep", sleep)
    monkeypatch.setattr(drift_reference, "_answered", lambda *_: {"results": []})
    assert (3, 0, 0) == drift_reference.send("", "e", ROWS[:40], Terminal(io.StringIO()), rate=16)
    assert [1.0, 1.0] == waits
