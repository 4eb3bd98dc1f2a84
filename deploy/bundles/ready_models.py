"""Packs models that need no export: an ONNX graph or a pickle becomes a folder that can be uploaded.

There is no original to judge them against. Needs no torch.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from deploy.bundles.model_files import copy_texts, digest
from deploy.bundles.model_kinds import Given
from deploy.bundles.work_folder import link, work_folder
from deploy.sync.model_folder.onnx_signature import DTYPES, onnx_signature
from deploy.tools.clearml_serving import Tensor
from deploy.tools.errors import DeployError
from deploy.tools.folders import aside
from gateway.file_names import file_name, path_within
from preprocessing.errors import PreprocessingError
from preprocessing.tokenizer import TextTokenizer

_NUMPY: Final = {
    "FP32": "float32", "FP16": "float16", "FP64": "float64", "INT64": "int64", "INT32": "int32", "INT8": "int8",
    "UINT8": "uint8", "BOOL": "bool", "STRING": "object",
}  # fmt: skip
_GENERATION_INPUTS: Final = (Tensor("input_ids", "int64", (-1,)), Tensor("parameters", "object", (1,)))
_GENERATION_OUTPUTS: Final = (Tensor("token_ids", "int64", (-1,)), Tensor("finish_reason", "object", (1,)))
"""Tensors of the program that runs a graph with a key/value cache in Triton."""


def pack(given: Given, output: Path, name: str) -> Path:
    """Return a folder in ``output`` with the files to upload. Raises ``DeployError``.

    The folder's name is unique, because a file server keeps one file per name.
    """
    if given.path is None or given.file is None:
        raise DeployError(f"{given.given} has no file to upload")
    final = output / file_name(f"{name}-{given.kind}-{digest(given.path)[:10]}")
    with work_folder(output) as work, aside(work, final) as folder:
        if given.kind != "onnx":
            shutil.copyfile(given.file, folder / given.file.name)
        else:
            for name_of_weights in onnx_signature(given.file).external_files:
                _take_weights(given.file, name_of_weights, folder)
            if given.texts is not None:
                copy_texts(given.texts, folder)
                _check(folder, given)
            link(given.file, folder / "model.onnx")
    return final


def _take_weights(graph: Path, name: str, folder: Path) -> None:
    """Put a file that holds weights of ``graph`` into the bundle, under the name by which the graph finds it."""
    try:
        within = path_within(name)
    except ValueError as error:
        raise DeployError(
            f"{graph.name} keeps its weights in {error}", hint="save the model with its weights inside (one file)"
        ) from None
    if not (graph.parent / within).is_file():
        raise DeployError(
            f"{graph.name} keeps its weights in {name}, which is not beside it", hint="copy that file, too"
        )
    (folder / within).parent.mkdir(parents=True, exist_ok=True)
    link(graph.parent / within, folder / within)


def declared(graph: Path) -> tuple[list[Tensor], list[Tensor]]:
    """Return inputs and outputs of an ONNX file as the stock CLI takes them. Raises the errors of an invalid file."""
    signature = onnx_signature(graph)
    if any(one.name.startswith("past_key_values") for one in signature.inputs):
        return list(_GENERATION_INPUTS), list(_GENERATION_OUTPUTS)
    sides = []
    for side in (signature.inputs, signature.outputs):
        unknown = [one.name for one in side if one.dtype not in _NUMPY]
        if unknown:
            raise DeployError(
                f"{graph.name} has tensors of a type that Triton's clients do not send: {', '.join(unknown)}",
                hint=f"known are {', '.join(sorted(set(DTYPES.values()) & _NUMPY.keys()))}",
            )
        sides.append([
            Tensor(one.name, _NUMPY[one.dtype], tuple(size if isinstance(size, int) else -1 for size in one.dims))
            for one in side
        ])  # fmt: skip
    return sides[0], sides[1]


def _check(folder: Path, given: Given) -> None:
    """Refuse a tokenizer that the gateway would refuse."""
    try:
        if given.config is not None:
            TextTokenizer.from_folder(folder, given.config, word_cache=False)
    except PreprocessingError as error:
        raise DeployError(f"{given.name}: {error.message}", hint=error.hint or "") from error
