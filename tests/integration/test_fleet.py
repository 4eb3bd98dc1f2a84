"""Replicas of both tiers and versions of a model come and go under load: no caller sees it.

A pod is a process. Ending one does what the endpoints controller and the kubelet do: it is removed from the list, which
takes a moment to be known everywhere, its ``preStop`` sleep runs, and it gets SIGTERM. Callers are typical clients of a
Service: a new connection goes to the next gateway of the list, an open one stays where it is and is kept until an
answer says ``connection: close``; nothing is ever sent twice.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests import processes
from tests.callers import Callers
from tests.expositions import parse
from tests.processes import LOOPBACK
from tests.stack import Small
from tests.tiny import counting_bundle
from tests.waiting import LIMIT_S, until

pytestmark = [pytest.mark.integration, pytest.mark.long]

BODY: Final = b'{"text": "good film hello world"}'
CALLERS, PAUSE_S = 12, 0.2
REQUESTS: Final = 300
"""Of each look at the shares: five seconds' worth."""
LEAST: Final = REQUESTS // 10
"""Answers of each gateway in a look: also one that has to wait for its core gets every second connection."""
PRE_STOP_S: Final = 1.0
"""Seconds of the preStop hook; after half of them nobody is sent there any more. Charts have more."""
AGE: Final = {"connection_age": "1s", "drain_delay": "5s"}
"""Minutes in production; seconds here, so that callers soon spread over new replicas, and each has an answer on its
connection, which is then its last, before that is closed.
"""


class Clients:
    """Clients of the Service, each in a thread; ``ports`` is its list of gateways."""

    def __init__(self, *ports: int) -> None:
        self.ports = [*ports]
        self._turns = itertools.count()
        self.open: dict[int, http.client.HTTPConnection] = {}
        """Connections that are kept, by thread."""

    def ask(self, _: int) -> str:
        """Ask on this thread's connection, or on a new one; return what went wrong, if anything."""
        connection = self.open.pop(threading.get_ident(), None)
        if connection is None:
            ports = self.ports
            connection = http.client.HTTPConnection(LOOPBACK, ports[next(self._turns) % len(ports)], LIMIT_S)
            connection.connect()
            connection.auto_open = 0  # it would connect again by itself, to the same gateway
        with contextlib.ExitStack() as ends:
            ends.callback(connection.close)
            connection.request("POST", "/serve/rolled", BODY, {"content-type": "application/json"})
            reply = connection.getresponse()
            reply.read()
            if not reply.will_close and connection.sock is not None:
                self.open[threading.get_ident()] = connection
                ends.pop_all()
        return "" if reply.status == 200 else f"status {reply.status}"

    def close(self) -> None:
        """Give up the connections that were kept."""
        for connection in self.open.values():
            connection.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    """Two real Tritons with model sync, a gateway, and the endpoint ``rolled``."""
    folder = tmp_path_factory.mktemp("fleet")
    with Small(folder / "stack", tritons=2, **AGE) as made:
        serve(made, counting_bundle(folder / "bundle"))
        yield made


def serve(stack: Small, bundle: Path) -> str:
    """Let the endpoint serve a bundle, by the stock CLI; its model's id."""
    model = stack.client.upload("rolled", bundle)
    stack.client.stock(
        "model", "add", "--engine", "triton", "--endpoint", "rolled", "--model-id", model, "--input-name",
        "input_ids", "attention_mask", "--input-type", "int64", "int64", "--input-size", "[-1, -1]", "[-1, -1]",
        "--output-name", "logits", "--output-type", "float32", "--output-size", "[-1, 2]",
    )  # fmt: skip
    return model


def counted(urls: list[str], *names: str) -> list[float]:
    """What each of a tier has answered."""
    texts = [processes.ask(f"{url}/metrics").decode() for url in urls]
    return [sum(value for name, _, value in parse(text) if name in names) for text in texts]


BAD: Final[dict[str, tuple[Callable[[Path], object], str]]] = {
    "no model": (lambda b: (b / "model.onnx").write_bytes(b"\x08garbage" * 99), "model sync refuses"),
    "no tokenizer": (lambda b: (b / "tokenizer.json").unlink(), "there is no tokenizer.json"),
    "another answer": (
        lambda b: (b / "warmup.json").write_text('{"samples": [{"body": {"text": "good"}, "answer": {"label": "x"}}]}'),
        "answer.label is",
    ),
}  # fmt: skip
"""What is wrong with a new version's bundle, and what is said."""


def test_a_bad_version_never_costs_the_one_before_it(stack: Small, tmp_path: Path) -> None:
    """Each fails for its reason while the good one answers, also after a restart of the gateway; a good one follows."""

    def successor() -> dict[str, str]:
        (rolled,) = stack.gateway.status()["endpoints"]
        return rolled["successor"] or {"state": "", "reason": ""}

    def has_failed(reason: str) -> bool:
        found = successor()
        return found["state"] == "failed" and reason in found["reason"]

    until(lambda: 200 == stack.gateway.answer(json.loads(BODY), "rolled")[0])
    clients = Clients(stack.gateway.port)
    with Callers(clients.ask, threads=2, pause=0.01) as callers:
        for name, (spoil, reason) in BAD.items():
            spoil(bundle := counting_bundle(tmp_path / name))
            serve(stack, bundle)
            until(lambda reason=reason: has_failed(reason), what=name)
    clients.close()
    assert [] == callers.failures
    stack.restart_gateway()
    until(lambda: stack.gateway.status() and has_failed(reason), what="the same reason")
    assert 200 == stack.gateway.answer(json.loads(BODY), "rolled")[0]
    good = serve(stack, counting_bundle(tmp_path / "good"))
    stack.until(lambda status: good == status["endpoints"][0]["model_id"], "the next good one")


def test_replicas_come_and_go_without_a_failed_request(stack: Small) -> None:
    """1 → 2 → 1 gateways and 2 → 1 Tritons; while there are two of each, each has its part.

    A Triton that is slower than the other, as on a busy core, rightly gets no more than a new gateway's first calls
    while the other has time.
    """

    def port(url: str) -> int:
        return int(url.rpartition(":")[2])

    def serves(url: str) -> bool:
        try:
            return bool(processes.ask(f"{url}/serve/rolled", BODY))
        except OSError:
            return False

    until(lambda: serves(stack.url))
    clients = Clients(port(stack.url))
    with Callers(clients.ask, threads=CALLERS, pause=PAUSE_S) as callers:
        # Triton names its counters without the suffix that the parser adds.
        success = "nv_inference_request_success"
        tritons = [f"http://{one.metrics}" for one in stack.tritons]

        def answered_by_tritons() -> list[float]:
            return counted(tritons, success, f"{success}_total")

        by_first = answered_by_tritons()
        url = stack.start_gateway("second").url
        until(lambda: serves(url))
        clients.ports = [port(stack.url), port(url)]

        def each_gateway_has_its_part() -> bool:
            gateways = [stack.url, url]
            before, sent = counted(gateways, "gateway_requests_total"), callers.asked
            until(lambda: callers.asked >= sent + REQUESTS)
            after = counted(gateways, "gateway_requests_total")
            return all(b - a >= LEAST for a, b in zip(before, after, strict=True))

        until(each_gateway_has_its_part)  # the second has none before connections of the first come of age
        until(lambda: all(b > a for a, b in zip(by_first, answered_by_tritons(), strict=True)))

        def end_triton() -> None:
            stack.syncs[0].end()
            time.sleep(PRE_STOP_S)
            stack.tritons[0].end()

        ending = threading.Thread(target=end_triton)
        ending.start()
        time.sleep(PRE_STOP_S / 2)
        clients.ports = [port(url)]
        time.sleep(PRE_STOP_S / 2)
        assert 0 == stack.gateway.end()
        ending.join()
        sent = callers.asked
        until(lambda: callers.asked >= sent + REQUESTS // 5)
    clients.close()
    assert [] == callers.failures
