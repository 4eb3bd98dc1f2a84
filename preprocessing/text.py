"""Clean-up of decoded text, as in `transformers`."""

from __future__ import annotations

from typing import Final

_SPACED: Final = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


def clean_up(text: str) -> str:
    """Remove the spaces that decoding leaves before punctuation and English contractions."""
    for spaced in _SPACED:
        text = text.replace(spaced, spaced.strip())
    return text
