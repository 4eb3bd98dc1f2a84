"""What ClearML's pages show of the gateways: scalars of each version, its row in the list of endpoints, and outages."""

from __future__ import annotations

from typing import Any

from deploy.controller.telemetry import EVERY_S, MAX_ENDPOINTS, Telemetry
from tests.fakes import FakeRegistry

ROW = {"endpoint": "e", "version": "1", "route": "direct", "rate": 2.0, "failed": 0.25, "p50": 0.01, "p95": 0.02,
       "p99": None}  # fmt: skip
SERVED = {"url": "e/1", "endpoint": "e", "version": "1", "model_id": "m", "model_name": "mini"}


class World:
    """A serving Task, what its gateways say, and a clock by hand."""

    def __init__(self) -> None:
        self.registry = FakeRegistry()
        self.gateways: dict[str, dict[str, Any] | None] = {}
        self.now = 600.0
        self.duty = Telemetry(self.registry, lambda: self.gateways, wall=lambda: self.now)

    def look(self) -> None:
        """Let the duty look, a minute later."""
        self.now += EVERY_S
        self.duty(self.registry.task())


def status(*rows: dict[str, Any], endpoints: tuple[dict[str, Any], ...] = (SERVED,)) -> dict[str, Any]:
    """Return the /v1/status of a gateway."""
    return {"endpoints": endpoints, "last_minute": rows}


def test_a_version_has_its_rate_errors_and_latency_over_all_gateways() -> None:
    """Rates are added up over gateways and routes, a latency is the slowest one's; unknown paths are left out."""
    world = World()
    slow = {**ROW, "route": "canary", "rate": 1.0, "failed": 0.0, "p50": 0.5}
    world.gateways = {"http://a": status(ROW, {**ROW, "endpoint": ""}), "http://b": status(slow), "http://c": None}
    world.look()
    assert {
        ("requests per second", "e/1", 3.0), ("errors per second", "e/1", 0.5),
        ("latency p50, ms", "e/1", 500.0), ("latency p95, ms", "e/1", 20.0),
    } == {(one["metric"], one["variant"], one["value"]) for one in world.registry.reported}  # fmt: skip
    assert {("task", 660)} == {(one["task"], one["iter"]) for one in world.registry.reported}


def test_every_gateway_is_an_instance_of_the_endpoints_that_it_serves() -> None:
    """Requests are counted on; a version without a model has a name too; one that is gone is not reported again."""
    world = World()
    code = {"url": "code", "endpoint": "code", "version": None, "model_id": None, "model_name": None}
    world.gateways = {"http://a": status(ROW, endpoints=(SERVED, code)), "http://b": status()}
    world.look()
    world.look()
    first, other, second = world.registry.listed.values()
    assert first == {
        "container_id": first["container_id"], "endpoint_name": "e", "model_version": "1", "model_name": "mini",
        "model_source": "ClearML", "endpoint_url": "http://a/serve/e/1", "uptime_sec": 60, "requests_num": 240,
        "requests_min": 120.0, "latency_ms": 10,
        "reference": [{"type": "task", "value": "task"}, {"type": "model", "value": "m"}],
    }  # fmt: skip
    assert ("code", "http://a/serve/code") == (other["model_name"], other["endpoint_url"])
    assert ("http://b/serve/e/1", 0) == (second["endpoint_url"], second["requests_num"])
    world.registry.listed.clear()
    world.gateways = {"http://b": status()}
    world.look()
    assert ["http://b/serve/e/1"] == [one["endpoint_url"] for one in world.registry.listed.values()]


def test_a_round_is_once_a_minute_and_bounded() -> None:
    """However often the controller looks, and whatever is served."""
    world = World()
    many = [{**ROW, "endpoint": f"e{i}"} for i in range(300)]
    world.gateways = {"http://a": status(*many, endpoints=tuple({**SERVED, "url": f"e{i}"} for i in range(300)))}
    world.look()
    world.duty(world.registry.task())
    assert (4 * MAX_ENDPOINTS, MAX_ENDPOINTS) == (len(world.registry.reported), len(world.registry.listed))
