"""Maps the files of a registered model to Triton's model folder, and finds out which kind of model they are.

Pure: a list of relative paths in, a mapping out. Model sync calls it before anything is written. It never guesses
between two candidates: an ambiguous folder is a ``BadModel`` that names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from deploy.sync.errors import BadModel

Engine = Literal["python", "native"]
"""``python``: a server that has only the python backend (the wheel's). ``native``: a full Triton."""

Kind = Literal["onnx", "pytorch", "savedmodel", "graphdef", "tensorrt", "openvino", "python", "folder"]

BACKENDS: Mapping[str, Kind] = {
    "onnxruntime_onnx": "onnx",
    "onnxruntime": "onnx",
    "pytorch_libtorch": "pytorch",
    "pytorch": "pytorch",
    "tensorflow_savedmodel": "savedmodel",
    "tensorflow_graphdef": "graphdef",
    "tensorflow": "savedmodel",
    "tensorrt_plan": "tensorrt",
    "tensorrt": "tensorrt",
    "openvino": "openvino",
    "python": "python",
}
"""Triton's platform and backend names → the kind of model they run."""

_SUFFIXES: Mapping[str, Kind] = {
    ".onnx": "onnx", ".pt": "pytorch", ".pth": "pytorch", ".plan": "tensorrt", ".engine": "tensorrt",
    ".graphdef": "graphdef",
}  # fmt: skip
_SINGLE: Mapping[Kind, str] = {
    "onnx": "model.onnx", "pytorch": "model.pt", "graphdef": "model.graphdef", "savedmodel": "model.graphdef",
    "tensorrt": "model.plan",
}  # fmt: skip
_FRAMEWORKS: tuple[tuple[str, Kind], ...] = (
    ("onnx", "onnx"), ("pytorch", "pytorch"), ("torch", "pytorch"), ("caffe", "pytorch"), ("tensorrt", "tensorrt"),
    ("tensorflow", "savedmodel"), ("keras", "savedmodel"), ("openvino", "openvino"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """Where files go: path in Triton's model folder → path in the registry's model. ``main`` is the model file."""

    kind: Kind
    files: Mapping[str, str]
    main: str | None = None


def choose_kind(files: Sequence[str], framework: str, backend: str) -> Kind:
    """Return the kind of model: from the user's platform or backend, else from the files, else from the framework.

    The framework comes last because clearml-serving registers a folder uploaded without ``--framework`` as TensorFlow.
    """
    if backend:
        return BACKENDS.get(backend, "folder")
    names = [PurePosixPath(f) for f in files]
    if any(n.name == "saved_model.pb" for n in names):
        return "savedmodel"
    found = {_SUFFIXES[n.suffix.lower()] for n in names if n.suffix.lower() in _SUFFIXES}
    if "onnx" in found:
        return "onnx"
    if len(found) == 1:
        return next(iter(found))
    for prefix, kind in _FRAMEWORKS:
        if framework.lower().startswith(prefix):
            # Like stock clearml-serving: a single TensorFlow file is a frozen graph.
            return "graphdef" if kind == "savedmodel" and len(files) == 1 else kind
    return "folder"


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


def lay_out(kind: Kind, files: Sequence[str], *, external: Sequence[str] = ()) -> Layout:
    """Map files into ``1/`` as Triton's backends expect them.

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
        return Layout(kind, mapping, main)
    if len(files) == 1 and kind != "python":
        return Layout(kind, {f"1/{_SINGLE.get(kind, 'model.bin')}": files[0]}, files[0])
    if kind == "savedmodel":
        inner = next((PurePosixPath(f).parent for f in sorted(files) if f.endswith("saved_model.pb")), PurePosixPath())
        return Layout(kind, {f"1/model.savedmodel/{PurePosixPath(f).relative_to(inner)}": f for f in files
                             if PurePosixPath(f).is_relative_to(inner)})  # fmt: skip
    if kind in ("pytorch", "tensorrt"):
        suffixes = (".pt", ".pth") if kind == "pytorch" else (".plan", ".engine")
        found = [f for f in files if f.lower().endswith(suffixes)]
        if len(found) == 1:
            return Layout(kind, {f"1/{_SINGLE[kind]}": found[0]}, found[0])
    return Layout(kind, {f"1/{f}": f for f in files})
