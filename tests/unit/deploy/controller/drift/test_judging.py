"""The controller's judging of all gateways: evidence, versions and labels, in metrics and records."""

from __future__ import annotations

import itertools
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from deploy.controller.counters import Reading, parse
from deploy.controller.drift.accuracy import Labels, counted
from deploy.controller.drift.judging import EVERY_S, Families, Judging
from deploy.controller.drift.references import references
from deploy.controller.gateways import Gateways
from gateway.control.reports import Reports
from gateway.metrics import catalog, drift
from gateway.registry import Record
from tests.fakes import FakeRegistry

BINS = drift.reference_of({"cat": 2_500, "dog": 2_500})
ANIMAL = ("e", "1", "animal")
OF = 'endpoint="e",version="1",variable="animal"'
COUNTED = f'gateway_variable_enum_total{{{{{OF},value="{{}}"}}}}'


class World:
    """Two gateways, a registry, and a controller whose time passes with its looks."""

    def __init__(self, bins: drift.Bins = BINS) -> None:
        self.registry, self.now = FakeRegistry(), 1_000_000.0
        self.counters: dict[str, dict[str, float]] = {name: defaultdict(float) for name in ("http://a", "http://b")}
        self.away: set[str] = set()
        self.shown: dict[catalog.Metric, Any] = {}
        self.refer(bins)
        self.judging = self.another()

    def another(self) -> Judging:
        """The judging of a controller that has just begun to lead."""
        gateways = Gateways(lambda: list(self.counters), fetch=self.fetch, clock=itertools.count().__next__)

        def show(families: Families) -> None:
            self.shown = dict(families)

        return Judging(
            self.registry, gateways, show, clock=lambda: self.now, wall=lambda: self.now, begin=lambda look: look()
        )  # fmt: skip

    def refer(self, bins: drift.Bins, *gateways: str) -> None:
        """Set the reference of the variable; the former one is no longer in use."""
        for counters in [self.counters[name] for name in gateways or self.counters]:
            for series in [one for one in counters if one.startswith("gateway_drift")]:
                del counters[series]
            for name, count in bins.items():
                counters[f'gateway_drift_reference_observations{{{OF},bin="{name}"}}'] = count
            for name in ("cat", "dog", "eel"):
                counters[COUNTED.format(name)] += 0

    def fetch(self, url: str) -> str | None:
        gateway, _, path = url.partition("/metrics")
        assert "" == path
        counters = self.counters[gateway]
        return None if gateway in self.away else "".join(f"{series} {value}\n" for series, value in counters.items())

    def see(self, cats: int, dogs: int, gateway: str = "http://a") -> None:
        """Count values."""
        for name, times in (("cat", cats), ("dog", dogs)):
            self.counters[gateway][COUNTED.format(name)] += times

    def label(self, gateway: str, predicted: str, label: str, times: int) -> None:
        """Count labels."""
        pair = f'predicted="{predicted}",label="{label}"'
        self.counters[gateway][f'gateway_feedback_total{{endpoint="e",version="1",{pair}}}'] += times

    def look(self, seconds: float = 60.0, *values: int) -> float:
        """Let time pass, and values come; return the evidence that is shown."""
        self.now += seconds
        if values:
            self.see(*values)
        self.judging({})
        return self.days

    @property
    def days(self) -> float:
        """The evidence that is shown."""
        return sum(days for key, days in self.shown[catalog.DRIFT_EVIDENCE].items() if key[:3] == ANIMAL)

    @property
    def record(self) -> Any:
        """What gateways read."""
        return self.registry.reports.read().get("judged", {}).get("e")


@pytest.fixture
def world() -> World:
    """See ``World``."""
    return World()


async def test_a_change_becomes_evidence_and_stationary_traffic_does_not(world: World) -> None:
    """Of both gateways together, with the state that the page and `/v1/status` show; not when the controller has been
    away for hours.
    """
    world.look()
    world.label("http://a", "A", "A", 3)
    for _ in range(100):
        world.see(5, 5, "http://b")
        assert world.look(60.0, 5, 5) < 1
    assert "steady" == world.record["variables"][0]["state"]
    began = world.now
    for _ in range(60):
        world.see(9, 1, "http://b")
        days = world.look(60.0, 9, 1)
    assert days > drift.ALARM_DAYS
    assert {(*ANIMAL, "drift")} == world.shown[catalog.DRIFT_EVIDENCE].keys()
    with ThreadPoolExecutor(1) as pool:
        found = await Reports(world.registry.reports, pool, wall=lambda: world.now).judged()
        old = await Reports(world.registry.reports, pool, wall=lambda: world.now + 86_400).judged()
    (told,) = found["drift"]
    assert (*ANIMAL, "drift", 30.0) == tuple(
        told[name] for name in ("endpoint", "version", "variable", "state", "alarm_days")
    )
    assert (["cat", "dog", "other", "missing"], 0.4999) == (told["bins"], told["reference"][0])
    assert 0.6 * told["n"] < told["counts"][0] < told["n"]
    assert abs(told["since"] - began) < 1_200
    assert (1.0, 1.0, 3) == tuple(found["accuracy"][0][name] for name in ("value", "high", "labels"))
    assert not any(old.values())


def test_only_what_is_counted_between_two_looks_counts(world: World) -> None:
    """Counts from before the first look are of unknown age. A gateway that restarts counts from its next look on; one
    that cannot be read delays only its own counts.
    """
    world.see(9_000, 1_000)
    assert 0 == world.look()
    funded = world.look(60.0, 5, 5)
    world.away.add("http://a")
    assert funded == world.look(60.0, 900, 100)
    world.away.clear()
    assert world.look() > drift.ALARM_DAYS
    again = World()
    again.look(60.0, 900, 900)
    funded = again.look(60.0, 900, 900)
    for name in BINS:
        again.counters["http://a"][COUNTED.format(name)] = 0
    assert funded == again.look(60.0, 90, 10)
    assert funded != again.look(60.0, 90, 10)


def test_a_new_reference_starts_anew_when_all_gateways_have_it_and_a_removed_one_is_dropped(world: World) -> None:
    """Evidence against the former one says nothing about it. Bins of both are never taken together."""
    world.look()
    for _ in range(60):
        days = world.look(60.0, 90, 10)
    assert days > drift.ALARM_DAYS
    world.refer(drift.reference_of({"cat": 4_500, "dog": 500}), "http://b")
    world.look(60.0, 90, 10)
    assert 1 == len(world.record["variables"])
    world.refer(drift.reference_of({"cat": 4_500, "dog": 500}))
    for _ in range(60):
        days = world.look(60.0, 90, 10)
    assert days < 1
    assert 1 == len(world.record["variables"])


def test_a_bin_in_which_a_reference_has_no_values_is_a_bin() -> None:
    """What falls into it is the strongest evidence."""
    counts = {"5": 9.0, "+Inf": 0.0, "missing": 0.0}
    page = "".join(f'gateway_drift_reference_observations{{{OF},bin="{name}"}} {n}\n' for name, n in counts.items())
    assert {ANIMAL: counts} == references(Reading({"http://a": parse(page)}))


def test_the_next_controller_continues_from_the_records(world: World) -> None:
    """Evidence and labels; both are written within the hour, and at once if a verdict changes."""
    world.look()
    world.label("http://a", "A", "A", 9)
    world.label("http://b", "A", "B", 1)
    for _ in range(60):
        days = world.look(60.0, 90, 10)
    assert days > drift.ALARM_DAYS
    world.judging = world.another()
    world.label("http://a", "A", "A", 100)  # while no controller leads: nobody knows when
    world.look()
    assert drift.ALARM_DAYS < world.days
    assert 0.9 == world.shown[catalog.ACCURACY]["e", "1", "value"]
    world.label("http://b", "B", "B", 10)
    world.look(60.0, 90, 10)
    assert 0.95 == world.shown[catalog.ACCURACY]["e", "1", "value"]
    world.look(3_600.0)
    (told,) = world.record["accuracy"]
    assert (19, 20, 0.95) == (told["right"], told["labels"], told["value"])


def test_records_are_written_when_something_is_new_and_looks_outlive_a_registry_that_is_away(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Not at each look: what is read by all gateways changes rarely. Whoever leads calls it each second."""
    world.look()
    before = world.registry.reports.writes
    for _ in range(60):
        world.look(60.0, 5, 5)
    assert 13 >= world.registry.reports.writes - before >= 12  # it may become clear that enough came
    world.label("http://a", "A", "A", 1)
    world.registry.reports.is_up = False
    world.look(EVERY_S - 1)
    assert not caplog.records
    world.look(60.0)
    assert 1 == len(caplog.records)
    world.registry.reports.is_up = True
    world.look(EVERY_S)
    assert 1 == len(world.record["accuracy"])
    world.counters = {"http://c": {}}
    world.look()
    assert not world.record["variables"]


@pytest.mark.parametrize("value", [{"variables": [{}], "accuracy": []}, {"variables": [], "accuracy": [3]}])
def test_an_unreadable_record_is_left_out(world: World, value: Any) -> None:
    """Somebody changed it in ClearML."""
    world.registry.reports.write([Record("judged", "e", value)])
    assert 0 == world.look()


def test_a_canary_is_compared_with_the_stable_version_beside_it(world: World) -> None:
    """What differs is told with a sentence for the page and the rollout's verdict."""
    for times in (1, 1_000):
        for version, route, outcome in (("1", "stable", "ok"), ("2", "canary", "model_failed")):
            of = f'endpoint="e",version="{version}",route="{route}",outcome="{outcome}"'
            world.counters["http://b"][f"gateway_requests_total{{{of}}}"] += times
        world.look()
    (told,) = world.record["compared"]
    assert ("2", "1", {"answers"}) == (told["version"], told["beside"], told["sentences"].keys())


def test_the_shares_of_about_the_last_hour_are_shown_beside_the_references(world: World) -> None:
    """Over all gateways; a category that the reference does not have has a bin of its own."""
    world.look()
    assert {} == world.shown[catalog.DRIFT_SHARE]
    world.look(60.0, 5_000, 5_000)
    assert "eel" not in {key[3] for key in world.shown[catalog.DRIFT_SHARE]}
    world.look(20 * 3_600.0)
    assert {} == world.shown[catalog.DRIFT_SHARE]
    world.look(60.0, 80, 0)
    world.counters["http://b"][COUNTED.format("eel")] += 20
    world.look()
    shown = world.shown[catalog.DRIFT_SHARE]
    now = {key[3]: share for key, share in shown.items() if key[4] == "now"}
    assert {"cat": 0.8, "dog": 0.0, "eel": 0.2, "other": 0.0, "missing": 0.0} == pytest.approx(now, abs=0.01)
    assert {0.0, 0.5} == {round(share, 2) for key, share in shown.items() if key[4] == "reference"}


def test_a_label_is_right_if_it_was_predicted() -> None:
    """Also of values without counts of their own: `another` differs from `other`."""
    pairs = {("A", "A"): 7.0, ("A", "B"): 1.0, ("other", "other"): 1.0, ("other", "another"): 1.0, ("B", "A"): 0.0}
    numbers = {("gateway_feedback_total", "e", "1", *pair): n for pair, n in pairs.items()}
    found = counted(numbers)
    assert {("e", "1"): Labels(8.0, 10.0)} == found
    assert {"value": 0.8, "low": 0.490162, "high": 0.943318, "labels": 10} == found["e", "1"].described()
    assert (0.438503, 1.0) == tuple(Labels(3, 3).described()[name] for name in ("low", "high"))
    assert (0.0, 0.561497) == tuple(Labels(0, 3).described()[name] for name in ("low", "high"))
