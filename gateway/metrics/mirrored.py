"""Mirrored answers: which label of a version means which of another, and the groups that are counted apart.

A version may be wrong about one group of requests alone: about long texts, about one language, or whenever one label is
right. Such a fault is small among all answers and large in its group. Groups overlap and are never crossed.

Public: ``deploy`` may import it, for the gate of rollouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gateway.metrics import texts
from gateway.metrics.declared import MAX_LABEL_CHARS
from gateway.trace import Trace

_MOST_LABELS: Final = 30
"""Labels of a model that are groups of their own, the first ones."""
_LENGTHS: Final = range(3, 10)
"""Texts of up to 8, 16 … 512 tokens are groups, and longer ones."""
GROUPS: Final = _MOST_LABELS + len(_LENGTHS) + 1 + len(texts.LANGUAGES)
"""So many groups there are at most."""


def groups_of(trace: Trace, labels: Sequence[str]) -> Iterator[str]:
    """Return the groups of an answered request of one text; none of others. ``labels``: those of its version."""
    if len(found := texts.texts_of((trace,))) != 1:
        return
    length = max((trace.tokens - 1).bit_length(), _LENGTHS.start)
    yield f"up to {2**length} tokens" if length in _LENGTHS else "more tokens"
    text = texts.beginning(found[0])
    yield f"language {texts.language(text, texts.words_of(text))}"
    for result in texts.results_of(trace):
        label = result.get("label") if isinstance(result, Mapping) else None
        if isinstance(label, str) and label in labels[:_MOST_LABELS]:
            yield f"label {label[:MAX_LABEL_CHARS]}"


def renamed(stable: Sequence[str], canary: Sequence[str]) -> dict[str, str]:
    """Return the labels of ``canary`` that mean another label of ``stable``, which is at the same position.

    A name that both have means itself, at whatever position: so an order of its own changes nothing. Of the names that
    tokens have (``B-PER``), those of whole entities (``PER``) are returned as well.
    """
    found = {
        new: old for new, old in zip(canary, stable, strict=False) if new not in stable and old not in canary
    }  # fmt: skip
    return found | {
        new[2:]: old[2:] for new, old in found.items() if new[:2] in ("B-", "I-") and new[:2] == old[:2]
    }  # fmt: skip


def with_names(answer: object, names: Mapping[str, str]) -> object:
    """Return an answer with its labels replaced by what they mean (``renamed``); itself if there are no ``names``."""
    if not names:
        return answer
    if isinstance(answer, list | tuple):
        return [with_names(one, names) for one in answer]
    if not isinstance(answer, Mapping):
        return answer
    return {key: _with_names(key, value, names) for key, value in answer.items()}


def _with_names(key: object, value: object, names: Mapping[str, str]) -> object:
    if key in ("label", "entity", "entity_group"):
        return names.get(value, value) if isinstance(value, str) else value
    if key == "scores" and isinstance(value, Mapping):
        return {names.get(label, label): score for label, score in value.items()}
    return with_names(value, names) if key in ("results", "entities") else value
