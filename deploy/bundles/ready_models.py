"""Packs models that need no export: an ONNX graph, TorchScript or a pickle becomes a folder that can be uploaded.

There is no original to judge them against. If transformers is installed, the tokens are compared with its own, since it
does not always follow tokenizer.json. Needs no torch.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Final

from deploy.bundles import serving
from deploy.bundles.export import tokens
from deploy.bundles.model_files import copy_texts, digest
from deploy.bundles.model_kinds import Given
from deploy.bundles.work_folder import link, work_folder
from deploy.sync.model_folder.onnx_signature import DTYPES, onnx_signature
from deploy.tools.clearml_serving import Tensor
from deploy.tools.errors import DeployError
from deploy.tools.folders import aside, file_name, path_within
from preprocessing.errors import PreprocessingError
from preprocessing.tokenizer import TextTokenizer

_NUMPY: Final = {
    "FP32": "float32", "FP16": "float16", "FP64": "float64", "INT64": "int64", "INT32": "int32", "INT8": "int8",
    "UINT8": "uint8", "BOOL": "bool", "STRING": "object",
}  # fmt: skip


def pack(given: Given, output: Path, name: str, say: Callable[[str], None], progress: Callable[[str], None]) -> Path:
    """Return a folder in ``output`` with the files to upload. Raises ``DeployError``.

    The folder's name is unique, because a file server keeps one file per name.
    """
    if given.path is None or given.file is None:
        raise DeployError(f"{given.given} has no file to upload")
    final = output / file_name(f"{name}-{given.kind}-{digest(given.path)[:10]}")
    with work_folder(output) as work, aside(work, final) as folder:
        if given.kind == "torchscript":
            shutil.copyfile(given.file, folder / "model.pt")
        elif given.kind != "onnx":
            shutil.copyfile(given.file, folder / given.file.name)
        else:
            for name_of_weights in onnx_signature(given.file).external_files:
                _take_weights(given.file, name_of_weights, folder)
            if given.texts is not None:
                copy_texts(_as_transformers_reads(given, given.texts, work / "tokens", say, progress), folder)
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
        return list(serving.GENERATION_INPUTS), list(serving.GENERATION_OUTPUTS)
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


def _as_transformers_reads(
    given: Given, texts: Path, scratch: Path, say: Callable[[str], None], progress: Callable[[str], None]
) -> Path:
    """Return the folder whose tokenizer.json is served: ``texts``, or a copy if transformers makes other tokens.

    Tokens that the model has no vectors for are not taken over: transformers filled them in, nobody trained with them.
    """
    if not (texts / "tokenizer_config.json").is_file():
        return texts  # nothing contradicts tokenizer.json, and transformers would fill in defaults
    if util.find_spec("transformers") is None:
        say("the tokens were not compared with those of transformers, which is not installed")
        return texts
    progress("comparing the tokens with those of transformers")
    try:
        found, note = tokens.as_transformers_reads(texts, scratch)
    except DeployError as error:
        say(f"the tokens were not compared with those of transformers: {error}")
        return texts
    if found != texts and not _fits(found, given):
        say("transformers would add tokens that the model does not have: tokenizer.json is followed")
        return texts
    if note:
        say(note)
    return found


def _fits(folder: Path, given: Given) -> bool:
    """Whether the model has a vector for each token of the folder's tokenizer."""
    known = None if given.config is None else given.config.vocab_size
    listed = json.loads((folder / "tokenizer.json").read_text())
    ids = [*listed["model"].get("vocab", {}).values()] if isinstance(listed["model"].get("vocab"), dict) else []
    ids += [token["id"] for token in listed.get("added_tokens", [])]
    return known is None or max(ids, default=0) < known
