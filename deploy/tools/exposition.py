"""Reads the labels of a sample in Prometheus' text format."""

from __future__ import annotations

import re
from typing import Final

LABELS: Final = r'\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\}'
"""The pattern of a sample's labels, in their braces; values may contain braces, and escaped quotes."""
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\(.)")


def labels(written: str) -> dict[str, str]:
    """Return the labels of a sample by name, from what stands between its braces."""
    return {name: _ESCAPE.sub(_unescaped, value) for name, value in _LABEL.findall(written)}


def _unescaped(found: re.Match[str]) -> str:
    return {"n": "\n"}.get(found[1], found[1])
