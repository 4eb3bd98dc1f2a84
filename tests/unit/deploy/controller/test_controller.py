"""One of several controllers leads, another takes over when it stops; and the gateways that it looks at."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from deploy.controller.auto_update import loaded
from deploy.controller.controller import Controller
from deploy.controller.counters import Reading, grown, parse
from deploy.controller.drift.references import variables
from deploy.controller.election import SETTLE_S, WRITE_S, Election
from deploy.controller.gateways import Gateways, addresses
from deploy.controller.wanted import Duty, Wanted, carry_out
from gateway.errors import RegistryUnavailable
from gateway.registry.reports import ModelReport, record
from gateway.spec import ServingTask
from tests.fakes import FakeRegistry


class World:
    """A serving Task, a clock, and candidates that look every second."""

    def __init__(self) -> None:
        self.registry = FakeRegistry()
        self.now = 1000.0
        self.one, self.two = self.candidate("one"), self.candidate("two")

    def candidate(self, name: str) -> Election:
        """Return a candidate with a clock of its own, as on another machine."""
        offset = 1e6 * len(name)
        return Election(self.registry.reports, name, clock=lambda: self.now + offset)

    def leading(self, seconds: float, *candidates: Election) -> list[list[bool]]:
        """Let these look every second; return who led at each look."""
        found = []
        for _ in range(int(seconds)):
            self.now += 1
            found.append([one.leads() for one in candidates])
        return found


@pytest.fixture
def world() -> World:
    """Nobody leads yet."""
    return World()


def test_of_two_that_start_together_one_leads_and_stays(world: World) -> None:
    """The last one that wrote its name, after it saw it for three seconds; never both."""
    looks = world.leading(60, world.one, world.two)
    assert all(sum(both) < 2 for both in looks)
    assert {1} == {sum(both) for both in looks[int(SETTLE_S) + 1 :]}
    assert 1 == len({tuple(both) for both in looks if sum(both)})


@pytest.mark.parametrize("stood_by", [0, 1, 4, 5])
def test_another_takes_over_when_the_leader_is_gone(world: World, stood_by: int) -> None:
    """Killed at any moment: no canary is unguarded for more than 25 s. Stopped: at once, the lead was given back."""
    world.leading(10, world.one)
    world.leading(stood_by, world.one, world.two)
    took = [both for (both,) in world.leading(40, world.two)].index(True) + 1
    assert took <= 25
    world.two.resign()
    assert [True] in world.leading(WRITE_S + SETTLE_S + 1, world.one)


def test_a_leader_keeps_the_lead_until_it_stands_still_and_learns_that_before_it_decides_again(world: World) -> None:
    """Whenever the other one looks. A suspended machine first looks at the key. Nobody leads while the registry is
    away, and the same one goes on when it answers again.
    """
    world.leading(10, world.one)
    world.registry.reports.is_up = False
    world.now += WRITE_S
    with pytest.raises(RegistryUnavailable):
        world.one.leads()
    world.registry.reports.is_up = True
    assert [True] in world.leading(WRITE_S + SETTLE_S, world.one)
    assert [[True, False]] * 60 == world.leading(60, world.one, world.two)
    world.leading(60, world.two)
    assert [[False]] * 5 == world.leading(5, world.one)
    assert [[True]] * 5 == world.leading(5, world.two)


def _controller(world: World, name: str, duty: Duty, **others: Duty) -> Controller:
    clock = lambda: world.now  # noqa: E731 - as short as that
    return Controller(
        world.registry, world.candidate(name), lambda: {"a duty": duty, **others}, poll_s=2.0, clock=clock, wall=clock
    )


def test_a_controller_works_only_while_it_leads_and_again_as_long_as_something_changes(world: World) -> None:
    """A duty that changed the Task is given the new one."""
    seen: list[tuple[float, str]] = []

    def duty(task: ServingTask) -> Wanted:
        seen.append((world.now, task.sections.get("x", "")))
        return Wanted(sections={} if seen[-1][1] else {"x": "1"})

    first, second = (_controller(world, name, duty) for name in ("a", "bb"))
    for _ in range(10):
        world.now += 1
        first.step()
        second.step()
    assert 1 == first.leads + second.leads
    assert [(seen[0][0], ""), (seen[0][0], "1")] == seen[:2]
    stop = threading.Event()
    stop.set()
    (first if first.leads else second).run(stop)
    assert not world.registry.reports.read()["leader"], "whoever ends gives the lead back"


def test_a_duty_that_fails_is_said_once_and_stops_no_other(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It is called again at every look."""
    called = []

    def fails(_: ServingTask) -> None:
        called.append("")
        raise RegistryUnavailable("it is away")

    controller = _controller(world, "a", fails, other=lambda _: Wanted(sections={"x": str(world.now)}))
    for _ in range(20):
        world.now += 1
        controller.step()
    assert len(called) > 2
    assert str(world.now) == world.registry.sections["x"]
    assert 1 == sum(one.levelname == "WARNING" for one in caplog.records)


def test_what_somebody_has_changed_since_is_not_written_over() -> None:
    """The duty decides anew, from what there is now."""
    registry = FakeRegistry()
    old = registry.task()
    registry.write({"x": "theirs"})
    wanted = Wanted(sections={"y": "ours"})
    assert carry_out(registry, old, lambda _: wanted)
    assert "y" not in registry.sections
    assert carry_out(registry, registry.task(), lambda _: wanted)
    assert ("theirs", "ours") == (registry.sections["x"], registry.sections["y"])


def test_what_some_triton_has_loaded_is_known_and_silent_reports_are_removed(world: World) -> None:
    """A Triton that was scaled away a day ago is forgotten."""
    models = [ModelReport("e/1", "m", "e_m", "loaded"), ModelReport("e/2", "n", "e_n", "pending", "no room")]
    old = [ModelReport("e/3", "o", "e_o", "loaded")]
    world.registry.reports.write([record("old", old, at=world.now - 90_000), record("pod", models, at=world.now)])
    controller = _controller(world, "a", lambda _: None)
    for _ in range(10):
        world.now += 1
        controller.step()
    assert {("e/1", "m")} == loaded(world.registry.reports.read())
    assert {"pod"} == set(world.registry.reports.read()["report"])


def test_a_name_stands_for_every_gateway_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters of one gateway must not be taken for those of another."""

    def answers(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        if host == "gone":
            raise OSError
        hosts = {"peers": ("10.0.0.2", "10.0.0.1", "fd00::1"), "127.0.0.1": ("127.0.0.1",)}[host]
        return [(0, 0, 0, "", (one, port)) for one in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    assert ["http://10.0.0.1:8080", "http://10.0.0.2:8080", "http://[fd00::1]:8080"] == addresses(["http://peers:8080"])
    same = ["http://127.0.0.1:8080", "http://gone:80", "https://peers"]
    assert same == addresses(same)


def test_one_reading_serves_whoever_looks_at_about_the_same_time() -> None:
    """Two rollouts and the judging ask each gateway once; one that does not answer keeps what it had counted."""
    asked: list[str] = []
    now, pages = [0.0], {"http://a": 5.0, "http://b": 7.0}

    def fetch(url: str) -> str | None:
        asked.append(url)
        counted = pages.get(url.removesuffix("/metrics"))
        labels = 'endpoint="e",outcome="ok",route="stable",version="1"'
        return None if counted is None else f"gateway_requests_total{{{labels}}} {counted}\n"

    gateways = Gateways(lambda: ["http://a", "http://b"], fetch=fetch, clock=lambda: now[0])
    first = gateways.counters()
    assert [gateways.counters()] * 3 == [first] * 3
    assert ["http://a/metrics", "http://b/metrics"] == sorted(asked)

    now[0], pages["http://a"] = 2.0, 6.0
    last = pages.pop("http://b")
    second = gateways.counters().over(first)
    series = ("gateway_requests_total", "e", "1", "stable", "ok")
    assert (("http://b",), {series: 1.0}) == (second.missing, grown(first, second))
    now[0], pages["http://b"] = 4.0, last + 2
    assert {series: 2.0} == grown(second, gateways.counters().over(second)), "what it counted meanwhile is not lost"


def test_buckets_without_new_values_are_known_too() -> None:
    """A look has the bounds of every bucket, whatever came since the last one; of values it tells those of each bin."""
    name, key = "gateway_variable_scalar_bucket", ("e", "1", "top_score")
    text = name + '{{endpoint="e",version="1",variable="top_score",le="{}"}} {}\n'
    pages = [
        "".join(text.format(*one) for one in zip(("1", "2", "+Inf"), n, strict=True)) for n in ((5, 5, 5), (7, 7, 8))
    ]
    found = grown(*(Reading({"a": parse(page)}) for page in pages))
    assert {(name, *key, "1"): 2, (name, *key, "2"): 2, (name, *key, "+Inf"): 3} == found
    assert {key: {"1": 2, "2": 0, "+Inf": 1}} == variables(found)
