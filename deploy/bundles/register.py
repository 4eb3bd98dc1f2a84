"""Registers a bundle: its files, its origin and the measurements. Also downloads originals that are registered models.

Called by ``triton-gateway optimize``. How ClearML stores it is up to ``gateway/registry/clearml/upload.py``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.bundles.pack import manifest
from deploy.tools.errors import DeployError, GatewayError
from gateway.registry import ArtifactCache, ClearMLRegistry, Provenance, Upload, is_id


def is_registered(source: str) -> bool:
    """Return True if ``source`` is the id of a registered model, not a folder or a hub name."""
    return is_id(source) and not Path(source).is_dir()


def fetch_source(model_id: str, folder: Path) -> Path:
    """Download the ClearML model ``model_id`` into the empty ``folder``; return the folder that holds its files.

    The SDK's ``get_local_copy`` is not used: it finds unpacked models again by their address, even if other bytes are
    stored there now. Raises ``DeployError``.
    """
    with _reporting_errors(f"model {model_id} cannot be fetched: "), contextlib.redirect_stdout(sys.stderr):
        return ArtifactCache(folder, ClearMLRegistry()).model_of(model_id)


def register(
    bundle: Path, values: Mapping[str, Any], *, project: str, name: str, tags: Sequence[str], source: str
) -> tuple[str, str]:
    """Upload the bundle and publish it; return the ids of the model and of the Task that tells how it was made.

    ``source`` is what the user gave: a folder, a hub name or a ClearML model id.
    Raises ``DeployError`` if the bundle differs from its manifest, and if ClearML refuses it or cannot be reached.
    """
    try:
        manifest.check(bundle)
    except GatewayError as error:
        raise DeployError(f"the bundle is not registered: {error.message}", hint=error.hint) from error
    chosen = values["chosen"]
    numbers = {f"mean cosine, {row['candidate']}": row["mean_cosine"] for row in values["parity"]}
    if chosen["times_pytorch"]:
        numbers["times as fast as PyTorch"] = chosen["times_pytorch"]
    provenance = Provenance(
        source if is_id(source) else _address(source), source_tags=(str(values["source"]["digest"])[:12],),
        arguments={key: str(value) for key, value in values["arguments"].items()},
        manifest={k: v for k, v in values.items() if k != "files"}, numbers=numbers,
        text=(bundle / "report.md").read_text(encoding="utf-8"),
    )  # fmt: skip
    upload = Upload(
        bundle, project, name, "ONNX", ("optimized", *tags, chosen["candidate"]),
        metadata=manifest.short(values), provenance=provenance,
    )  # fmt: skip
    with _reporting_errors():
        registry = ClearMLRegistry()
        model_id = registry.register(upload)
        return model_id, registry.model(model_id).task


def _address(source: str) -> str:
    folder = Path(source).expanduser()
    return folder.resolve().as_uri() if folder.is_dir() else f"https://huggingface.co/{source}"


@contextlib.contextmanager
def _reporting_errors(what: str = "") -> Iterator[None]:
    try:
        yield
    except GatewayError as error:
        raise DeployError(
            f"{what}{error.message}",
            hint="set CLEARML_API_HOST and its keys, or write clearml.conf; `source .triton-gateway/env` sets those of "
            "`triton-gateway up`",
        ) from error
