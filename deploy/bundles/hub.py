"""Models named by their hub names: fetched, or refused with an explanation of how to work without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from deploy.tools.errors import DeployError, first_line

_WANTED: Final = ("*.json", "*.txt", "*.model", "*.safetensors", "*.bin", "*.py", "*.jinja")
_IGNORED: Final = ("onnx/*", "openvino/*", "*.onnx", "*.h5", "*.msgpack", "*.ot")
_HIDDEN: Final = (401, 403, 404)
"""Statuses for a model that does not exist, or is not public."""


def fetch(name: str) -> Path:
    """Return the folder of the model, from the hub or the local cache. Raises ``DeployError``."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(_WANTED), ignore_patterns=list(_IGNORED)))
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in _HIDDEN:
            raise DeployError(
                f"there is no folder {name} here, and the hub gives access to no model of that name ({status})",
                hint="check the name; for a private or gated model set HF_TOKEN",
            ) from error
        raise DeployError(
            f"there is no folder {name} here, and the hub cannot be reached ({first_line(error)})",
            hint=f"give a model's folder; on a machine that reaches the hub, `hf download {name} --local-dir my-model` "
            "makes one",
        ) from error
