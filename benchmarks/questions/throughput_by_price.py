"""How many answers per second do servers with different call costs give, compared with what is possible?

Real HTTP, the real Triton, and one gateway with default settings. The models take their time per call (``gpu``), per
padded token (``tokens``) or for both. Next to each cell is what two full calls taking turns could give, computed from
the model's prices and the texts' lengths, and what the best cut of each turn could give (``benchmarks.shared``). Both
ignore the time of Triton itself and this machine, so those two calls are also sent straight to Triton in the same
rounds. With ``--before CHECKOUT``, another commit's gateway is measured in the same rounds.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from tokenizers import Tokenizer

from benchmarks.peers.plan import Scenario
from benchmarks.peers.run import bring_up, commit, measure_cell, start
from benchmarks.peers.systems import BEFORE, NOW, SYSTEMS, Bench, Running, another_checkout
from benchmarks.shared import machine
from benchmarks.shared.backends import BACKENDS, TOKENS
from benchmarks.shared.command import STATE, Say, narrator, parser
from benchmarks.shared.corpus import Corpus
from benchmarks.shared.processes import ServerFailed
from benchmarks.shared.results import DOCS, put, save, table
from benchmarks.shared.simulated import CONNECTIONS, Lengths, Price, best, bound, turns

TAKES = "20 minutes"
SAVES = "results/throughput.json, docs/decisions/0028-one-batcher-learned-prices.md"
PRICED: Final = ("gpu", "tokens", "both")
TEXTS: Final = ("short", "mixed")
_FIGURES: Final = ("rps", "p50_ms", "batch", "errors")
NAMES: Final = {
    "gpu": "4 ms a call, 0.05 ms a row", "tokens": "0.01 ms a padded token",
    "both": "2 ms a call, 0.02 ms a row, 0.005 ms a padded token",
}  # fmt: skip
PAGE: Final = DOCS / "decisions" / "0028-one-batcher-learned-prices.md"
_HEADS: Final = (
    "price", "texts", "connections", "answers/s", "two full calls", "share", "made straight to Triton", "share",
    "best cut", "p50 ms", "rows/call",
    "before: answers/s", "p50 ms", "rows/call", "errors",
)  # fmt: skip
_SHOWN: Final = (
    "price", "texts", "connections", "answers a second", "of two full calls, computed", "of the same calls made "
    "straight to Triton", "p50 ms", "rows a call",
)  # fmt: skip


def lengths_of(bench: Bench, kind: str) -> Lengths:
    """Return a source of the token counts of one kind of texts."""
    tokenizer = Tokenizer.from_file(str(bench.bundles["gpu"] / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = [len(encoded.ids) for encoded in tokenizer.encode_batch_fast(Corpus(seed=1).texts(kind, 2000))]

    def draw(chance: random.Random) -> int:
        return chance.choice(found)

    return draw


def run(cells: Sequence[Scenario], before: Path | None, state: Path, say: Say) -> list[dict[str, Any]]:
    """Measure all cells; return for each the computed values and the result of every round."""
    if before is not None:
        SYSTEMS[BEFORE] = another_checkout(before)
    systems = [NOW] if before is None else [NOW, BEFORE]
    measured = []
    with contextlib.ExitStack() as stack:
        bench = bring_up(stack, cells, state, say)
        lengths = {kind: lengths_of(bench, kind) for kind in dict.fromkeys(cell.texts for cell in cells)}
        for name in dict.fromkeys(cell.backend for cell in cells):
            backend = BACKENDS[name]
            price = Price(name, backend.call_ms / 1e3, backend.row_ms / 1e3, backend.token_ms / 1e3)
            with contextlib.ExitStack() as started:
                running = {system: start(bench, started, name, system) for system in systems}
                for cell in (c for c in cells if c.backend == name):
                    calls = turns(lengths[cell.texts], cell.connections)
                    straight, found = _measure(bench, running, cell, calls)
                    measured.append({
                        "price": name, "texts": cell.texts, "connections": cell.connections,
                        "two_full_calls": bound(price, lengths[cell.texts], cell.connections),
                        "best_cut": best(price, lengths[cell.texts], cell.connections),
                        "straight": straight,
                        **{system: {figure: [one[figure] for one in rounds] for figure in _FIGURES}
                           for system, rounds in found.items()},
                    })  # fmt: skip
                    say(" | ".join(_row(measured[-1])))
    return measured


def _measure(
    bench: Bench, running: dict[str, Running], cell: Scenario, calls: Sequence[tuple[int, int]]
) -> tuple[list[float], dict[str, list[dict[str, Any]]]]:
    found: dict[str, list[dict[str, Any]]] = {system: [] for system in running}
    straight = []
    for round_ in range(cell.rounds):
        straight.append(_straight(bench.triton.http, running[NOW].models[0], calls, cell.seconds / 2))
        for system in sorted(running, reverse=bool(round_ % 2)):
            found[system].append(measure_cell(bench, running[system], cell, system, round_))
    return straight, found


def _straight(address: str, model: str, calls: Sequence[tuple[int, int]], seconds: float) -> float:
    """Send the calls repeatedly, two at a time, and return the rows per second that Triton answers."""
    head = {(rows, longest): _request(rows, longest) for rows, longest in set(calls)}
    queue = itertools.cycle(calls)
    until = time.perf_counter() + seconds

    def work() -> int:
        answered = 0
        with contextlib.closing(http.client.HTTPConnection(address, timeout=30)) as connection:
            while time.perf_counter() < until:
                rows, longest = next(queue)
                length, body = head[rows, longest]
                headers = {"Inference-Header-Content-Length": str(length)}
                connection.request("POST", f"/v2/models/{model}/infer", body, headers)
                with connection.getresponse() as response:
                    response.read()
                    if response.status != HTTPStatus.OK:
                        raise ServerFailed(f"Triton answered {response.status} to {model}")
                answered += rows
        return answered

    began = time.perf_counter()
    with ThreadPoolExecutor(2) as threads:
        answered = sum(done.result() for done in [threads.submit(work) for _ in range(2)])
    return answered / (time.perf_counter() - began)


def _request(rows: int, longest: int) -> tuple[int, bytes]:
    data = np.ones((rows, longest), np.int64).tobytes()
    inputs = [
        {"name": name, "shape": [rows, longest], "datatype": "INT64", "parameters": {"binary_data_size": len(data)}}
        for name in TOKENS
    ]
    head = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
    return len(head), head + data * len(TOKENS)


def _row(cell: Mapping[str, Any]) -> tuple[str, ...]:
    def of(system: str, figure: str, digits: int) -> str:
        return f"{statistics.median(cell[system][figure]):,.{digits}f}" if system in cell else "–"

    now, straight = statistics.median(cell[NOW]["rps"]), statistics.median(cell["straight"])
    two = cell["two_full_calls"]
    return (
        cell["price"], cell["texts"], str(cell["connections"]), f"{now:,.0f}", f"{two:,.0f}", f"{now / two:.2f}",
        f"{straight:,.0f}", f"{now / straight:.2f}", f"{cell['best_cut']:,.0f}",
        *(of(system, *figure) for system in (NOW, BEFORE) for figure in (("rps", 0), ("p50_ms", 2), ("batch", 1))
          if (system, figure) != (NOW, ("rps", 0))),
        str(sum(sum(cell[system]["errors"]) for system in (NOW, BEFORE) if system in cell)),
    )  # fmt: skip


def shown(found: Mapping[str, Any]) -> str:
    """Return the table of decision 0028."""
    rows = [_SHOWN]
    for cell in found["cells"]:
        _, texts, connections, now, _, share, _, of_straight, _, p50, batch, *_ = _row(cell)
        rows.append((NAMES[cell["price"]], texts, connections, now, share, of_straight, p50, batch))
    return table(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--before", type=Path, help="folder with another checkout, measured in the same rounds")
    arguments.add_argument("--state-dir", type=Path, default=STATE, help="folder for files kept between runs")
    arguments.add_argument(
        "--price", action="append", default=[], choices=PRICED, help="only this one; may be repeated"
    )
    arguments.add_argument("--texts", action="append", default=[], choices=TEXTS, help="only these; may be repeated")
    arguments.add_argument(
        "--connections", action="append", type=int, default=[], help="only this number; may be repeated"
    )
    arguments.add_argument("--rounds", type=int, default=5, help="rounds of every cell [5]")
    arguments.add_argument("--seconds", type=float, default=3.0, help="seconds of every round [3]")
    options = arguments.parse_args(argv)
    cells = [
        Scenario(price, texts, connections, (NOW,), options.rounds, options.seconds)
        for price in options.price or PRICED
        for texts in options.texts or TEXTS
        for connections in options.connections or CONNECTIONS
    ]
    say = narrator()
    before: Path | None = options.before.resolve() if options.before else None
    load = os.getloadavg()
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    try:
        measured = run(cells, before, options.state_dir.absolute(), say)
    except ValueError as error:
        arguments.error(str(error))
    except ServerFailed as error:
        say(f"error: {error}")
        return 1
    print(table([_HEADS, *map(_row, measured)]))
    if options.save:
        facts = {
            "commit": commit(), "before": "" if before is None else commit(before), "cpu": machine.cpu_model(),
            "cores": os.cpu_count(), "load_average": load, "began": began, "rounds": options.rounds,
            "seconds": options.seconds,
        }  # fmt: skip
        found = {"facts": facts, "cells": measured}
        save("throughput", found)
        put(PAGE, "throughput", shown(found))
    return 0
