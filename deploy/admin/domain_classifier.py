"""A domain classifier: do two samples of texts differ, and in which words and texts? Pure: texts in, findings out.

Called by ``drift explain``. A logistic regression on words and letter trigrams is trained on three quarters of the
texts and tested on the fourth, each quarter in turn (4-fold cross-validation). The AUC is how often it ranks a text of
the later sample above one of the earlier. It is compared with the AUC of the same scores with shuffled labels
(permutation test): if that is as high, the samples do not differ. A repeated text counts once, and is used either for
training or for testing, never for both.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_QUARTERS: Final = 4
"""Parts of the cross-validation."""
_SHUFFLES: Final = 1000
"""Permutations: enough for their 99 % quantile."""
_STEPS: Final = 150
"""Gradient steps of the training."""
_RIDGE: Final = 1e-3
"""Weight of the L2 penalty."""
_MAX_FEATURES: Final = 20_000
_LEAST_TEXTS: Final = 3
"""Texts that must contain a word or trigram for it to be a feature."""
_MAX_CHARS: Final = 2000
"""Characters of a text that are used."""
_SIGMAS: Final = 4.5
"""Standard deviations by which a word's share must move to be reported: of thousands of words, none by chance."""
_LEAST_REPORTED: Final = 5
"""Texts that must contain a word for it to be reported."""
_MAX_WORDS: Final = 12
_MAX_EXAMPLES: Final = 5
_OFTEN: Final = 0.01
"""Share of a sample that a repeated text must have to be reported."""
_WORD: Final = re.compile(r"\[\w+\]|[^\W\d_]+|\d+")


@dataclass(frozen=True, slots=True)
class Word:
    """A word, and the shares of the earlier and the later texts that contain it."""

    word: str
    before: float
    now: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the later texts differ from the earlier ones.

    ``auc``: how often a later text is ranked above an earlier one; ``low`` and ``high``: its 95 % confidence interval.
    ``chance``: the AUC that 99 of 100 permutations stay below.
    """

    before: int
    now: int
    auc: float
    low: float
    high: float
    chance: float
    rose: tuple[Word, ...]
    fell: tuple[Word, ...]
    often: tuple[Word, ...]
    """Whole texts that were repeated much more, or much less often than before."""
    like_now: tuple[str, ...]
    """Later texts that are least like the earlier ones, the clearest first."""
    like_before: tuple[str, ...]
    """Earlier texts that are least like the later ones, the clearest first."""

    @property
    def is_apart(self) -> bool:
        """True if the classifier distinguishes the texts better than by chance."""
        return self.auc > self.chance

    @property
    def is_nothing(self) -> bool:
        """True if neither the classifier nor a single word or text shows a difference."""
        return not (self.is_apart or self.rose or self.fell or self.often)

    @property
    def share(self) -> float:
        """Estimated share of later texts of another kind, if the classifier recognises these without errors."""
        return max(0.0, 2 * self.auc - 1)


def compare(before: Sequence[str], now: Sequence[str]) -> Comparison:
    """Return how the texts of ``now`` differ from those of ``before``. The result is reproducible."""
    texts = [*dict.fromkeys(before), *dict.fromkeys(now)]
    is_now = np.arange(len(texts)) >= len(dict.fromkeys(before))
    quarter = np.array([zlib.crc32(text.encode("utf-8", "replace")) % _QUARTERS for text in texts])
    rows = [_features(text[:_MAX_CHARS]) for text in texts]
    matrix = _Matrix.of(rows)
    scores = np.zeros(len(texts))
    for one in range(_QUARTERS):
        learned = quarter != one
        if is_now[learned].any() and not is_now[learned].all():
            scores[~learned] = matrix.scores(_learn(matrix, is_now, learned))[~learned]
    groups = [np.flatnonzero(quarter == one) for one in range(_QUARTERS)]
    groups = [group for group in groups if 0 < is_now[group].sum() < len(group)]
    ranks = [_ranks(scores[group]) for group in groups]
    later = [is_now[group] for group in groups]
    auc = _auc(ranks, later)
    random = np.random.default_rng(0)
    shuffled = [_auc(ranks, [random.permutation(one) for one in later]) for _ in range(_SHUFFLES)]
    spread = _spread(auc, int(is_now.sum()), int((~is_now).sum()))
    rose, fell = _moved([set(_words(text)) for text in texts], is_now)
    return Comparison(
        len(before), len(now), auc, max(0.0, auc - 1.96 * spread), min(1.0, auc + 1.96 * spread),
        float(np.quantile(shuffled, 0.99)), rose, fell, _often(before, now),
        _examples(texts, scores, is_now, sign=1), _examples(texts, scores, is_now, sign=-1),
    )  # fmt: skip


def _words(text: str) -> list[str]:
    return [word if word.startswith("[") else word.lower() for word in _WORD.findall(text[:_MAX_CHARS])]


def _features(text: str) -> set[str]:
    """Return lower-case words, and trigrams of unchanged characters for case and scripts without spaces."""
    plain = " ".join(text.split())
    return {f"w{word}" for word in _words(plain)} | {f"g{plain[i : i + 3]}" for i in range(len(plain) - 2)}


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A sparse matrix of texts and features; each row has the Euclidean length 1."""

    rows: Ints
    columns: Ints
    values: Floats
    shape: tuple[int, int]

    @classmethod
    def of(cls, texts: Sequence[set[str]]) -> _Matrix:
        often = Counter[str]()
        for features in texts:
            often.update(features)
        kept = sorted((one for one, n in often.items() if n >= _LEAST_TEXTS), key=lambda one: (-often[one], one))
        at = {feature: number for number, feature in enumerate(kept[:_MAX_FEATURES])}
        found = [sorted(at[one] for one in features if one in at) for features in texts]
        rows = np.repeat(np.arange(len(texts)), [len(one) for one in found])
        columns = np.array([column for one in found for column in one], dtype=np.intp)
        rare = np.array([1 + math.log(len(texts) / often[feature]) for feature in at])
        values = rare[columns] if len(columns) else np.zeros(0)
        length = np.sqrt(np.bincount(rows, values * values, len(texts)))
        return cls(rows, columns, values / length[rows], (len(texts), len(at)))

    def scores(self, weights: Floats) -> Floats:
        return np.bincount(self.rows, self.values * weights[self.columns], self.shape[0]).astype(np.float64)

    def back(self, texts: Floats) -> Floats:
        return np.bincount(self.columns, self.values * texts[self.rows], self.shape[1]).astype(np.float64)


def _learn(matrix: _Matrix, is_now: NDArray[np.bool_], learned: NDArray[np.bool_]) -> Floats:
    """Return the weights of a ridge logistic regression, by accelerated gradient steps. Both samples weigh the same."""
    share = is_now[learned].mean()
    weights = np.where(is_now, 0.5 / share, 0.5 / (1 - share)) * learned / learned.sum()
    found = ahead = np.zeros(matrix.shape[1])
    step = 1.0 / (0.25 * _largest(matrix, weights) + _RIDGE)
    for number in range(_STEPS):
        likely = 1 / (1 + np.exp(-matrix.scores(ahead)))
        following = ahead - step * (matrix.back(weights * (likely - is_now)) + _RIDGE * ahead)
        ahead = following + number / (number + 3) * (following - found)
        found = following
    return found


def _largest(matrix: _Matrix, weights: Floats) -> float:
    """Return an upper bound of the largest eigenvalue (power iteration, plus a tenth): it limits the step size."""
    vector, length = np.ones(matrix.shape[1]), 1.0
    for _ in range(8):
        vector = matrix.back(weights * matrix.scores(vector / length))
        length = max(float(np.linalg.norm(vector)), 1e-12)
    return 1.1 * length


def _auc(ranks: Sequence[Floats], later: Sequence[NDArray[np.bool_]]) -> float:
    """Return how often a later text ranks above an earlier one of the same quarter; 0.5 if there are no pairs."""
    pairs = above = 0.0
    for rank, is_now in zip(ranks, later, strict=True):
        n = int(is_now.sum())
        above += float(rank[is_now].sum()) - n * (n + 1) / 2
        pairs += n * (len(rank) - n)
    return above / pairs if pairs else 0.5


def _ranks(values: Floats) -> Floats:
    """Return the ranks from 1 on; equal values get their mean rank."""
    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: Floats = (ends - (counts - 1) / 2)[at]
    return found


def _spread(auc: float, n: int, m: int) -> float:
    """Return the standard error of an AUC (Hanley and McNeil 1982)."""
    if not n or not m:
        return 0.5
    one, other = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    return math.sqrt(
        max(0.0, auc * (1 - auc) + (n - 1) * (one - auc * auc) + (m - 1) * (other - auc * auc)) / (n * m)
    )  # fmt: skip


def _moved(words: Sequence[set[str]], is_now: NDArray[np.bool_]) -> tuple[tuple[Word, ...], tuple[Word, ...]]:
    """Return the words that rose and fell by more than noise, the largest change first."""
    before, now = Counter[str](), Counter[str]()
    for one, later in zip(words, is_now.tolist(), strict=True):
        (now if later else before).update(one)
    m, n = int((~is_now).sum()), int(is_now.sum())
    return _shifted(before, now, max(m, 1), max(n, 1))


def _shifted(
    before: Mapping[str, int], now: Mapping[str, int], m: int, n: int
) -> tuple[tuple[Word, ...], tuple[Word, ...]]:
    found = []
    for word in before.keys() | now.keys():
        one = Word(word, before.get(word, 0) / m, now.get(word, 0) / n)
        texts = before.get(word, 0) + now.get(word, 0)
        both = (texts + 1) / (m + n + 2)
        if texts >= _LEAST_REPORTED and abs(one.now - one.before) > _SIGMAS * math.sqrt(
            both * (1 - both) * (1 / m + 1 / n)
        ):
            found.append(one)
    found.sort(key=lambda one: (-abs(one.now - one.before), one.word))
    return (
        tuple([one for one in found if one.now > one.before][:_MAX_WORDS]),
        tuple([one for one in found if one.now < one.before][:_MAX_WORDS]),
    )  # fmt: skip


def _often(before: Sequence[str], now: Sequence[str]) -> tuple[Word, ...]:
    one, other = Counter(before), Counter(now)
    rose, fell = _shifted(one, other, max(len(before), 1), max(len(now), 1))
    return tuple(found for found in (*rose, *fell) if max(found.before, found.now) >= _OFTEN)[:_MAX_EXAMPLES]


def _examples(texts: Sequence[str], scores: Floats, is_now: NDArray[np.bool_], *, sign: int) -> tuple[str, ...]:
    of = np.flatnonzero(is_now if sign > 0 else ~is_now)
    best = of[np.argsort(-sign * scores[of], kind="stable")][:_MAX_EXAMPLES]
    return tuple(texts[at] for at in best.tolist())
