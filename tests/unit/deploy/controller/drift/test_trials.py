"""Trials of drift from text to verdict: workers count what was answered, the controller judges what it reads.

Texts are drawn without repeats from a small language of words with a long tail. A reference is captured once, as `drift
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
    """One gateway of a classifier, and a controller; it has captured its reference from 5,000 texts."""

    def __init__(self) -> None:
        self.now, self.good = 1_000_000.0, 0.5
        random = np.random.default_rng(11)
        self.words = np.array(
            ["".join(random.choice([*"abcdefghijklmnopqrstuvwxyz"], 2 + n % 7)) for n in range(3_000)]
        )
        self.often = np.cumsum(1 / (np.arange(len(self.words)) + 3))
        self.found: dict[str, float] = {}
        self.serve(Reference(), 11)
        for _ in range(10):
            self.answer(500)
        words, _ = self.observer.watch.learned("e/1")
        self.reference = Reference(of_counts(parse(self.page()), "e", "1"), words)

    def serve(self, reference: Reference, seed: int) -> None:
        """Begin anew with this reference."""
        self.random, self.good = np.random.default_rng(seed), 0.5
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

    @property
    def alarms(self) -> bool:
        return sum(self.found.values()) >= drift.ALARM_DAYS * max(len(self.found), 1)

    def answer(self, requests: int = 60, change: Change = lambda text, _: text) -> None:
        """Answer texts within a minute, and let the controller look."""
        for _ in range(requests):
            number = int(np.clip(self.random.normal(18, 5), 6, 40))
            drawn = self.words[np.searchsorted(self.often, self.random.random(number) * self.often[-1])].tolist()
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
        self.now += 60
        self.judging({})


def german(text: str, random: np.random.Generator) -> str:
    """A tenth of the texts is German."""
    return " ".join(random.choice(GERMAN, 12).tolist()) if random.random() < 0.1 else text


def nonsense(text: str, random: np.random.Generator) -> str:
    """A twentieth of the words is nonsense."""
    return " ".join(f"zz{word}qx" if random.random() < 0.05 else word for word in text.split(" "))


def longer(text: str, _: np.random.Generator) -> str:
    """Texts are 1.3 times as long."""
    return f"{text} {text[: int(0.3 * len(text))]}"


@pytest.fixture(scope="module")
def trial() -> Trial:
    """See ``Trial``."""
    return Trial()


def test_equal_texts_do_not_alarm(trial: Trial) -> None:
    """For half an hour; the built-in variables of a classifier are judged."""
    trial.serve(trial.reference, 12)
    for _ in range(30):
        trial.answer()
        assert not trial.alarms, trial.found
    judged = {"token_length", "language", "letter_case", "unusual_word_ratio", "predicted_label", "top_score"}
    assert judged <= trial.found.keys()


@pytest.mark.parametrize(
    ("change", "good", "variable"),
    [
        pytest.param(german, 0.5, "language", id="10 % German"),
        pytest.param(nonsense, 0.5, "unusual_word_ratio", id="5 % nonsense words"),
        pytest.param(longer, 0.5, "token_length", id="1.3 times longer"),
        pytest.param(lambda text, _: text.upper(), 0.5, "letter_case", id="upper case"),
        pytest.param(lambda text, _: text, 0.7, "predicted_label", id="a label that shifts from half to seven in ten"),
    ],
)
def test_each_change_is_found_within_minutes_and_named(
    trial: Trial, change: Change, good: float, variable: str
) -> None:
    """At sixty texts a minute."""
    trial.serve(trial.reference, 13)
    for _ in range(2):
        trial.answer()
    trial.good, minutes = good, 0
    while not trial.alarms:
        trial.answer(60, change)
        minutes += 1
        assert minutes < 25, trial.found
    assert trial.found[variable] == max(trial.found.values()), trial.found
