"""How many answers per second does the batcher alone give with servers of several prices, in exact simulated time?

Next to each cell is what two full calls taking turns could give, and the best cut of each turn: see
``benchmarks/shared/simulated.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.shared.command import parser
from benchmarks.shared.results import table
from benchmarks.shared.simulated import CONNECTIONS, MIXES, PRICES, best, bound, load

TAKES = "1 minute"
SAVES = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table: answers per second next to both bounds, the median time, rows per call, learned prices."""
    parser(__name__, __doc__).parse_args(argv)
    rows = [["price", "lengths", "connections", "answers/s", "two full calls", "share", "best cut", "share", "p50 ms",
             "rows/call", "learned"]]  # fmt: skip
    for price in PRICES:
        for mix, lengths in MIXES.items():
            for connections in CONNECTIONS:
                cell, turns = load(price, lengths, connections), bound(price, lengths, connections)
                most = best(price, lengths, connections)
                learned = ", ".join(f"{name} {value}" for name, value in cell.prices.items())
                rows.append([
                    price.name, mix, str(connections), f"{cell.answers:,.0f}", f"{turns:,.0f}",
                    f"{cell.answers / turns:.2f}", f"{most:,.0f}", f"{cell.answers / most:.2f}",
                    f"{cell.p50 * 1e3:.1f}", f"{cell.rows:.1f}", learned,
                ])  # fmt: skip
    print(table(rows))
    return 0
