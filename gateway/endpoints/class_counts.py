"""Counts rows and tokens by class of priority. Pure.

Nearly all work is of class default, so that class is never counted: it is the total without the other classes. A
request of class default then costs two additions.
"""

from __future__ import annotations

from gateway.trace import BATCH, CLASSES, CRITICAL


class ClassCounts:
    """Rows and tokens, in total and of each class other than default."""

    __slots__ = ("class_rows", "class_tokens", "rows", "tokens")

    def __init__(self) -> None:
        self.rows = self.tokens = 0
        self.class_rows = [0] * len(CLASSES)
        """Rows by rank; the entry of class default stays 0."""
        self.class_tokens = [0] * len(CLASSES)

    def rows_up_to(self, rank: int) -> int:
        """Return the rows of a class and of all more important ones."""
        if rank == CRITICAL:
            return self.class_rows[CRITICAL]
        return self.rows if rank == BATCH else self.rows - self.class_rows[BATCH]

    def tokens_up_to(self, rank: int) -> int:
        """Return the tokens of a class and of all more important ones."""
        if rank == CRITICAL:
            return self.class_tokens[CRITICAL]
        return self.tokens if rank == BATCH else self.tokens - self.class_tokens[BATCH]
