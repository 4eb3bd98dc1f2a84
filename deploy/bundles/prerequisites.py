"""Checks what an export needs before anything is started or fetched.

``deploy`` and ``up --model`` call it first, and ``optimize`` calls it too. It imports none of the packages.
"""

from __future__ import annotations

from importlib import util
from typing import Final

from deploy.bundles.export import custom_code
from deploy.bundles.export.source import refuse_generation
from deploy.bundles.model_kinds import Given
from deploy.tools.errors import DeployError

PACKAGES: Final = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "sentencepiece")
"""transformers brings huggingface_hub, and reads tokenizers without tokenizer.json by sentencepiece."""


def check(given: Given, *, trusts_code: bool = False) -> None:
    """Raise ``DeployError`` if ``given`` needs an export that cannot run. ``trusts_code``: its own code may run."""
    if given.kind != "transformers":
        return
    refuse_generation(given.config, given.given)
    require(openvino=False)
    if given.path is not None:
        with custom_code.trusted(trusts_code):
            custom_code.check(given.path)


def require(*, openvino: bool) -> None:
    """Raise ``DeployError`` if a package of the export is not installed."""
    wanted = (*PACKAGES, "openvino") if openvino else PACKAGES
    missing = [package for package in wanted if util.find_spec(package) is None]
    if missing:
        raise DeployError(
            f"exporting a model needs {', '.join(missing)}",
            hint='run `pip install ".[bundles]"`. On Linux this installs torch with 4.6 GB of CUDA '
            "libraries; for the CPU wheel alone, add `--extra-index-url` with the address that pytorch.org/get-started "
            "shows for CPU. A model that is already an ONNX file needs no torch",
        )
