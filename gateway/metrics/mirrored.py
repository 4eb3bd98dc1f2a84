"""Mirrored answers: which label of a version means which of another.

Public: ``deploy`` may import it, for the labels of rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


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
