"""Downloads originals that are registered models; called by ``triton-gateway optimize``."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from deploy.tools.errors import DeployError, GatewayError
from gateway.registry import ArtifactCache, ClearMLRegistry, is_id


def is_registered(source: str) -> bool:
    """Return True if ``source`` is the id of a registered model, not a folder or a hub name."""
    return is_id(source) and not Path(source).is_dir()


def fetch_source(model_id: str, folder: Path) -> Path:
    """Download the ClearML model ``model_id`` into the empty ``folder``; return the folder that holds its files.

    The SDK's ``get_local_copy`` is not used: it finds unpacked models again by their address, even if other bytes are
    stored there now. Raises ``DeployError``.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            source = ClearMLRegistry()
            return ArtifactCache(folder, source).model(source.model(model_id))
    except GatewayError as error:
        raise DeployError(
            f"model {model_id} cannot be fetched: {error.message}",
            hint="set CLEARML_API_HOST and its keys, or write clearml.conf; `source .triton-gateway/env` sets those of "
            "`triton-gateway up`",
        ) from error
