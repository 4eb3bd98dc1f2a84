"""What `transformers` does to decoded text."""

from __future__ import annotations

from typing import Final

_SPACED: Final = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


def clean_up(text: str) -> str:
    """Text without the spaces that decoding leaves in front of punctuation and English contractions."""
    for spaced in _SPACED:
        text = text.replace(spaced, spaced.strip())
    return text
