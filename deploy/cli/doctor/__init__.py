"""The checks of ``triton-gateway doctor``: this machine (``local``) or a cluster (``kube``), each a sentence and a fix.

Called by the command ``doctor``. A check changes nothing and never raises: something that cannot be read is a finding
too, with a remedy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "missing"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ``missing``: something does not work; ``note``: an optional part is limited."""

    subject: str
    state: State
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        """Return it as text, with its remedy below it."""
        mark = {"ok": "ok     ", "note": "note   ", "missing": "MISSING"}[self.state]
        fix = f"\n         → {self.remedy}" if self.remedy and self.state != "ok" else ""
        return f"{mark}  {self.subject}: {self.detail}{fix}"
