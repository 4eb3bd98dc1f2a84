"""What model sync says about a model that Triton does not have, in the one place where every gateway looks already.

Sync cannot talk to gateways, and a gateway cannot know which Tritons there are. Both know Triton: for a model that it
cannot load, sync writes a folder under the model's name that asks for a backend which does not exist and whose name is
the reason. Triton refuses that, and keeps the name in its repository index. Pure: reason to name, index to reason.

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
# Without quotes, which would end the name; slashes, which would make it a path; and colons, by which frames of Triton's
# messages are told from what they say.
_PLAIN: Final = " !#$&()*+,-.;<=>?@[]^_{|}~"
_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why sync has not loaded a model. ``is_final``: another try ends alike until the model or its entry is changed."""

    reason: str
    is_final: bool

    def __str__(self) -> str:
        """Return it as people read it."""
        return f"{_FINAL if self.is_final else _TEMPORARY}{self.reason}"


def encode(verdict: Verdict) -> str:
    """Return the name of the backend that tells it; a long reason is cut."""
    words = " ".join("".join(c if c.isprintable() else " " for c in verdict.reason).split())
    return (_FINAL if verdict.is_final else _TEMPORARY) + quote(words[:_MAX], safe=_PLAIN)


def decode(told: str) -> Verdict | None:
    """Return the verdict in what Triton's index says of a model; None if Triton speaks for itself."""
    found = _FOUND.search(told)
    return Verdict(unquote(found[2]), found[1] == _FINAL) if found else None


def config(name: str, verdict: Verdict) -> str:
    """Return the ``config.pbtxt`` of the folder that tells it; the folder needs a version as well."""
    return f'name: "{name}"\nbackend: "{encode(verdict)}"\n'
