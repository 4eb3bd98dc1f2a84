"""Learns from the calls themselves what a call, a row and a padded token cost. Pure: no clock, no loop.

The time of a call is taken to be

    call + row · rows + token · padded tokens + queueing · (seconds it stood behind another call)

with four numbers that are never negative. They are the least squares over the last calls, older calls counting less and
less; a call that took far longer than expected (a pause of the machine) counts little, unless the next ones do as well.
What the calls do not tell apart (rows and tokens, when all texts have one length) stays as it was.

On a CPU nearly all of the time goes with padded tokens, on a GPU with the call: whoever cuts batches needs to know.
"""

from __future__ import annotations

from typing import Final

_MEMORY: Final = 64
"""Calls after which a call counts a third."""
_KEPT: Final = 1 - 1 / _MEMORY
_AT: Final = ((0, 1, 2, 3), (1, 4, 5, 6), (2, 5, 7, 8), (3, 6, 8, 9))
"""Where the product of two things seen stands in the sums."""
_SOLVED_EVERY: Final = 8
_INERTIA: Final = 1e-4
"""How much a number resists being moved, as a share of what is known of it."""

_ROW: Final = 1
_MAX: Final = (float("inf"), float("inf"), float("inf"), 1.0)
_KNOWN: Final = (1e-12, 1e-12, 1e-12, 0.1)
"""What must be known of a number before it is looked at: of ``queueing`` as much as a call tells that stood behind
another one for a third of its time.
"""
_CLOCK_S: Final = 1e-6

_ALIKE: Final = 0.02
"""Calls whose numbers of rows differ by a smaller share (of their square) are all alike."""
_ODD: Final = 3.0
"""A call this many times as far off as usual counts less."""
_LEAST_SPREAD: Final = 0.01


class Prices:
    """Prices of one batcher's calls, in seconds; ``queueing`` is a share.

    ``queueing`` 1 means that a server takes one call after the other, 0 that it takes several at a time.
    """

    __slots__ = ("_sums", "_unsolved", "_values", "calls", "spread")

    def __init__(self) -> None:
        self._values = [1e-3, 0.0, 5e-6, 1.0]
        # Weighted sums over the calls: the upper triangle of the products of what was seen, then those with the time.
        self._sums = [0.0] * 14
        self._unsolved = 0
        self.calls = 0
        """How many calls were learned from."""
        self.spread = 0.5
        """How far off a call usually is, as a share of what was expected."""

    @property
    def call(self) -> float:
        """Seconds that a call costs, whatever is in it."""
        return self._values[0]

    @property
    def row(self) -> float:
        """Seconds that a row costs, whatever its length."""
        return self._values[1]

    @property
    def token(self) -> float:
        """Seconds that a token costs, padding included."""
        return self._values[2]

    @property
    def queueing(self) -> float:
        """The share of another call's remaining time that a call waits for at a server that is busy."""
        return self._values[3]

    @property
    def are_guessed(self) -> bool:
        """True if the last calls had so much the same number of rows that a call's price is anybody's guess."""
        calls, rows, squares = self._sums[0], self._sums[1], self._sums[4]
        return calls * squares < (1 + _ALIKE) * rows * rows

    def expect(self, rows: int, tokens: int) -> float:
        """Return the seconds a call of ``rows`` and (padded) ``tokens`` takes at an idle server."""
        call, row, token, _ = self._values
        return call + row * rows + token * tokens

    def learn(self, rows: int, tokens: int, behind: float, took: float) -> None:
        """Take in a call that took ``took`` seconds, of which it was ``behind`` another one for so many."""
        took = max(took, _CLOCK_S)
        if not self.calls:
            self._begin(rows, tokens, took)
        call, row, token, queueing = self._values
        expected = max(call + row * rows + token * tokens + queueing * behind, _CLOCK_S)
        off = abs(took - expected) / expected
        # Errors count as shares: a lone row says as much about the price of a call as a full one does.
        weight = 1 / max(expected, took) ** 2
        usual = self.spread
        if off > _ODD * usual:
            weight *= _ODD * usual / off
            off = (_ODD + 1) * usual
        self.spread = max(usual + 0.06 * (off - usual), _LEAST_SPREAD)
        by_rows, by_tokens, by_behind, by_took = weight * rows, weight * tokens, weight * behind, weight * took
        seen = (
            weight, by_rows, by_tokens, by_behind,
            by_rows * rows, by_rows * tokens, by_rows * behind,
            by_tokens * tokens, by_tokens * behind,
            by_behind * behind,
            by_took, by_took * rows, by_took * tokens, by_took * behind,
        )  # fmt: skip
        self._sums = [_KEPT * old + new for old, new in zip(self._sums, seen, strict=True)]
        self.calls += 1
        self._unsolved += 1
        if self._unsolved >= _SOLVED_EVERY or self.calls < _MEMORY // 4:
            self._unsolved = 0
            self._solve()

    def report(self) -> dict[str, float]:
        """Return the numbers for people: milliseconds per call and row, microseconds per padded token."""
        call, row, token, queueing = self._values
        return {
            "call_ms": round(call * 1e3, 4), "row_ms": round(row * 1e3, 5), "padded_token_us": round(token * 1e6, 4),
            "queueing": round(queueing, 2), "calls": self.calls,
        }  # fmt: skip

    def _begin(self, rows: int, tokens: int, took: float) -> None:
        # Half of the first call's time is put down to the call, half to its tokens, as if each had been seen once.
        self._values = [took / 2, 0.0, took / 2 / max(tokens, 1), 1.0]
        sizes = (1.0, rows, max(tokens, 1), took / 4)
        for i, (size, value) in enumerate(zip(sizes, self._values, strict=True)):
            self._sums[_AT[i][i]] = (size / took) ** 2
            self._sums[10 + i] = (size / took) ** 2 * value

    def _solve(self) -> None:
        """Find the best numbers within their bounds; what the calls do not tell apart stays near what it was."""
        values, sums = self._values, self._sums
        products, moments = [[sums[at] for at in row] for row in _AT], sums[10:]
        free = [i for i in range(4) if products[i][i] >= _KNOWN[i]]
        while free:
            held = [i for i in range(4) if i not in free]
            rows = []
            for i in free:
                of = products[i]
                inertia = _INERTIA * of[i]
                # In doubt a row's price is its tokens': cutting by length is what tells the two apart.
                was = 0.0 if i == _ROW else values[i]
                right = moments[i] - sum(of[j] * values[j] for j in held) + inertia * was
                rows.append([of[j] + (inertia if j == i else 0.0) for j in free] + [right])
            found = _eliminate(rows)
            bounded = [min(max(value, 0.0), _MAX[i]) for i, value in zip(free, found, strict=True)]
            if found == bounded:
                for i, value in zip(free, found, strict=True):
                    values[i] = value
                return
            # The one that is furthest out stays at its bound, the others share what that leaves.
            _, worst, bound = max(
                (abs(value - bound) * products[i][i] ** 0.5, i, bound)
                for i, value, bound in zip(free, found, bounded, strict=True)
            )
            values[worst] = bound
            free.remove(worst)


def _eliminate(rows: list[list[float]]) -> list[float]:
    """Solve a small positive definite system; each row ends with its right side."""
    n = len(rows)
    for i, pivot in enumerate(rows):
        for below in rows[i + 1 :]:
            factor = below[i] / pivot[i]
            for j in range(i, n + 1):
                below[j] -= factor * pivot[j]
    found = [0.0] * n
    for i in range(n - 1, -1, -1):
        row = rows[i]
        found[i] = (row[n] - sum(row[j] * found[j] for j in range(i + 1, n))) / row[i]
    return found
