"""The cells of a run, as data. A cell is one system with one backend, kind of text and load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

PEERS = ("clearml_lean", "kserve", "ensemble_lean")
FORMS = ("gateway", "gateway_hf", "gateway_openai", "gateway_kserve", "gateway_oip")
ALL = ("gateway", "gateway_nocache", *PEERS)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The same load for several systems, in interleaved rounds. ``rate`` 0 is a closed loop."""

    backend: str
    texts: str
    connections: int
    systems: tuple[str, ...]
    rounds: int
    seconds: float
    rate: float = 0.0
    client: str = "constant"
    """Whose heads the requests have: see ``http_load.CLIENTS``."""

    @property
    def name(self) -> str:
        """Return a name that can be used as a file name."""
        load = f"{self.rate:g}rps" if self.rate else f"c{self.connections}"
        heads = "" if self.client == "constant" else f"-{self.client}"
        return f"{self.backend}-{self.texts}-{load}{heads}"


def full() -> tuple[Scenario, ...]:
    """Return all scenarios of the documentation: about half an hour."""
    return (
        *(Scenario("instant", "short", n, ALL, 5 if n == 64 else 3, 4.0) for n in (64, 1, 16, 256)),
        Scenario("instant", "long", 64, ALL, 3, 4.0),
        Scenario("instant", "mixed", 64, ALL, 3, 3.0),
        Scenario("vectors", "short", 64, FORMS, 6, 2.0),
        Scenario("instant", "short", 64, ("gateway_w2",), 3, 4.0),
        *(Scenario("gpu", "short", n, ("gateway", *PEERS), 3, 4.0) for n in (16, 256)),
        Scenario("minilm", "short", 16, ("gateway", *PEERS), 3, 5.0),
        *(
            Scenario("instant", "short", 256, ("gateway", "clearml_lean", "kserve", "ensemble_lean"), 1, 4.0, rate)
            for rate in (250.0, 500.0, 1000.0, 2000.0, 4000.0)
        ),
    )


def quick() -> tuple[Scenario, ...]:
    """Return scenarios for the main ratios in a few minutes, with fewer and shorter rounds and so wider ranges."""
    return (
        Scenario("instant", "short", 64, ALL, 3, 2.0),
        Scenario("instant", "long", 64, ("gateway", "gateway_nocache"), 2, 2.0),
        Scenario("instant", "short", 1, ("gateway",), 2, 2.0),
        Scenario("vectors", "short", 64, FORMS, 3, 2.0),
        Scenario("gpu", "short", 256, ("gateway", "ensemble_lean"), 2, 3.0),
    )


def narrowed(
    scenarios: Sequence[Scenario], *, backends: Sequence[str], systems: Sequence[str], texts: Sequence[str],
    connections: Sequence[int],
) -> Iterator[Scenario]:  # fmt: skip
    """Yield the scenarios that have the named parts; an empty list means all."""
    for one in scenarios:
        kept = tuple(name for name in one.systems if not systems or name in systems)
        asked = ((backends, one.backend), (texts, one.texts), (connections, one.connections))
        if kept and all(not wanted or found in wanted for wanted, found in asked):
            yield replace(one, systems=kept)
