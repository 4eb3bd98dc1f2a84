"""The words of texts as they are read, for the tests of what counts them."""

from __future__ import annotations

from itertools import pairwise

from gateway.metrics.wording import TextWords


def names(found: TextWords) -> list[set[str]]:
    """The words of each text."""
    return [{found.name(i) for i in range(first, last)} for first, last in pairwise(found.firsts.tolist())]
