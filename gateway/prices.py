"""Learns from calls to Triton what a call, a row and a padded token cost. Pure: no clock, no loop.

The time of a call is modelled as

    call + row · rows + token · padded tokens + queueing · (seconds that another call was in front of it)

with four numbers that are never negative. They are fitted by recursive least squares, with exponential forgetting. A
call that took far longer than expected (a pause of the machine) counts little, unless the next ones do so as well.
Numbers that the calls do not tell apart (rows and tokens, if all texts have the same length) stay as they were.

On a CPU nearly all of the time is spent on padded tokens, on a GPU on the call. The cutting of batches depends on it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

_MEMORY: Final = 64
"""The number of calls after which a call counts a third (1/e)."""
_KEPT: Final = 1 - 1 / _MEMORY
_AT: Final = ((0, 1, 2, 3), (1, 4, 5, 6), (2, 5, 7, 8), (3, 6, 8, 9))
"""The index in the sums of the product of two observed values."""
_SOLVE_EVERY: Final = 8
"""The prices are computed anew after 8 calls."""
_INERTIA: Final = 1e-4
"""The weight of a price's old value (regularization), as a share of what is known of it."""

_KNOWN_CALLS: Final = 16
"""The number of calls after which prices are good enough to judge demand and deadlines by them."""
_ROW: Final = 1
_MAX: Final = (float("inf"), float("inf"), float("inf"), 1.0)
_KNOWN: Final = (1e-12, 1e-12, 1e-12, 0.1)
"""What must be known of a price before it is fitted; for ``queueing``, as much as one call shows that another call was
in front of for a third of its time.
"""
_CLOCK_S: Final = 1e-6

_OUTLIER: Final = 3.0
"""A call with an error of more than 3 times the usual one counts less."""
_MIN_SPREAD: Final = 0.01


class Prices:
    """The prices of one batcher's calls, in seconds; ``queueing`` is a share.

    ``queueing`` is 1 if a server works on one call after the other, and 0 if it works on several at a time.
    """

    __slots__ = ("_sums", "_unsolved", "call", "calls", "queueing", "row", "spread", "token")

    def __init__(self) -> None:
        self.call = 1e-3
        """Seconds that a call costs, regardless of its content."""
        self.row = 0.0
        """Seconds that a row costs, regardless of its length."""
        self.token = 5e-6
        """Seconds that a token costs, padding included."""
        self.queueing = 1.0
        """The share of the remaining time of the call in front that a call waits for at a busy server."""
        # Weighted sums over the calls: the upper triangle of the products of observed values, then those with the time.
        self._sums = [0.0] * 14
        self._unsolved = 0
        self.calls = 0
        """The number of calls that were learned from."""
        self.spread = 0.5
        """The usual error of an expected time, as a share of it."""

    @property
    def are_known(self) -> bool:
        """True if enough calls were learned from to judge demand and deadlines by the prices."""
        return self.calls >= _KNOWN_CALLS

    def expect(self, rows: float, tokens: float) -> float:
        """Return the seconds a call of ``rows`` and (padded) ``tokens`` takes at an idle server."""
        return self.call + self.row * rows + self.token * tokens

    def learn(self, rows: int, tokens: int, behind: float, took: float) -> None:
        """Learn from a call that took ``took`` seconds; another call was in front of it for ``behind`` seconds."""
        took = max(took, _CLOCK_S)
        if not self.calls:
            self._begin(rows, tokens, took)
        expected = max(self.expect(rows, tokens) + self.queueing * behind, _CLOCK_S)
        off = abs(took - expected) / expected
        # Errors count as shares: a call of one row says as much about the price of a call as a full one.
        weight = 1 / max(expected, took) ** 2
        usual = self.spread
        if off > _OUTLIER * usual:
            weight *= _OUTLIER * usual / off
            off = (_OUTLIER + 1) * usual
        self.spread = max(usual + 0.06 * (off - usual), _MIN_SPREAD)
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
        if self._unsolved >= _SOLVE_EVERY or self.calls < _MEMORY // 4:
            self._unsolved = 0
            self.call, self.row, self.token, self.queueing = self._solved()

    def report(self) -> dict[str, float]:
        """Return the numbers for people: milliseconds per call and row, microseconds per padded token."""
        return {
            "call_ms": round(self.call * 1e3, 4), "row_ms": round(self.row * 1e3, 5),
            "padded_token_us": round(self.token * 1e6, 4), "queueing": round(self.queueing, 2), "calls": self.calls,
        }  # fmt: skip

    def _begin(self, rows: int, tokens: int, took: float) -> None:
        # Assumes that half of the first call's time is due to the call and half to its tokens.
        values = took / 2, 0.0, took / 2 / max(tokens, 1), 1.0
        self.call, self.row, self.token, self.queueing = values
        sizes = (1.0, rows, max(tokens, 1), took / 4)
        for i, (size, value) in enumerate(zip(sizes, values, strict=True)):
            self._sums[_AT[i][i]] = (size / took) ** 2
            self._sums[10 + i] = (size / took) ** 2 * value

    def _solved(self) -> list[float]:
        """Return the prices, fitted within their bounds; those that the calls do not tell apart stay near the old."""
        values, sums = [self.call, self.row, self.token, self.queueing], self._sums
        products, moments = [[sums[at] for at in row] for row in _AT], sums[10:]
        free = [i for i in range(4) if products[i][i] >= _KNOWN[i]]
        while free:
            held = [i for i in range(4) if i not in free]
            left, right = [], []
            for i in free:
                of = products[i]
                inertia = _INERTIA * of[i]
                # In doubt, time is due to tokens: calls that are cut by length will tell the two apart.
                was = 0.0 if i == _ROW else values[i]
                left.append([of[j] + (inertia if j == i else 0.0) for j in free])
                right.append(moments[i] - sum(of[j] * values[j] for j in held) + inertia * was)
            found: list[float] = np.linalg.solve(left, right).tolist()
            bounded = [min(max(value, 0.0), _MAX[i]) for i, value in zip(free, found, strict=True)]
            if found == bounded:
                for i, value in zip(free, found, strict=True):
                    values[i] = value
                break
            # The price that exceeds its bound most is fixed there, and the others are fitted again.
            _, worst, bound = max(
                (abs(value - bound) * products[i][i] ** 0.5, i, bound)
                for i, value, bound in zip(free, found, bounded, strict=True)
            )
            values[worst] = bound
            free.remove(worst)
        return values
