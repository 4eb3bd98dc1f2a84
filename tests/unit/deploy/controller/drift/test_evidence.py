"""The alarm budget: stationary traffic stays within it, and changes are found nearly as soon as possible."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from deploy.controller.drift import evidence
from deploy.controller.drift.evidence import Judged, Variable
from gateway.metrics import drift
from gateway.metrics.drift import Floats

LABEL = np.array([0.5, 0.5, 0.0, 0.0])
UNKNOWN = np.array([0.9, 0.04, 0.03, 0.02, 0.01, 0.0])
LENGTH = np.array([*[0.1] * 10, 0.0])
KINDS = {"label": (LABEL, False), "unknown": (UNKNOWN, True), "length": (LENGTH, True)}
SIZE = 5_000
MINUTE = 60.0


def against(*counts: float, ordered: bool = False, begun: Judged | None = None, alarm_days: float = 30.0) -> Variable:
    """A variable with a reference of these counts; the last one is of missing values."""
    names = [f"{place}" if ordered else f"label {place}" for place in range(len(counts) - 2)]
    bins = dict(zip((*names, drift.ABOVE if ordered else drift.OTHER, drift.MISSING), counts, strict=True))
    return Variable(bins, alarm_days=alarm_days, begun=begun)


def step(variable: Variable, counts: Iterable[float], now: float) -> Judged:
    """Let these values come until ``now``."""
    variable.update(dict(zip(variable.reference, map(float, counts), strict=True)), now)
    return variable.last


class Endpoint:
    """Variables of one endpoint, each with a sampled reference."""

    def __init__(self, rng: np.random.Generator, *, size: int = SIZE, alarm_days: float = drift.ALARM_DAYS) -> None:
        self.rng, self.alarm_days, self.now = rng, alarm_days, 0.0
        self.variables = {
            name: against(*rng.multinomial(size, share).tolist(), ordered=ordered, alarm_days=alarm_days)
            for name, (share, ordered) in KINDS.items()
        }

    def step(self, texts: int, **changed: Floats) -> float:
        """Let some texts come within a minute; return the endpoint's evidence."""
        self.now += MINUTE
        found = [
            step(variable, self.rng.multinomial(texts, changed.get(name, KINDS[name][0])), self.now)
            for name, variable in self.variables.items()
        ]
        return sum(judged.days for judged in found) / len(found)


@pytest.mark.parametrize(("rate", "size"), [(10, 5_000), (300, 5_000), (10_000, 1_000)])
def test_stationary_traffic_spends_no_more_than_the_budget(rate: int, size: int) -> None:
    """Four endpoints at three rates: no more false alarms than a budget of two hours allows."""
    rng, alarm_days, steps = np.random.default_rng(3), 2 / 24, 400
    endpoints = [Endpoint(rng, size=size, alarm_days=alarm_days) for _ in range(4)]
    alarms, was_on = 0, [False] * len(endpoints)
    for _ in range(steps):
        is_on = [endpoint.step(rate) >= alarm_days for endpoint in endpoints]
        alarms += sum(now and not before for now, before in zip(is_on, was_on, strict=True))
        was_on = is_on
    assert alarms <= len(endpoints) * steps * MINUTE / evidence.DAY_S / alarm_days


def test_an_alarm_ends_when_traffic_is_normal_again() -> None:
    """However long it lasted, because a bet's money is limited."""
    endpoint = Endpoint(np.random.default_rng(2))
    for _ in range(500):
        endpoint.step(100, label=np.array([0.9, 0.1, 0.0, 0.0]))
    assert endpoint.step(100, label=np.array([0.9, 0.1, 0.0, 0.0])) >= endpoint.alarm_days
    for _ in range(60):
        found = endpoint.step(100)
    assert found < endpoint.alarm_days


@pytest.mark.parametrize(
    ("reference", "counts", "every_s", "times"),
    [
        pytest.param((2_500, 2_500), (1, 0), 30 * evidence.DAY_S, 5, id="a month without texts, then normal traffic"),
        pytest.param((440, 560), (5_000, 5_000), MINUTE, 100, id="a reference off by chance, however many texts come"),
    ],
)
def test_what_is_no_evidence(reference: tuple[int, int], counts: tuple[int, int], every_s: float, times: int) -> None:
    """Nor does a reference get bets of which twenty values say nothing that chance could not explain."""
    variable = against(*reference, 0, 0)
    for look in range(1, times + 1):
        assert step(variable, (*counts, 0, 0), look * every_s).days < 30.0
    assert not against(10, 10, 0, 0).is_judged


@pytest.mark.parametrize(("counts", "is_found"), [((90, 10, 0, 0), True), ((50, 50, 0, 0), False)])
def test_evidence_continues_after_a_restart_and_chance_does_not_make_more_of_it(
    counts: tuple[int, ...], is_found: bool
) -> None:
    """What was found is divided among all bets: the right one soon has it again, without a change it is lost."""
    variable = against(2_500, 2_500, 0, 0, begun=Judged(40.0, 0.1, 7.0))
    for minute in range(1, 6):
        found = step(variable, counts, minute * MINUTE)
    assert is_found == (found.days >= 30.0)
    assert not is_found or found.since == 7.0


def test_what_the_reference_never_had_is_bet_upon_by_what_it_becomes() -> None:
    """The best bet gains most of what any test could, if one text in fifty or in five has the new value."""
    p = drift.shares(np.array([20_000.0, 0.0, 0.0]))
    expected = evidence.bets(p, 20_000.0, ordered=False)
    for share in (0.02, 0.05, 0.2):
        q = np.array([1 - share, share - 1e-6, 1e-6])
        assert float((np.log(expected / p) @ q).max()) > 0.8 * float(np.sum(q * np.log(q / p)))
