"""Drift detectors of other libraries, each in its own environment: after how many texts do they report a change?

``python drift_detectors.py DETECTOR FOLDER`` reads ``rows.json`` and prints JSON. Each detector is used as its
documentation says, on windows of ``WINDOWS`` texts: with its own threshold, and with the threshold that thirty days of
windows without a change do not exceed.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WINDOWS = {"tabular": 200, "embeddings_ks": 200, "embeddings_mmd": 200, "evidently": 500, "nannyml": 500}
"""Texts in a window. Evidently's method needs hundreds, and NannyML advises against smaller chunks."""
_MANY, _FEW = 5_000, 1_000
"""Texts in the reference: for tests by column, and for methods with quadratic cost or a trained classifier."""
_NUMBERS = ("token_length", "unknown_token_ratio", "top_score", "unusual_word_ratio")
_EMBEDDED = 32

Rows = NDArray[np.int64]
"""Numbers of rows."""


class Told(NamedTuple):
    """A detector's result for one window: its distance, and whether it alarms by its own threshold."""

    distance: float
    alarms: bool


Detector = Callable[[Sequence[Rows]], list[Told]]


class Data:
    """Rows by column; the reference, stationary traffic and each change have a range of them."""

    def __init__(self, folder: Path) -> None:
        content = json.loads((folder / "rows.json").read_text())
        self.columns: dict[str, list[Any]] = content["columns"]
        self.texts: list[str] = self.columns.pop("text")
        self.ranges = {name: np.arange(*bounds) for name, bounds in content["ranges"].items()}
        self.runs, self.most, self.stationary = content["runs"], content["most"], content["stationary"]

    def embedded(self) -> NDArray[np.float32]:
        """Embeddings of all texts: latent semantic analysis of letters, fitted on the reference."""
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 3), lowercase=False, max_features=20_000)
        reduced = TruncatedSVD(_EMBEDDED, random_state=1)
        reduced.fit(vectors.fit_transform([self.texts[i] for i in self.ranges["reference"]]))
        found: NDArray[np.float32] = reduced.transform(vectors.transform(self.texts)).astype(np.float32)
        return found

    def table(self) -> tuple[NDArray[np.float32], dict[int, None]]:
        """All columns that vary as numbers, and which of them are categories."""
        columns, categories = [], {}
        known = self.ranges["reference"][:_MANY]
        for name, values in self.columns.items():
            if len({values[i] for i in known}) == 1:  # its tests do not accept them
                continue
            if name not in _NUMBERS:
                categories[len(columns)] = None
            if isinstance(values[0], str):
                names = {name: number for number, name in enumerate(dict.fromkeys(values))}
                values = [names[value] for value in values]
            columns.append(values)
        return np.array(columns, dtype=np.float32).T, categories


def tabular(data: Data) -> Detector:
    """alibi-detect: Kolmogorov-Smirnov and chi-squared by column, Bonferroni over columns, p = 0.05."""
    from alibi_detect.cd import TabularDrift

    rows, categories = data.table()
    known = rows[data.ranges["reference"][:_MANY]]
    return _of_p_values(TabularDrift(known, p_val=0.05, categories_per_feature=categories), rows)


def embeddings_ks(data: Data) -> Detector:
    """alibi-detect: Kolmogorov-Smirnov by component of the embedding, Bonferroni, p = 0.05."""
    from alibi_detect.cd import KSDrift

    rows = data.embedded()
    return _of_p_values(KSDrift(rows[data.ranges["reference"][:_MANY]], p_val=0.05), rows)


def _of_p_values(detector: Any, rows: NDArray[np.float32]) -> Detector:
    def tell(window: Rows) -> Told:
        found = detector.predict(rows[window])["data"]
        return Told(-float(np.min(found["p_val"])), bool(found["is_drift"]))

    return lambda windows: [tell(window) for window in windows]


def embeddings_mmd(data: Data) -> Detector:
    """alibi-detect: maximum mean discrepancy of embeddings, a hundred permutations, p = 0.05."""
    import torch
    from alibi_detect.cd import MMDDrift

    torch.set_num_threads(1)
    rows = data.embedded()
    known = rows[data.ranges["reference"][:_FEW]]
    # Its threshold hardly depends on the window, and a hundred permutations take a second, so the mean of thirty is
    # used.
    random = np.random.default_rng(2)
    detector = MMDDrift(known, backend="pytorch", p_val=0.05, n_permutations=100)
    drawn = [random.choice(data.ranges["stationary"], WINDOWS["embeddings_mmd"], replace=False) for _ in range(30)]
    threshold = float(np.mean([detector.score(rows[window])[2] for window in drawn]))
    distances = MMDDrift(known, backend="pytorch", p_val=0.05, n_permutations=1)

    def tell(window: Rows) -> Told:
        distance = float(distances.score(rows[window])[1])
        return Told(distance, distance > threshold)

    return lambda windows: [tell(window) for window in windows]


def evidently(data: Data) -> Detector:
    """Evidently: a classifier of words tells the window from the reference better than 95 % of random ones."""
    import pandas as pd
    from evidently.legacy.calculations.stattests.text_content_drift import perc_text_content_drift_stat_test
    from evidently.legacy.utils import data_drift_utils

    # It depends only on the sizes, since its seeds are fixed, and takes most of the time.
    found: dict[int, float] = {}
    slowly = data_drift_utils.roc_auc_random_classifier_percentile

    def once(y_test: Any, **options: Any) -> float:
        if len(y_test) not in found:
            found[len(y_test)] = slowly(y_test, **options)
        return found[len(y_test)]

    data_drift_utils.roc_auc_random_classifier_percentile = once
    reference = pd.Series([data.texts[i] for i in data.ranges["reference"][:_FEW]])

    def tell(window: Rows) -> Told:
        now = pd.Series([data.texts[i] for i in window])
        done = perc_text_content_drift_stat_test(reference, now, "text", 0.95)
        return Told(float(done.drift_score), bool(done.drifted))

    return lambda windows: [tell(window) for window in windows]


def nannyml(data: Data) -> Detector:
    """NannyML: Jensen-Shannon distance by column, an alarm beyond three deviations of the reference's own chunks."""
    import nannyml as nml
    import pandas as pd

    size = WINDOWS["nannyml"]
    frame = pd.DataFrame(data.columns)
    for name in frame:
        if name not in _NUMBERS:
            frame[name] = frame[name].astype("category")
    calculator = nml.UnivariateDriftCalculator(
        column_names=list(frame), chunk_size=size,
        categorical_methods=["jensen_shannon"], continuous_methods=["jensen_shannon"],
    )  # fmt: skip
    calculator.fit(frame.iloc[data.ranges["reference"]].reset_index(drop=True))

    def tell(windows: Sequence[Rows]) -> list[Told]:
        result = calculator.calculate(frame.iloc[np.concatenate(windows)].reset_index(drop=True))
        before, after = (result.filter(period=period).to_df() for period in ("reference", "analysis"))
        distances = np.full(len(windows), -np.inf)
        alarms = np.zeros(len(windows), dtype=bool)
        for name in frame:
            of = (name, "jensen_shannon", "value")
            spread = before[of].std() or 1e-9
            distances = np.maximum(distances, ((after[of] - before[of].mean()) / spread).to_numpy())
            alarms |= after[(name, "jensen_shannon", "alert")].to_numpy(dtype=bool)
        return [Told(float(distance), bool(alarm)) for distance, alarm in zip(distances, alarms, strict=True)]

    return tell


DETECTORS = {one.__name__: one for one in (tabular, embeddings_ks, embeddings_mmd, evidently, nannyml)}


def judged(data: Data, detector: Detector, size: int) -> dict[str, Any]:
    """Return how often stationary windows alarm and, by change, after how many texts each run does (null: never)."""
    random = np.random.default_rng(1)

    def windows(of: str, number: int) -> list[Rows]:
        return [random.choice(data.ranges[of], size, replace=False) for _ in range(number)]

    quiet = detector(windows("stationary", data.stationary // size))
    threshold = max(told.distance for told in quiet)
    found: dict[str, Any] = {}
    for change in data.ranges.keys() - {"reference", "stationary"}:
        own: list[int | None] = [None] * data.runs
        budget: list[int | None] = [None] * data.runs
        for step in range(1, data.most // size + 1):
            left = [run for run in range(data.runs) if own[run] is None or budget[run] is None]
            if not left:
                break
            for run, told in zip(left, detector(windows(change, len(left))), strict=True):
                if told.alarms and own[run] is None:
                    own[run] = step * size
                if told.distance > threshold and budget[run] is None:
                    budget[run] = step * size
        found[change] = {"own": own, "budget": budget}
    return {"window": size, "windows": len(quiet), "alarms": sum(told.alarms for told in quiet), "changes": found}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    wanted, of = DETECTORS[sys.argv[1]], Data(Path(sys.argv[2]))
    json.dump(judged(of, wanted(of), WINDOWS[sys.argv[1]]), sys.stdout)
