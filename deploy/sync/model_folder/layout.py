"""Maps the files of a registered model to Triton's model folder, and finds out which kind of model they are.

Pure: a list of relative paths in, a mapping out. Model sync calls it before anything is written. It never guesses
between two candidates: an ambiguous folder is a ``BadModel`` that names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Literal

from deploy.sync.errors import BadModel

Engine = Literal["python", "native"]
"""``python``: a server that has only the python backend (the wheel's). ``native``: a full Triton."""

Kind = Literal["onnx", "pytorch", "tensorrt", "openvino", "python", "folder"]
"""``folder``: a model of a backend that is not known here; its files lie as they were uploaded."""

BACKENDS: Mapping[str, Kind] = {
    "onnxruntime_onnx": "onnx",
    "onnxruntime": "onnx",
    "pytorch_libtorch": "pytorch",
    "pytorch": "pytorch",
    "tensorrt_plan": "tensorrt",
    "tensorrt": "tensorrt",
    "openvino": "openvino",
    "python": "python",
}
"""Triton's platform and backend names → the kind of model they run."""

_FILES: Mapping[Kind, tuple[tuple[str, ...], str]] = {
    "onnx": ((".onnx",), "model.onnx"), "pytorch": ((".pt", ".pth"), "model.pt"),
    "tensorrt": ((".plan", ".engine"), "model.plan"),
}  # fmt: skip
"""Kinds that are one file → its suffixes, and the name under which the backend looks for it."""


def choose_kind(files: Sequence[str], backend: str) -> Kind:
    """Return the kind of model: from the user's platform or backend, else from the files.

    The framework that clearml-serving records is a guess: a folder uploaded without ``--framework`` is TensorFlow.
    """
    if backend:
        return BACKENDS.get(backend, "folder")
    found = {kind for kind, (suffixes, _) in _FILES.items() for f in files if f.lower().endswith(suffixes)}
    return "onnx" if "onnx" in found else next(iter(found)) if len(found) == 1 else "folder"


def find_onnx(files: Sequence[str]) -> str:
    """Return the model file among ``files``: ``model.onnx``, ``onnx/model.onnx``, or the only ``.onnx`` file."""
    found = sorted(f for f in files if f.lower().endswith(".onnx"))
    for preferred in ("model.onnx", "onnx/model.onnx"):
        if preferred in found:
            return preferred
    if len(found) == 1:
        return found[0]
    if not found and len(files) == 1:
        return files[0]  # uploaded under another name; the reader reports it if it is not ONNX
    raise BadModel(
        f"the model holds {len(found)} .onnx files ({', '.join(found[:5]) or 'none'})",
        hint="rename the one to serve to model.onnx",
    )


def lay_out(kind: Kind, files: Sequence[str], *, external: Sequence[str] = ()) -> Mapping[str, str]:
    """Return where files go: path in Triton's model folder, in ``1/`` as its backends expect them → path in ``files``.

    ``external`` are an ONNX file's weight files, relative to it. Raises ``BadModel`` when one is missing.
    """
    if kind == "onnx":
        main = find_onnx(files)
        beside = PurePosixPath(main).parent
        mapping = {"1/model.onnx": main}
        for name in external:
            source = str(beside / name)
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or source not in files:
                raise BadModel(
                    f"{main} keeps weights in {name!r}, which is not among the uploaded files",
                    hint="upload the folder, or save the model with its weights inside (one file)",
                )
            mapping[f"1/{name}"] = source
        return mapping
    suffixes, name = _FILES.get(kind, ((), "model.bin"))
    found = [f for f in files if f.lower().endswith(suffixes)]
    if kind != "python" and len(found if len(files) > 1 else files) == 1:
        return {f"1/{name}": (found or files)[0]}
    return {f"1/{f}": f for f in files}
