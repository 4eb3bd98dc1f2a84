"""Recognises what a user gives to be served: which kind of model it is, or why it cannot be served.

``deploy`` and ``up --model`` call it before anything is started, exported or registered. It looks only at names and
small files: it reads no weights and unpickles nothing. Needs no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from deploy.bundles.model_files import TOKENIZERS
from deploy.tools.errors import DeployError
from gateway import manifest, registry
from preprocessing.config import ARCHITECTURE_TASKS, EMBEDDINGS, FEATURES, RANKING, ZERO_SHOT, TaskConfig
from preprocessing.errors import PreprocessingError
from preprocessing.heads import HEADS

Kind = Literal["transformers", "bundle", "onnx", "sklearn", "xgboost", "lightgbm"]

IN_PYTHON: Final[Mapping[str, str]] = {"sklearn": "scikitlearn", "xgboost": "xgboost", "lightgbm": "lightgbm"}
"""Kinds that a hook process runs instead of Triton, and the names of their frameworks in ``clearml-serving``."""

_WEIGHTS: Final = ("*.safetensors", "pytorch_model*.bin", "*.bin", "pytorch_model*.pt")
_PICKLES: Final = (".pkl", ".pickle", ".joblib")
_PYTHON_FILES: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(_PICKLES, "sklearn"), ".ubj": "xgboost", ".xgb": "xgboost", ".lgb": "lightgbm",
}  # fmt: skip
_PACKED: Final = (".gz", ".bz2", ".xz")
_POINTER: Final = b"version https://git-lfs"
_MAX_POINTER_BYTES: Final = 1024
_PLAIN: Final = (*dict.fromkeys(ARCHITECTURE_TASKS.values()), RANKING, ZERO_SHOT, EMBEDDINGS, FEATURES)

_KNOWN: Final = (
    "give the folder of a Hugging Face or sentence-transformers model (config.json, weights, tokenizer), a bundle of "
    "`triton-gateway optimize`, or a .onnx, .joblib, .pkl, .ubj or .lgb file"
)
_OTHERS: Final = (
    "of a PyTorch checkpoint, GGUF or .safetensors file give the folder of the original; merge an adapter into its "
    "model (`merge_and_unload()` of peft); make Keras and TensorFlow ONNX with `python -m tf2onnx.convert`; "
    "TorchScript and TensorRT are added by `clearml-serving model add`"
)


@dataclass(frozen=True, slots=True)
class Given:
    """A model that can be served. ``path`` is None for a hub name or a registered model."""

    kind: Kind
    given: str
    name: str
    path: Path | None = None
    file: Path | None = None
    """The ONNX or pickle file itself."""
    texts: Path | None = None
    """Folder of an ONNX file's tokenizer and configuration; None for a model of tensors."""
    config: TaskConfig | None = None
    task: str = "auto"


def recognise(given: str, *, task: str = "auto", tokenizer: Path | None = None) -> Given:
    """Return what ``given`` is: a folder, a file, a hub name, or the id of a ClearML model.

    ``tokenizer`` is the folder that belongs to an ONNX file. Raises ``DeployError``, which says what to do.
    """
    if task != "auto" and task not in HEADS:
        raise DeployError(f"there is no task {task}", hint=f"--task takes one of {', '.join(HEADS)}")
    path = Path(given).expanduser()
    if not path.exists():
        return _named(given, task)
    path = path.absolute()
    _refuse_pointers(given, path)
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem if path.is_file() else path.name).strip("-") or "model"
    if path.is_file():
        return _file(given, name, path, tokenizer, task)
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    own = _json(path / manifest.FILE)
    if "chosen" in own and (path / "model.onnx").is_file():
        return Given("bundle", given, name, path, path / "model.onnx", path, _config(path, task), task)
    if (path / "config.json").is_file() and any(True for pattern in _WEIGHTS for _ in path.glob(pattern)):
        config = _config(path, task)
        if not any((path / file).is_file() for file in TOKENIZERS):
            raise DeployError(
                f"{given} has no tokenizer ({', '.join(TOKENIZERS[:3])} or a SentencePiece model)",
                hint=f"save it there: AutoTokenizer.from_pretrained(…).save_pretrained({str(path)!r})",
            )
        return Given("transformers", given, name, path, config=config, task=task)
    if graphs := sorted([*path.glob("*.onnx"), *path.glob("onnx/*.onnx")]):
        chosen = next((g for g in graphs if g.relative_to(path).as_posix() in ("model.onnx", "onnx/model.onnx")), None)
        if chosen is None and len(graphs) > 1:
            listed = ", ".join(file.relative_to(path).as_posix() for file in graphs[:5])
            raise DeployError(f"{given} holds {len(graphs)} graphs ({listed})", hint="give the file to serve")
        return _onnx(given, name, path, chosen or graphs[0], tokenizer or path, task)
    below = sorted({file.parent for file in files if file.name == "config.json" and file.parent != path})
    single = [file for file in files if file.suffix in _PYTHON_FILES and file.parent not in below]
    if len(single) == 1:
        return _file(given, name, single[0], tokenizer, task)
    if below:
        listed = ", ".join(one.relative_to(path).as_posix() for one in below[:5])
        raise DeployError(f"{given} holds models ({listed}), but is none itself", hint=f"give one: {below[-1]}")
    raise DeployError(f"{given} holds no model that can be served", hint=f"{_KNOWN}; {_OTHERS}")


def _refuse_pointers(given: str, path: Path) -> None:
    """Raise for files of a clone made without git-lfs: each contains three lines of text instead of its content."""
    files = [path] if path.is_file() else [file for file in sorted(path.iterdir()) if file.is_file()]
    for file in files:
        if file.stat().st_size <= _MAX_POINTER_BYTES and file.read_bytes().startswith(_POINTER):
            raise DeployError(
                f"{file.name} of {given} is a pointer of git-lfs, not the file itself",
                hint=f"`git lfs install && git -C {file.parent} lfs pull` fetches it",
            )


def _named(given: str, task: str) -> Given:
    if registry.is_id(given):
        return Given("transformers", given, f"model-{given[:8]}", task=task)
    if given.startswith((".", "/", "~")) or not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", given):
        raise DeployError(f"there is no folder or file {given}", hint="give a model's folder, or a hub name")
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", given.rpartition("/")[2]).strip("-")
    return Given("transformers", given, name, task=task)


def _file(given: str, name: str, file: Path, tokenizer: Path | None, task: str) -> Given:
    if file.suffix == ".onnx":
        beside = file.parent if (file.parent / "tokenizer.json").is_file() else None
        return _onnx(given, name, file.parent, file, tokenizer or beside, task)
    kind = _python_kind(file)
    if kind:
        return Given(kind, given, name, file, file)
    raise DeployError(f"{file.name} is not a model file of a known kind", hint=f"{_KNOWN}; {_OTHERS}")


def _python_kind(file: Path) -> Kind | None:
    """Return what runs the file in Python, by its name or its first bytes (XGBoost, LightGBM); None if nothing does."""
    if file.suffix not in (".json", ".txt", ".model", ".bst"):
        packed = file.suffix in _PACKED and file.suffixes[-2:-1]
        return _PYTHON_FILES.get(packed[0] if packed else file.suffix)
    with file.open("rb") as stream:
        head = stream.read(64)
    if head.startswith(b"tree\n"):
        return "lightgbm"
    return "xgboost" if head.startswith((b'{"learner"', b"{L\x00\x00\x00\x00\x00\x00\x07learner")) else None


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
    """Return the configuration. Raises ``DeployError`` with the tasks to choose from if the files do not name one."""
    model = _json(folder / "config.json")
    known = {
        str(one): next((t for suffix, t in ARCHITECTURE_TASKS.items() if str(one).endswith(suffix)), "")
        for one in model.get("architectures") or ()
    }
    tasks = sorted({found for found in known.values() if found})
    if task == "auto" and len(tasks) > 1 and not (folder / "modules.json").is_file():
        raise DeployError(
            f"config.json names several architectures ({', '.join(known)})",
            hint=f"choose one: --task {' or --task '.join(tasks)}",
        )
    try:
        return TaskConfig.from_folder(folder, None if task == "auto" else {"task": task})
    except PreprocessingError as error:
        hint = error.hint or ""
        if task == "auto" and "task" in error.message:
            hint = f"if it reads text, choose its --task: one of {', '.join(_PLAIN)}; to serve a model of images or "
            hint += "sound, give it as an ONNX file"
        raise DeployError(f"{folder.name}: {error.message}", hint=hint) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
