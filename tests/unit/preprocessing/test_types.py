from __future__ import annotations

import numpy as np

from preprocessing.types import Encoded, ParsedRequest, Prepared


def test_prepared_sums_its_rows() -> None:
    """For the metrics of a request."""
    rows = [Encoded(np.arange(3), truncated=True), Encoded(np.arange(2))]
    prepared = Prepared(rows, ParsedRequest(["x", "y"], is_batch=True))
    assert (5, 1, True) == (prepared.n_tokens, prepared.n_truncated, prepared.is_batch)
