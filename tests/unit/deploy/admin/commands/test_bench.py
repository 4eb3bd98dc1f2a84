"""``triton-gateway bench`` with a small server: what it sends, counts, shows and refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deploy.admin.commands.bench import command
from deploy.tools.errors import DeployError
from tests.sites import Asked, site


class Gateway:
    """Answers every text, and counts like a gateway."""

    def __init__(self) -> None:
        self.url = ""
        self.status, self.error = 200, b"{}"
        self.headers: dict[str, str] = {}
        self.bodies: list[bytes] = []

    def answer(self, asked: Asked) -> tuple[int, bytes]:
        """The two routes."""
        if asked.method == "GET":
            return 200, self.metrics().encode()
        if asked.path != "/serve/e/1":
            return 404, self.error
        self.bodies.append(asked.body)
        return self.status, self.error

    def metrics(self) -> str:
        """Two rows per call, 3 ms in Triton."""
        n = len(self.bodies)
        labels = 'endpoint="e",version="1"'
        return (
            f'gateway_stage_duration_seconds_sum{{{labels},stage="infer"}} {n * 0.003}\n'
            f'gateway_stage_duration_seconds_count{{{labels},stage="infer"}} {n}\n'
            f"gateway_batch_rows_sum{{{labels}}} {n}\n"
            f"gateway_batch_rows_count{{{labels}}} {n / 2}\n"
        )


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    """One on a free port, whose connections stay open."""
    made = Gateway()
    with site(made.answer, protocol="HTTP/1.1", headers=made.headers) as made.url:
        yield made


def bench(gateway: Gateway, *arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(
        command, ["--url", gateway.url, "--endpoint", "e/1", "--seconds", "0.3", "--warm-up", "0", *arguments],
        standalone_mode=False,
    )  # fmt: skip


def test_every_load_has_a_row_with_latency_and_the_gateways_stages(gateway: Gateway, tmp_path: Path) -> None:
    """There is one closed loop per number of connections, and the JSON contains the same figures."""
    done = bench(gateway, "--connections", "1,3", "--json", str(tmp_path / "out.json"))
    assert 0 == done.return_value, done.output
    loads = json.loads((tmp_path / "out.json").read_text())["loads"]
    assert [1, 3] == [load["connections"] for load in loads]
    for load in loads:
        assert load["requests"] > 0
        assert 0 == load["errors"]
        assert (3.0, 2.0) == (pytest.approx(load["infer_ms"]), pytest.approx(load["rows_per_call"]))
    assert sum(load["requests"] for load in loads) <= len(gateway.bodies)
    assert "3 connections" in done.output


def test_open_loop_sends_at_its_rate(gateway: Gateway) -> None:
    """The rate does not depend on the answers."""
    done = bench(gateway, "--rate", "100", "--connections", "8")
    assert 0 == done.return_value, done.output
    assert 10 <= len(gateway.bodies) <= 70


def test_built_in_texts_differ(gateway: Gateway) -> None:
    """The command must not measure a response cache."""
    bench(gateway, "--connections", "2")
    assert len(set(gateway.bodies)) > 0.9 * len(gateway.bodies)


def test_own_texts_and_bodies_are_sent_as_they_are(gateway: Gateway, tmp_path: Path) -> None:
    """There is one per line; empty lines are skipped."""
    texts, bodies = tmp_path / "texts", tmp_path / "bodies"
    texts.write_text("ein Text\n\nnoch einer\n")
    bodies.write_text('{"query": "q", "documents": ["d"]}\n')
    bench(gateway, "--connections", "1", "--texts", str(texts))
    assert {b'{"text": "ein Text"}', b'{"text": "noch einer"}'} == set(gateway.bodies)
    gateway.bodies.clear()
    bench(gateway, "--connections", "1", "--bodies", str(bodies))
    assert {b'{"query": "q", "documents": ["d"]}'} == set(gateway.bodies)


def test_failed_requests_are_shown_and_make_the_command_fail(gateway: Gateway) -> None:
    """The first answer is shown, because it contains the reason."""
    gateway.status = 503
    done = bench(gateway, "--connections", "1")
    assert 1 == done.return_value
    assert "503" in done.output


@pytest.mark.parametrize(
    ("status", "hint"), [(404, "deployed are"), (422, "--bodies"), (401, "TRITON_GATEWAY_KEY"), (413, "")]
)
def test_a_load_that_would_be_refused_is_not_sent(gateway: Gateway, status: int, hint: str) -> None:
    """One request shows it: a wrong name, a body that the endpoint does not take, a missing key."""
    gateway.status = status
    gateway.error = b'{"error": "no such thing", "hint": "deployed are e/2"}'
    done = bench(gateway)
    assert isinstance(done.exception, DeployError)
    assert "refuses the first request: no such thing" in done.exception.message
    assert hint in done.exception.hint
    assert 1 == len(gateway.bodies)


def test_connections_that_the_server_ends_in_order_are_no_failures(gateway: Gateway) -> None:
    """A gateway that drains or spreads its clients says `connection: close` on a good answer."""
    gateway.headers["connection"] = "close"
    done = bench(gateway, "--connections", "2")
    assert 0 == done.return_value, done.output


@pytest.mark.parametrize("connections", ["", "0", "-1", "many", "1;2"])
def test_wrong_numbers_are_refused_with_the_right_form(gateway: Gateway, connections: str) -> None:
    """Before anything is sent."""
    done = bench(gateway, "--connections", connections)
    assert "--connections takes" in str(done.exception)
    assert [] == gateway.bodies


def test_other_machines_need_a_flag_and_absent_gateways_a_start() -> None:
    """Load is not sent to other machines by accident; a gateway that does not answer is one line."""
    for url, words in (("http://192.0.2.1:8080", "this machine only"), ("http://127.0.0.1:9", "nothing answers"),
                       ("https://127.0.0.1:9", "not an http://")):  # fmt: skip
        done = CliRunner().invoke(command, ["--url", url, "--endpoint", "e", "--warm-up", "0"], standalone_mode=False)
        assert isinstance(done.exception, DeployError)
        assert words in str(done.exception)


def test_lines_that_are_not_json_are_named(gateway: Gateway, tmp_path: Path) -> None:
    """File and line."""
    (tmp_path / "bodies").write_text('{"a": 1}\nnope\n')
    done = bench(gateway, "--bodies", str(tmp_path / "bodies"))
    assert "line 2" in str(done.exception)


def test_plot_is_a_picture(gateway: Gateway, tmp_path: Path) -> None:
    """Latency over rate."""
    done = bench(gateway, "--connections", "1,2", "--plot", str(tmp_path / "plot.png"))
    assert 0 == done.return_value, done.output
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
