"""Models with their own code, which runs on this machine only with the user's consent (``--trust-remote-code``)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from deploy.tools.errors import ExportFailed

_IS_TRUSTED: Final[ContextVar[bool]] = ContextVar("is_trusted", default=False)


@contextlib.contextmanager
def trusted(is_trusted: bool) -> Iterator[None]:
    """Allow or forbid transformers to run a folder's own code within this block."""
    token = _IS_TRUSTED.set(is_trusted)
    try:
        yield
    finally:
        _IS_TRUSTED.reset(token)


def arguments() -> dict[str, Any]:
    """Return the further arguments of ``from_pretrained``."""
    return {"trust_remote_code": True} if _IS_TRUSTED.get() else {}


def check(folder: Path) -> None:
    """Raise ``ExportFailed`` for a model that only its own code can run, unless that code is trusted."""
    if _IS_TRUSTED.get():
        return
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # the next reader of the file reports what is wrong with it
    own = config.get("auto_map") if isinstance(config, dict) else None
    if not own:
        return
    import transformers

    known = set(transformers.__all__)
    if config.get("model_type") in transformers.CONFIG_MAPPING and known.issuperset(config.get("architectures") or ()):
        # The code is a copy of what transformers has, which is used. A class of another name computes something else,
        # and transformers would silently load its weights into the class of the model type.
        return
    named = ", ".join(sorted({str(name).partition(".")[0] for name in dict(own).values()}))
    raise ExportFailed(
        f"this model has its own Python code ({named}), which would run here with your permissions",
        hint="read that code, then give --trust-remote-code to `deploy` or `optimize`",
    )
