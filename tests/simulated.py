"""The batcher in simulated time, with servers of several prices.

The batcher is the real one. The event loop's clock, the connections and the server are simulated: exact, the same in
every run, and done in seconds of CPU. Each connection sends its next request when the last one is answered. The gateway
has one CPU, which takes ``REQUEST_S`` per request and ``CALL_S`` per call; meanwhile it notices neither arrivals nor
the end of a call. The server takes one call after the other.

Next to each cell is what two full calls taking turns could give (``bound``): one half of the connections is served in
as few calls as possible while the other half waits.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import selectors
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from gateway.batching.batcher import Batcher
from gateway.batching.entries import BatchLimits, Entry
from gateway.batching.pressure import Pressure
from gateway.errors import Overloaded
from gateway.prices import Prices
from gateway.trace import BATCH, DEFAULT, DEFAULT_FLOW, Flow
from gateway.triton import choice

REQUEST_S: Final = 90e-6
"""CPU of the gateway for one request, half of it before the call (parse, tokenize), half after it (finish, write)."""
CALL_S: Final = 200e-6
"""CPU of the gateway for one call: make its tensors, write, read."""
WIRE_S: Final = 200e-6
"""Seconds from the decision to send a call until the server has it, and as long back."""
REFUSAL_S: Final = 15e-6
"""CPU of the gateway for a refusal."""
_CLIENT_S: Final = 100e-6
"""Seconds from an answer until the next request of its connection arrives."""
MAX_ROWS: Final = 64


class _Teller:
    """Waits for an entry in place of a request, and tells a function what became of it."""

    def __init__(self, entry: Entry[Any], told: Callable[[Entry[Any], Any, Any], object]) -> None:
        self._entry, self._told = entry, told

    def go_on(self) -> None:
        """See ``outcome.Waiter``."""
        self._told(self._entry, self._entry.value, self._entry.error)


def begin(
    batcher: Batcher[Any], rows: Sequence[Any], deadline: float, told: Callable[[Entry[Any], Any, Any], object],
    *, count: int = 0, kind: Any = None, flow: Flow = DEFAULT_FLOW,
) -> Entry[Any]:  # fmt: skip
    """Queue rows, and call ``told(entry, outputs, error)`` when they have ended. Raises as ``Batcher.add`` does."""
    entry = Entry(rows, deadline, count=count, kind=kind, flow=flow)
    entry.waiter = _Teller(entry, told)
    batcher.add(entry)
    return entry


ONE_SERVER: Final = SimpleNamespace(replicas=1)


@dataclass(frozen=True, slots=True)
class Price:
    """A server's seconds for a call, a row and a padded token; ``noise`` is a share of the time."""

    name: str
    call: float
    row: float
    token: float
    noise: float = 0.05
    at_once: int = 1
    """Calls that it processes at the same time."""

    def seconds(self, rows: int, longest: int) -> float:
        """Return the time of a call without noise."""
        return self.call + self.row * rows + self.token * rows * longest


PRICES: Final = (
    Price("a price per call", 4e-3, 50e-6, 0.0),
    Price("a price per padded token", 0.0, 0.0, 10e-6),
    Price("both", 2e-3, 20e-6, 5e-6),
)


def learned(call: float, row: float, token: float = 0.0, *, lengths: Sequence[int] = (10,), calls: int = 96) -> Prices:
    """Return prices learned from calls of one to ten rows that cost exactly so much."""
    prices = Prices()
    for number in range(calls):
        rows, longest = number % 10 + 1, lengths[number % len(lengths)]
        prices.learn(rows, rows * longest, 0.0, call + row * rows + token * rows * longest)
    return prices


Lengths = Callable[[random.Random], int]


def short(chance: random.Random) -> int:
    """Return the tokens of a short text: a sentence or two."""
    return chance.randint(8, 24)


def mixed(chance: random.Random) -> int:
    """Return the tokens of a text of any kind: mostly sentences, some paragraphs, a few pages."""
    return min(max(int(chance.lognormvariate(3.4, 0.9)), 4), 256)


MIXES: Final[dict[str, Lengths]] = {"short": short, "mixed": mixed}


def bound(price: Price, lengths: Lengths, connections: int) -> float:
    """Return the answers per second of two full calls taking turns, from forty turns of half the connections."""
    chance = random.Random(1)
    half = max(connections // 2, 1)
    calls = []
    for _ in range(40):
        ordered = sorted(lengths(chance) for _ in range(half))
        # All but the shortest rows' call are full.
        calls += [(min(end, MAX_ROWS), ordered[end - 1]) for end in range(half, 0, -MAX_ROWS)]
    return sum(rows for rows, _ in calls) / sum(price.seconds(*call) for call in calls)


class _Jump(selectors.SelectSelector):
    """A selector that never waits: it moves the clock forward instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout:
            self.now += timeout
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose waiting takes no time."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now

    def work(self, seconds: float) -> None:
        """Be busy for ``seconds``: whatever falls due meanwhile waits."""
        self._jump.now += seconds


def simulate(main: Callable[[SimulatedLoop], Coroutine[Any, Any, Any]]) -> Any:
    """Run ``main(loop)`` in simulated time."""
    loop = SimulatedLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.close()


@dataclass(slots=True)
class Row:
    """One text."""

    n_tokens: int


class Server(choice.Server):
    """Takes ``price.at_once`` calls at a time, in order. ``price`` may be changed while it runs."""

    def __init__(self, loop: SimulatedLoop, price: Price, chance: random.Random) -> None:
        super().__init__()
        self._loop = loop
        self._chance = chance
        self._free_at = [0.0] * price.at_once
        self.price = price
        self.calls: list[tuple[int, int]] = []

    async def __call__(self, rows: Sequence[Row], timeout: float) -> dict[str, Any]:
        """Serve a call."""
        del timeout
        longest = max(row.n_tokens for row in rows)
        self.calls.append((len(rows), longest))
        self._loop.work(CALL_S)
        noise = max(self._chance.gauss(1.0, self.price.noise), 0.5)
        begin = max(self._loop.time() + WIRE_S, heapq.heappop(self._free_at))
        end = begin + self.price.seconds(len(rows), longest) * noise
        heapq.heappush(self._free_at, end)
        await asyncio.sleep(end + WIRE_S - self._loop.time())
        return {"y": np.zeros(len(rows))}


class Several:
    """Several servers. Each call goes to the one that the product would choose."""

    def __init__(self, loop: SimulatedLoop, servers: Sequence[Server]) -> None:
        self._loop = loop
        self._prices = Prices()
        self._servers = servers
        self.replicas = len(servers)

    async def __call__(self, rows: Sequence[Row], timeout: float) -> dict[str, Any]:
        """Serve a call."""
        call = choice.Call(self._prices, len(rows), len(rows) * max(row.n_tokens for row in rows))
        server = choice.choose(self._servers, "m", call.seconds, self._loop.time())
        assert server is not None
        server.begin(call, self._loop.time())
        found = await server(rows, timeout)
        server.end(call, self._loop.time(), was_answered=True)
        return found


@dataclass(slots=True)
class Load:
    """Result of one load: times of answers in seconds, counts per second, and one server's calls (rows, longest)."""

    answers: float = 0.0
    asked: float = 0.0
    seconds: list[float] = field(default_factory=list, repr=False)
    batch: float = 0.0
    """Answers per second to callers of class batch."""
    tenants: dict[str, Load] = field(default_factory=dict)
    calls: list[tuple[int, int]] = field(default_factory=list, repr=False)

    @property
    def rows(self) -> float:
        """Mean rows per call."""
        return sum(rows for rows, _ in self.calls) / len(self.calls)

    def percentile(self, percent: float) -> float:
        """Return a percentile of the answers' times."""
        ordered = sorted(self.seconds)
        return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]


def load(
    price: Price, lengths: Lengths, connections: int, *, seconds: float = 1.0, warm: float = 3.0, pause: float = 0.0
) -> Load:  # fmt: skip
    """Run closed-loop connections against a batcher and return the result after ``warm`` seconds.

    ``pause``: the mean seconds of a connection between an answer and its next request.
    """

    async def main(loop: SimulatedLoop) -> Load:
        chance = random.Random(1)
        server = Server(loop, price, chance)
        batcher = Batcher[Row](server, limits=BatchLimits(max_rows=MAX_ROWS), clock=loop.time, servers=ONE_SERVER)
        has_ended = False
        taken: list[float] = []

        def send() -> None:
            wait = _CLIENT_S + (chance.expovariate(1 / pause) if pause else 0.0)
            loop.call_later(wait, arrive, loop.time() + wait)

        def arrive(sent: float) -> None:
            def answered(_entry: Entry[Row], _outputs: object, error: Exception | None) -> None:
                if has_ended:
                    return
                loop.work(REQUEST_S / 2)
                if error is not None:
                    raise error
                if loop.time() >= warm:
                    taken.append(loop.time() - sent)
                send()

            if not has_ended:
                loop.work(REQUEST_S / 2)
                begin(batcher, [Row(lengths(chance))], loop.time() + 60, answered)

        for _ in range(connections):
            send()
        await asyncio.sleep(warm)
        server.calls.clear()
        await asyncio.sleep(seconds)
        cell = Load(len(taken) / seconds, seconds=taken, calls=server.calls.copy())
        has_ended = True
        await batcher.close()
        return cell

    return simulate(main)  # type: ignore[no-any-return]


def open_load(
    price: Price, lengths: Lengths, rate: float | Mapping[str, float], *, seconds: float = 10.0, warm: float = 5.0,
    others: Sequence[Price] = (), batch: int = 0, rule: str = "always", gateways: int = 1,
) -> Load:  # fmt: skip
    """Run random arrivals at ``rate`` per second, or at one for each tenant, against batchers whose limits of work are
    in force by ``rule``.

    ``others`` are the prices of further servers: each call goes to one. ``batch`` callers of that class send their next
    request when the last one is answered. Each of the ``gateways`` has a batcher and knows nothing of the others.
    """
    rates = rate if isinstance(rate, Mapping) else {"": rate}

    async def main(loop: SimulatedLoop) -> Load:
        chance = random.Random(1)
        server = Server(loop, price, chance)
        several = Several(loop, [server, *(Server(loop, one, chance) for one in others)])
        batchers: list[Batcher[Row]] = [
            Batcher(
                several if others else server,
                limits=BatchLimits(max_rows=MAX_ROWS, max_in_flight=price.at_once + 1, pressure=Pressure(rule)),
                clock=loop.time, servers=several,
            )
            for _ in range(gateways)
        ]  # fmt: skip
        found = Load(tenants={name: Load() for name in rates})
        until = warm + seconds

        def arrive(name: str, sent: float) -> None:  # however late the loop runs
            if sent >= until:
                return
            due = sent + chance.expovariate(rates[name])
            loop.call_at(due, arrive, name, due)
            batcher = chance.choice(batchers) if gateways > 1 else batchers[0]
            found.tenants[name].asked += sent >= warm
            batcher.pressure.look(loop.time())
            if batcher.is_full(DEFAULT, name):
                refuse(batcher)
                return
            loop.work(REQUEST_S / 2)

            def answered(_entry: Entry[Row], _outputs: object, error: Exception | None) -> None:
                loop.work(REQUEST_S / 2)
                if error is None and warm <= loop.time() < until:
                    found.tenants[name].seconds.append(loop.time() - sent)

            try:
                begin(batcher, [Row(lengths(chance))], loop.time() + 60, answered, flow=Flow(DEFAULT, name))
            except Overloaded:
                refuse(batcher)

        def refuse(batcher: Batcher[Row]) -> None:
            batcher.pressure.press(loop.time())
            loop.work(REFUSAL_S)

        def fill(sent: float) -> None:
            loop.work(REQUEST_S)

            def answered(_entry: Entry[Row], _outputs: object, error: Exception | None) -> None:
                found.batch += error is None and warm <= loop.time() < until
                if loop.time() < until:
                    loop.call_later(_CLIENT_S, fill, loop.time())

            begin(batchers[0], [Row(lengths(chance))], sent + 60, answered, flow=Flow(BATCH, ""))

        for _ in range(batch):
            loop.call_soon(fill, 0.0)
        for name in rates:
            loop.call_soon(arrive, name, 0.0)
        await asyncio.sleep(until)
        found.seconds = [took for one in found.tenants.values() for took in one.seconds]
        for one in (found, *found.tenants.values()):
            one.answers, one.asked = len(one.seconds) / seconds, one.asked / seconds
        found.batch /= seconds
        for batcher in batchers:
            await batcher.close()
        return found

    return simulate(main)  # type: ignore[no-any-return]
