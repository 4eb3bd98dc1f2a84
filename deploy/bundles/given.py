"""What a person names to have it served: which kind of model it is, or in one sentence why it cannot be served.

Called by ``deploy`` and ``up --model`` before anything is started, exported or registered. Looks at names and small
files only: no weights are read and nothing is unpickled. Needs no torch.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from deploy.tools.errors import DeployError
from gateway import manifest, registry
from preprocessing.config import ARCHITECTURE_TASKS, EMBEDDINGS, FEATURES, RANKING, ZERO_SHOT, TaskConfig
from preprocessing.errors import PreprocessingError
from preprocessing.heads import HEADS

Kind = Literal["transformers", "bundle", "onnx", "torchscript", "sklearn"]

_WEIGHTS: Final = ("*.safetensors", "pytorch_model*.bin", "*.bin", "pytorch_model*.pt")
_PICKLES: Final = (".pkl", ".pickle", ".joblib")
_PLAIN: Final = (*dict.fromkeys(ARCHITECTURE_TASKS.values()), RANKING, ZERO_SHOT, EMBEDDINGS, FEATURES)

_ELSEWHERE: Final[Mapping[str, tuple[str, str]]] = {
    ".gguf": ("is a GGUF file, which only llama.cpp runs", "give the folder of the original Hugging Face model"),
    ".ggml": ("is a GGML file, which only llama.cpp runs", "give the folder of the original Hugging Face model"),
    ".h5": ("is a Keras file", "export it to ONNX (tf2onnx) and give the .onnx file"),
    ".keras": ("is a Keras file", "export it to ONNX (tf2onnx) and give the .onnx file"),
    ".tflite": ("is a TensorFlow Lite file", "export the original to ONNX (tf2onnx) and give the .onnx file"),
    ".pb": ("is a TensorFlow graph", "with a full Triton: `clearml-serving model upload --framework tensorflow`; "
            "else export it to ONNX (tf2onnx) and give the .onnx file"),
    ".plan": ("is a TensorRT engine", "a full Triton on that GPU serves it: `clearml-serving model upload --framework "
              "tensorrt`, then `model add`"),
    ".safetensors": ("holds weights alone", "give the folder with its config.json and tokenizer"),
    ".mlmodel": ("is a Core ML file", "export the original to ONNX and give the .onnx file"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Given:
    """A model that can be served. ``path`` is None for a hub name or a model of the registry."""

    kind: Kind
    given: str
    name: str
    path: Path | None = None
    file: Path | None = None
    """The ONNX, TorchScript or pickle file itself."""
    texts: Path | None = None
    """Where the tokenizer and configuration of an ONNX file lie; None for a model of tensors."""
    config: TaskConfig | None = None
    task: str = "auto"


def recognise(given: str, *, task: str = "auto", tokenizer: Path | None = None) -> Given:
    """Return what ``given`` is: a folder, a file, a hub name, or the id of a ClearML model.

    ``tokenizer`` is the folder that belongs to an ONNX file. Raises ``DeployError`` that says what to do.
    """
    if task != "auto" and task not in HEADS:
        raise DeployError(f"there is no task {task}", hint=f"--task takes one of {', '.join(HEADS)}")
    path = Path(given).expanduser()
    if not path.exists():
        return _named(given, task)
    path = path.absolute()
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem if path.is_file() else path.name).strip("-") or "model"
    if path.is_file():
        return _file(given, name, path, tokenizer, task)
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    own = _json(path / manifest.FILE)
    if "chosen" in own and (path / "model.onnx").is_file():
        return Given("bundle", given, name, path, path / "model.onnx", path, _config(path, task), task)
    if (path / "adapter_config.json").is_file():
        raise DeployError(
            f"{given} is an adapter, not a model",
            hint="merge it (`merge_and_unload()` of peft), save_pretrained the result, and give that folder",
        )
    if (path / "config.json").is_file() and any(True for pattern in _WEIGHTS for _ in path.glob(pattern)):
        return Given("transformers", given, name, path, config=_config(path, task), task=task)
    graphs = [file for file in files if file.suffix == ".onnx"]
    if graphs:
        chosen = next((g for g in graphs if g.relative_to(path).as_posix() in ("model.onnx", "onnx/model.onnx")), None)
        if chosen is None and len(graphs) > 1:
            listed = ", ".join(file.relative_to(path).as_posix() for file in graphs[:5])
            raise DeployError(f"{given} holds {len(graphs)} graphs ({listed})", hint="give the one to serve")
        return _onnx(given, name, path, chosen or graphs[0], tokenizer or path, task)
    single = [file for file in files if file.suffix in (*_PICKLES, ".pt", ".pth", *_ELSEWHERE)]
    if len(single) == 1 or any(file.suffix in _ELSEWHERE for file in single):
        return _file(given, name, next((f for f in single if f.suffix in _ELSEWHERE), single[0]), tokenizer, task)
    what = "has a config.json and no weights" if (path / "config.json").is_file() else "holds no model"
    raise DeployError(
        f"{given} {what} that can be served",
        hint="give the folder of a Hugging Face or sentence-transformers model (config.json, weights, tokenizer), an "
        "ONNX file with its tokenizer's folder, a bundle of `triton-gateway optimize`, or a TorchScript (.pt) or "
        "scikit-learn (.joblib, .pkl) file",
    )


def _named(given: str, task: str) -> Given:
    if registry.is_id(given):
        return Given("transformers", given, f"model-{given[:8]}", task=task)
    if given.startswith((".", "/", "~")) or not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", given):
        raise DeployError(f"there is no folder or file {given}", hint="give a model's folder, or a name of the hub")
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", given.rpartition("/")[2]).strip("-")
    return Given("transformers", given, name, task=task)


def _file(given: str, name: str, file: Path, tokenizer: Path | None, task: str) -> Given:
    if file.suffix == ".onnx":
        beside = file.parent if (file.parent / "tokenizer.json").is_file() else None
        return _onnx(given, name, file.parent, file, tokenizer or beside, task)
    if file.suffix in _PICKLES:
        return Given("sklearn", given, name, file, file)
    if file.suffix in (".pt", ".pth") and _is_torchscript(file):
        return Given("torchscript", given, name, file, file)
    if file.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        raise DeployError(
            f"{file.name} is a PyTorch checkpoint: weights without the program that uses them",
            hint="give the folder that save_pretrained writes, or save it with torch.jit.script(model).save(…)",
        )
    what, remedy = _ELSEWHERE.get(
        file.suffix, ("is no model that is known here", "give a model's folder, or a .onnx, .pt, .joblib or .pkl file")
    )
    raise DeployError(f"{file.name} {what}", hint=remedy)


def _onnx(given: str, name: str, path: Path, file: Path, texts: Path | None, task: str) -> Given:
    if texts is None or not any((texts / wanted).is_file() for wanted in ("tokenizer.json", "config.json")):
        if texts is not None and texts != path:
            raise DeployError(f"{texts} holds no tokenizer.json", hint="give the folder of the model's tokenizer")
        return Given("onnx", given, name, path, file)  # a model of tensors
    for wanted, remedy in (
        ("tokenizer.json", "save it: AutoTokenizer.from_pretrained(…).save_pretrained(…)"),
        ("config.json", "copy it from the model the graph was exported from"),
    ):
        if not (texts / wanted).is_file():
            raise DeployError(f"{texts} has no {wanted}, which the gateway reads", hint=remedy)
    return Given("onnx", given, name, path, file, texts, _config(texts, task), task)


def _config(folder: Path, task: str) -> TaskConfig:
    """Return what the files say. Raises ``DeployError`` with the tasks to choose from where they do not say one."""
    model = _json(folder / "config.json")
    known = {
        str(one): next((t for suffix, t in ARCHITECTURE_TASKS.items() if str(one).endswith(suffix)), "")
        for one in model.get("architectures") or ()
    }
    tasks = sorted({found for found in known.values() if found})
    if task == "auto" and len(tasks) > 1 and not (folder / "modules.json").is_file():
        raise DeployError(
            f"config.json names several architectures ({', '.join(known)})",
            hint=f"say which is meant: --task {' or --task '.join(tasks)}",
        )
    try:
        return TaskConfig.from_folder(folder, None if task == "auto" else {"task": task})
    except PreprocessingError as error:
        hint = error.hint or ""
        if task == "auto" and "task" in error.message:
            hint = f"say it: --task with one of {', '.join(_PLAIN)}"
        raise DeployError(f"{folder.name}: {error.message}", hint=hint) from error


def _is_torchscript(file: Path) -> bool:
    try:
        with zipfile.ZipFile(file) as archive:
            return any("/code/" in f"/{name}" for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
