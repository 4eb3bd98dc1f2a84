"""``triton-gateway drift``: references made of counts, and what the controller has found."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from deploy.cli.commands.drift import command
from deploy.controller.counters import parse
from deploy.controller.drift import references
from deploy.tools.errors import DeployError
from gateway.metrics import drift
from gateway.metrics.observer import Observer
from gateway.metrics.watch import Served
from gateway.spec import MetricSpec, MetricVariable
from gateway.trace import Trace
from preprocessing.types import ParsedRequest, Prepared
from tests import expositions
from tests.sites import site


class Gateway:
    """A gateway's /metrics over HTTP, with real counters behind it."""

    def __init__(self) -> None:
        # So much time goes by that every text is looked at.
        clock = itertools.count(step=100).__next__
        self.observer = Observer(chance=lambda: 0.0, clock=clock)
        self.page = b""
        self.drift: list[dict[str, Any]] = []
        """What its status says."""

    def watch(self) -> None:
        declared = MetricSpec(
            "e/1", None,
            (MetricVariable("x", "scalar", tuple(np.linspace(-3, 3, 61))), MetricVariable("a", "enum", ("cat", "dog"))),
        )  # fmt: skip
        self.observer.watch.configure({"e/1": Served("e", "1")}, {"e/1": declared}, 1.0)

    def see(self, values: Any, animals: Any) -> None:
        for x, a in zip(values, animals, strict=True):
            trace = Trace("id")
            trace.url, trace.body = "e/1", {"x": float(x), "a": str(a)}
            self.observer.started()
            self.observer.finished(trace)
        self.page = expositions.render(self.observer.snapshot())


@pytest.fixture
def served() -> Iterator[tuple[Gateway, str]]:
    """A gateway and its address."""
    gateway = Gateway()

    def answer(path: str) -> tuple[int, bytes]:
        if path == "/v1/status":
            return 200, json.dumps({"drift": gateway.drift}).encode()
        return (200 if path == "/metrics" else 404), gateway.page

    with site(lambda asked: answer(asked.path)) as address:
        yield gateway, address


def run(*arguments: object) -> Any:
    """Call the command; errors of ours come through."""
    return CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False, standalone_mode=False)


def test_a_reference_is_what_was_counted(served: tuple[Gateway, str], tmp_path: Path) -> None:
    """In about ten of the variable's own buckets; a listed value that never came is part of `other`."""
    gateway, url = served
    rng = np.random.default_rng(1)
    gateway.watch()
    gateway.see(rng.normal(size=3000), ["cat"] * 3000)
    path = tmp_path / "reference.json"
    done = run("capture", "--url", url, "--endpoint", "e/1", "--output", path)
    assert 0 == done.return_value
    references = drift.decode(path.read_text()).bins
    assert {"cat": 3000, "other": 0, "missing": 0} == references["a"]
    assert 3000 == sum(references["x"].values())
    assert 10 <= len(references["x"]) <= 12
    assert references["x"].keys() <= {*map(drift.bin_of, np.linspace(-3, 3, 61)), "+Inf", "missing"}
    assert f"a: 3000 values in 3 bins\nx: 3000 values in {len(references['x'])} bins\n" in done.output


def test_a_version_without_variables_is_told_apart_from_one_with_few(served: tuple[Gateway, str]) -> None:
    """More traffic would not help it; and a url is repeated as it was typed."""
    gateway, url = served
    gateway.page = b'gateway_requests_total{endpoint="plain",version="2"} 7\n'
    with pytest.raises(DeployError) as caught:
        run("capture", "--url", url, "--endpoint", "plain/2")
    assert caught.value.message == "no variable of plain/2 has been counted"
    assert "clearml-serving metrics add" in caught.value.hint
    gateway.watch()
    gateway.see([1.0] * 10, ["cat"] * 10)
    with pytest.raises(DeployError) as caught:
        run("capture", "--url", url, "--endpoint", "e/1")
    assert caught.value.message == "no variable of e/1 has more than 10 values; 1000 are needed"
    with pytest.raises(DeployError) as caught:
        run("capture", "--url", url, "--endpoint", "e/7")
    assert caught.value.hint == "counted: e/1; name one with --endpoint"


def test_a_captured_reference_stays_in_its_folder(served: tuple[Gateway, str], tmp_path: Path) -> None:
    """Whatever a gateway calls its endpoint."""
    gateway, url = served
    gateway.watch()
    gateway.see(np.zeros(600), ["cat"] * 600)
    gateway.page = gateway.page.replace(b'endpoint="e"', b'endpoint="../../../e"')
    environment = {"TRITON_GATEWAY_STATE_DIR": str(tmp_path / "deep" / "state")}
    arguments = ["capture", "--url", url, "--endpoint", "../../../e/1", "--least", "1"]
    done = CliRunner().invoke(command, arguments, env=environment, catch_exceptions=False, standalone_mode=False)
    assert 0 == done.return_value, done.output
    (written,) = tmp_path.rglob("*.json")
    assert written.is_relative_to(tmp_path / "deep" / "state" / "references")


@pytest.mark.parametrize(
    ("named", "says"),
    [("e", "e has several versions: e/1, e/2"), ("f", "nothing was counted for f"), ("e/3", "nothing was counted for")],
)
def test_what_cannot_be_captured_is_told_before_the_waiting(
    named: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes before the capture waits, not after ten minutes."""
    monkeypatch.setattr("deploy.cli.commands.drift.time.sleep", lambda _s: pytest.fail("it waits"))
    metric = 'gateway_requests_total{{endpoint="e",version="{}",route="direct",outcome="ok"}} 20\n'
    with site(lambda asked: (200, (metric.format(1) + metric.format(2)).encode())) as url:
        with pytest.raises(DeployError, match=says):
            run("capture", "--url", url, "--endpoint", named, "--duration", "10m")


def row(**more: Any) -> dict[str, Any]:
    """A variable as `/v1/status` has it."""
    return {
        "endpoint": "e", "version": "1", "variable": "a", "n": 200.0, "days": 1234.5, "visible": 0.051,
        "bins": ["cat", "dog", "eel", "owl", "other"], "counts": [20, 120, 40, 20, 0],
        "reference": [0.6, 0.3, 0.05, 0.05, 0], "state": "steady", **more,
    }  # fmt: skip


def test_report_shows_what_the_controller_has_found(served: tuple[Gateway, str]) -> None:
    """Of one endpoint if it is named; an endpoint without a reference is an error, not "no drift"."""
    gateway, url = served
    assert "no variable has a reference" in run("report", "--url", url).stderr
    gateway.drift = [row(), row(endpoint="f", version="", days=None, visible=None, n=0, state="not judged")]
    for named in ("e", "e/1", "/e/1/"):
        done = run("report", "--url", url, "--endpoint", named)
        assert 0 == done.return_value
        assert ["e", "1", "a", "200", "1,234.5", "5.1%", "cat", "-50.0%,", "dog", "+30.0%,", "eel", "+15.0%",
                "steady"] == done.stdout.splitlines()[-1].split()  # fmt: skip
    assert ["f", "-", "a", "0", "-", "-", "-", "not", "judged"] == run("report", "--url", url).stdout.split()[-9:]
    with pytest.raises(DeployError) as caught:
        run("report", "--url", url, "--endpoint", "other")
    assert "no variable of other has a reference" in caught.value.message
    assert "there are references for e/1, f" == caught.value.hint


def test_a_program_learns_of_drift_by_the_exit_code(served: tuple[Gateway, str]) -> None:
    """3, and the rows as the gateway has them."""
    gateway, url = served
    gateway.drift = [row(state="moved"), row(variable="x", state="drift")]
    done = run("report", "--url", url, "--json")
    assert (3, gateway.drift) == (done.return_value, json.loads(done.stdout))
    gateway.drift = gateway.drift[:1]
    assert 0 == run("report", "--url", url).return_value


class OfTexts(Gateway):
    """A gateway of a text endpoint."""

    def watch_texts(self, reference: drift.Reference) -> None:
        self.observer.watch.configure({"e/1": Served("e", "1", True, (), reference)}, {}, 1.0)

    def read(self, texts: list[str], vectors: Any) -> None:
        for number, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
            if number % 10 == 0:
                self.observer.settle()
            trace = Trace("id")
            trace.endpoint, trace.version, trace.url, trace.answer = "e", "1", "e/1", {"embedding": vector}
            trace.prepared = Prepared([], ParsedRequest([text], is_batch=False))
            self.observer.started()
            self.observer.finished(trace)
        self.see([], [])

    def moved(self, reference: drift.Reference, variable: str) -> bool:
        """Whether a twentieth of what was counted is in other bins than in a reference."""
        counts = references.variables(parse(self.page.decode()))["e", "1", variable]
        _, then, seen = drift.beside(reference.bins[variable], counts)
        return bool(sum(abs(seen / seen.sum() - then)) / 2 > 0.05)

    def answer(self, path: str) -> tuple[int, bytes]:
        if path == "/metrics":
            return 200, self.page
        if path == "/v1/endpoints/e/1/learned":
            words, mean = self.observer.watch.learned("e/1")
            return 200, json.dumps({"words": words, "mean": mean}).encode()
        return 404, b""


def spoken(random: np.random.Generator, number: int, nonsense: float = 0.0) -> list[str]:
    """Texts of Zipf-distributed words, of which a share is nonsense."""
    known = np.array([f"w{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)}" for n in range(3000)])
    shares = 1 / (np.arange(3000) + 3)
    drawn = random.choice(known, (number, 12), p=shares / shares.sum())
    odd = random.random(drawn.shape) < nonsense
    return [
        " ".join(f"zz{word}q" if is_odd else str(word) for word, is_odd in zip(text, odds, strict=True))
        for text, odds in zip(drawn, odd, strict=True)
    ]


def test_a_reference_keeps_the_words_and_the_mean_that_it_was_counted_with(tmp_path: Path) -> None:
    """Those of the first thousand, whenever it was captured; the next references have them, too."""
    gateway, random, path = OfTexts(), np.random.default_rng(3), tmp_path / "reference.json"
    with site(lambda asked: gateway.answer(asked.path)) as url:
        gateway.watch_texts(drift.Reference())
        gateway.read(spoken(random, 2500), random.normal(size=(2500, 8)) + 2 * np.eye(8)[0])
        captured = run("capture", "--url", url, "--endpoint", "e/1", "--output", path)
        assert re.search(r"\d+ usual words", captured.output)
        reference = drift.decode(path.read_text())
        assert (8, True) == (len(reference.mean), bool(reference.words))
        assert {"unusual_word_ratio", "language", "letter_case", "embedding_cosine"} == set(reference.bins)
        assert [1500] * 2 == [sum(reference.bins[name].values()) for name in ("unusual_word_ratio", "embedding_cosine")]
        gateway.watch_texts(reference)
        gateway.read(spoken(random, 1000, nonsense=0.05), random.normal(size=(1000, 8)) - np.eye(8)[0])
        assert gateway.moved(reference, "unusual_word_ratio")
        assert gateway.moved(reference, "embedding_cosine")
        assert not gateway.moved(reference, "language")
        assert 0 == run("capture", "--url", url, "--endpoint", "e/1", "--output", path).return_value
        again = drift.decode(path.read_text())
        assert (reference.words, reference.mean) == (again.words, again.mean)
