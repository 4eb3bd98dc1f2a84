"""Trials of drift from text to verdict: workers count what was answered, the controller judges what it reads.

Texts are drawn without repeats from a small language of words with a long tail. A reference is captured as `drift
capture` does; then half an hour of equal traffic must not alarm, and each change must.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest

from deploy.cli.commands.drift import of_counts
from deploy.controller.counters import parse
from deploy.controller.drift.judging import Families, Judging
from deploy.controller.gateways import Gateways
from gateway.metrics import catalog, drift
from gateway.metrics.drift import Reference
from gateway.metrics.observer import Observer
from gateway.metrics.watch import Served
from gateway.trace import Trace
from preprocessing.types import Encoded, ParsedRequest, Prepared
from tests import expositions
from tests.fakes import FakeRegistry

FILLERS = re.findall(r"\w+", "the of and to in is that it was for on are with as be at this have from or had by not")
GERMAN = re.findall(r"\w+", "der die das und ist nicht ein eine zu den von mit sich auf für im dem des ich sie es auch")
Change = Callable[[str, np.random.Generator], str]


class Trial:
    """One gateway of a classifier, and a controller."""

    def __init__(self, seed: int) -> None:
        self.random, self.now = np.random.default_rng(seed), 1_000_000.0
        letters = [chr(97 + n) for n in range(26)]
        self.words = ["".join(self.random.choice(letters, 2 + n % 7)) for n in range(3_000)]
        shares = 1 / (np.arange(len(self.words)) + 3)
        self.shares = shares / shares.sum()
        self.good = 0.5
        self.evidence = 0.0
        self.found: dict[str, float] = {}
        self.serve(Reference())

    def serve(self, reference: Reference) -> None:
        """Begin anew with this reference."""
        clock = itertools.count(step=100).__next__  # so much time goes by that every text is looked at
        self.observer = Observer(chance=lambda: 0.5, clock=clock)
        served = Served("e", "1", True, ("GOOD", "BAD"), reference)
        self.observer.watch.configure({"e/1": served}, {}, 1.0)
        self.judging = Judging(
            FakeRegistry(), Gateways(
                lambda: ["http://g"], fetch=lambda _: self.page(), clock=itertools.count().__next__
            ), self.show,
            clock=lambda: self.now, wall=lambda: self.now, begin=lambda look: look(),
        )  # fmt: skip
        self.judging({})

    def page(self) -> str:
        return expositions.render(self.observer.snapshot()).decode()

    def show(self, families: Families) -> None:
        self.found = {key[2]: days for key, days in families[catalog.DRIFT_EVIDENCE].items()}
        self.evidence = sum(self.found.values()) / max(len(self.found), 1)

    def answer(self, requests: int, change: Change = lambda text, _: text) -> None:
        """Answer texts within a minute, and let the controller look."""
        for _ in range(requests):
            number = int(np.clip(self.random.normal(18, 5), 6, 40))
            drawn = self.random.choice(self.words, number, p=self.shares).tolist()
            drawn[::3] = self.random.choice(FILLERS, len(drawn[::3])).tolist()
            text = change(f"{' '.join(drawn).capitalize()}.", self.random)
            trace = Trace("id")
            trace.endpoint, trace.version, trace.url, trace.outcome = "e", "1", "e/1", "ok"
            score = float(self.random.beta(6, 1.5))
            label = "GOOD" if self.random.random() < self.good else "BAD"
            trace.answer = {"label": label, "score": score, "scores": {label: score}}
            trace.prepared = Prepared([], ParsedRequest([text], is_batch=False))
            tokens = 2 + len(text.replace("<", " < ").replace(">", " > ").split())
            trace.encoded = [Encoded(np.zeros(tokens, dtype=np.int64), None, 0, False)]
            self.observer.finished(trace)
            if requests and self.random.random() < 0.1:
                self.observer.settle()
        self.now += 60
        self.judging({})

    def capture(self) -> None:
        """Make the reference of what was counted so far, and serve it."""
        for _ in range(10):
            self.answer(500)
        words, _ = self.observer.watch.learned("e/1")
        found = of_counts(parse(self.page()), "e", "1")
        self.serve(Reference(found, words))

    def minutes_until_alarm(self, most: int, change: Change) -> int:
        """Answer sixty texts a minute until the endpoint alarms."""
        for minute in range(most):
            if self.evidence >= drift.ALARM_DAYS:
                return minute
            self.answer(60, change)
        return most


def german(text: str, random: np.random.Generator) -> str:
    """A tenth of the texts is German."""
    return " ".join(random.choice(GERMAN, 12).tolist()) if random.random() < 0.1 else text


def nonsense(text: str, random: np.random.Generator) -> str:
    """A twentieth of the words is nonsense."""
    return " ".join(f"zz{word}qx" if random.random() < 0.05 else word for word in text.split(" "))


def longer(text: str, _: np.random.Generator) -> str:
    """Texts are 1.3 times as long."""
    return f"{text} {text[: int(0.3 * len(text))]}"


CHANGES: dict[str, tuple[Change, str]] = {
    "10 % German": (german, "language"),
    "5 % nonsense words": (nonsense, "unusual_word_ratio"),
    "1.3 times longer": (longer, "token_length"),
    "upper case": (lambda text, _: text.upper(), "letter_case"),
    "HTML": (lambda text, _: f"<p><b>{text}</b></p>", "token_length"),
}


@pytest.fixture(scope="module")
def trial() -> Trial:
    """One that has answered equal texts for half an hour."""
    made = Trial(11)
    made.capture()
    for _ in range(30):
        made.answer(60)
        assert made.evidence < drift.ALARM_DAYS, made.found
    return made


def test_equal_texts_do_not_alarm(trial: Trial) -> None:
    """The built-in variables of a classifier are judged."""
    judged = {"token_length", "language", "letter_case", "unusual_word_ratio", "predicted_label", "top_score"}
    assert judged <= trial.found.keys()


@pytest.mark.parametrize(
    "name", ["10 % German", *(pytest.param(name, marks=pytest.mark.long) for name in list(CHANGES)[1:])]
)
def test_each_change_is_found_within_minutes_and_named(name: str) -> None:
    """At sixty texts a minute."""
    change, variable = CHANGES[name]
    trial = Trial(12)
    trial.capture()
    trial.answer(60)
    trial.answer(60)
    assert trial.minutes_until_alarm(25, change) < 25, trial.found
    assert trial.found[variable] == max(trial.found.values()), trial.found


def test_labels_that_shift_from_half_to_seven_in_ten_are_found(trial: Trial) -> None:
    """The texts stay as they were."""
    trial.good = 0.7
    assert trial.minutes_until_alarm(25, lambda text, _: text) < 25, trial.found
    assert trial.found["predicted_label"] == max(trial.found.values()), trial.found
