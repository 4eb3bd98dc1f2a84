"""Carries model sync's reason why a model is not loaded to the gateways, through Triton's repository index.

Model sync does not know the gateways, but both know Triton. For a model that it cannot load, sync writes a folder under
the model's name that asks for a backend which does not exist; the name of that backend is the reason. Triton refuses to
load the folder and shows the name in its index. Pure: reason to name, index to reason.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

_FINAL: Final = "model sync refuses the model: "
_TEMPORARY: Final = "model sync cannot load the model yet: "
_FOUND: Final = re.compile(f"({_FINAL}|{_TEMPORARY})([^'\n]*)")
# Without quotes, which would end the name; slashes, which would make it a path; and colons, which separate the parts of
# Triton's messages.
_PLAIN: Final = " !#$&()*+,-.;<=>?@[]^_{|}~"
_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why sync has not loaded a model. ``is_final``: a retry fails again until the model or its entry is changed."""

    reason: str
    is_final: bool

    def __str__(self) -> str:
        """Return the verdict as a sentence."""
        return f"{_FINAL if self.is_final else _TEMPORARY}{self.reason}"


def encode(verdict: Verdict) -> str:
    """Return the backend name that carries the verdict; a long reason is cut."""
    words = " ".join("".join(c if c.isprintable() else " " for c in verdict.reason).split())
    return (_FINAL if verdict.is_final else _TEMPORARY) + quote(words[:_MAX], safe=_PLAIN)


def decode(text: str) -> Verdict | None:
    """Return the verdict in the reason of Triton's index; None if the reason is Triton's own."""
    found = _FOUND.search(text)
    return Verdict(unquote(found[2]), found[1] == _FINAL) if found else None


def config(name: str, verdict: Verdict) -> str:
    """Return the ``config.pbtxt`` of the folder that carries the verdict; the folder also needs a version."""
    return f'name: "{name}"\nbackend: "{encode(verdict)}"\n'
