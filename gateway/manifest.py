"""Compares a bundle's files with the hashes in its manifest, which ``triton-gateway optimize`` wrote when it judged it.

``assemble`` checks the files that a gateway reads, model sync those of the model that it gives to Triton. A folder
without a manifest of ours is not checked. Files that users may add to a bundle later (a hook, drift references) are not
checked either.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gateway.errors import ArtifactCorrupt
from gateway.file_names import path_within
from preprocessing.model_files import read_json

FILE: Final = "manifest.json"

_HASH: Final = re.compile(r"[0-9a-f]{64}")
_READ: Final = re.compile(
    r"(tokenizer|config|modules|sentence_\w+_config|config_sentence_transformers|tokenizer_config|special_tokens_map|"
    r"generation_config|runtime|warmup|added_tokens)\.json|vocab\.txt|chat_template\.jinja|\d+_\w+/(sentence_\w+_)?config\.json|"
    r".*\.onnx(\.data)?"
)
"""Files that change a bundle's answers: one of these that the manifest does not list is refused."""
_WEIGHTS: Final = re.compile(
    r".*\.(onnx|onnx[._]data|safetensors|bin|pt|pth|h5|msgpack|gguf|plan|engine|trt|pb|tflite)", re.DOTALL
)
_HINT: Final = (
    "these files are not the ones that were judged: make the bundle again with `triton-gateway optimize`; if it was "
    "changed on purpose, remove its manifest.json, and with it the results of the accuracy gate"
)


def is_weights(name: str) -> bool:
    """Whether a file of a model is for Triton only: gateways neither fetch nor compare it."""
    return _WEIGHTS.fullmatch(name) is not None


def recorded(folder: Path) -> Mapping[str, str]:
    """Return the sha256 of each file of a bundle from its manifest; empty if the folder has no manifest of ours.

    Raises ``ArtifactCorrupt`` if the manifest cannot be read.
    """
    try:
        values = read_json(folder / FILE)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactCorrupt(f"{FILE} of the model cannot be read: {error}", hint="upload the bundle again") from error
    files = values.get("files") if isinstance(values, dict) else None
    if not isinstance(files, dict) or "model.onnx" not in files:
        if isinstance(values, dict) and "chosen" in values:
            raise ArtifactCorrupt(f"{FILE} of the model does not name the files that were judged", hint=_HINT)
        return {}  # a file of that name from another program
    if not all(isinstance(v, str) and _HASH.fullmatch(v) for v in files.values()):
        raise ArtifactCorrupt(f"{FILE} of the model holds no hashes", hint="upload the bundle again")
    try:
        for name in files:
            path_within(name)
    except ValueError as error:
        raise ArtifactCorrupt(f"{FILE} of the model names {error}", hint="upload the bundle again") from error
    return files


def check(folder: Path, *, is_used: Callable[[str], bool]) -> None:
    """Compare the files of ``folder`` that ``is_used`` (called with relative names) with its manifest, if it has one.

    Reads the files whole. Raises ``ArtifactCorrupt`` with the first missing, changed or added file.
    """
    files = recorded(folder)
    if not files:
        return
    for name, expected in files.items():
        if not is_used(name):
            continue
        try:
            with (folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            reason = error.strerror or str(error)
            raise ArtifactCorrupt(f"{name} of the bundle cannot be read: {reason}", hint=_HINT) from error
        if found != expected:
            raise ArtifactCorrupt(
                f"{name} of the bundle is not the file that was judged (hash {found[:12]} instead of {expected[:12]})",
                hint=_HINT,
            )
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name not in files and _READ.fullmatch(name) and is_used(name) and path.is_file():
            raise ArtifactCorrupt(f"{name} was added to the bundle after it was judged", hint=_HINT)
