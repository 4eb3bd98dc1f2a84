"""What ``triton-gateway optimize`` judged, held against what is loaded: a bundle's files and its manifest's hashes.

Asked by ``assemble`` for the files a gateway reads, by model sync for the model it gives to Triton. A folder without a
manifest of ours is a model like any other. What a user may add to a bundle afterwards (a hook, drift references) is
never asked for.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gateway.errors import ArtifactCorrupt

FILE: Final = "manifest.json"

_HASH: Final = re.compile(r"[0-9a-f]{64}")
_READ: Final = re.compile(
    r"(tokenizer|config|modules|sentence_\w+_config|config_sentence_transformers|tokenizer_config|special_tokens_map|"
    r"generation_config|runtime|warmup|added_tokens)\.json|vocab\.txt|chat_template\.jinja|\d+_\w+/(sentence_\w+_)?config\.json|"
    r".*\.onnx(\.data)?"
)
"""Files that change what a bundle answers: one that was not there when it was judged is as wrong as another one."""
_WEIGHTS: Final = re.compile(
    r".*\.(onnx|onnx[._]data|safetensors|bin|pt|pth|h5|msgpack|gguf|plan|engine|trt|pb|tflite)", re.DOTALL
)
_HINT: Final = (
    "what was judged is not what lies there: make the bundle again with `triton-gateway optimize`; if it was changed "
    "on purpose, remove its manifest.json, and with it everything the gate has shown"
)


def is_weights(name: str) -> bool:
    """Say whether a file of a model is for Triton alone: gateways neither fetch it nor compare it."""
    return _WEIGHTS.fullmatch(name) is not None


def recorded(folder: Path) -> Mapping[str, str]:
    """Return the sha256 of every file of a bundle as its manifest records it; nothing for a folder without one.

    Raises ``ArtifactCorrupt`` for a manifest that cannot be read.
    """
    try:
        values = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactCorrupt(f"{FILE} of the model cannot be read: {error}", hint="upload the bundle again") from error
    files = values.get("files") if isinstance(values, dict) else None
    if not isinstance(files, dict) or "model.onnx" not in files:
        if isinstance(values, dict) and "chosen" in values:
            raise ArtifactCorrupt(f"{FILE} of the model does not name the files that were judged", hint=_HINT)
        return {}  # another program's file of that name
    if not all(isinstance(v, str) and _HASH.fullmatch(v) for v in files.values()):
        raise ArtifactCorrupt(f"{FILE} of the model holds no hashes", hint="upload the bundle again")
    return files


def check(folder: Path, *, is_used: Callable[[str], bool]) -> None:
    """Compare the files of ``folder`` that ``is_used`` (their relative names) with its manifest, if it has one.

    Reads them whole. Raises ``ArtifactCorrupt`` naming the first that is missing, changed or added.
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
