"""The engines of clearml-serving that run a model in Python (scikit-learn, XGBoost, LightGBM): load and predict.

``load_model`` follows clearml-serving's classes: scikit-learn through joblib, XGBoost and LightGBM as Boosters from
their own formats. The result of ``predict`` is returned unchanged. Runs only in hook processes, never in a gateway
worker, because loading a pickle can run any code.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path, PurePath
from typing import Any, Final

from preprocessing.errors import UserCodeLoadError

ENGINES: Final = ("sklearn", "xgboost", "lightgbm")

_ROWS: Final = 'the model predicts a JSON list of rows, such as [[1.5, 2, 0]] or ["a text"], not {}'
_PICKLES: Final = (".pkl", ".pickle", ".joblib")
_SUFFIXES: Final = {
    "sklearn": (".pkl", ".pickle", ".joblib", ".gz", ".z", ".xz", ".bz2"),
    "xgboost": (".json", ".ubj", ".bin", ".model", ".bst", ".xgb", ".deprecated", *_PICKLES),
    "lightgbm": (".txt", ".model", ".lgb", ".lgbm", *_PICKLES),
}


def load_model(engine: str, path: Path | None) -> Any:
    """Load the model of an endpoint whose class has no ``load``. Raises ``UserCodeLoadError`` with a hint."""
    if importlib.util.find_spec(engine) is None:
        raise UserCodeLoadError(
            f"engine {engine} needs a package that is not installed", stage="load",
            hint='install it where the gateway runs: pip install ".[engines]"',
        )  # fmt: skip
    if path is None:
        raise UserCodeLoadError(
            f"engine {engine} has no model", stage="load",
            hint="add the endpoint with --model-id, or --name and --project of a registered model",
        )  # fmt: skip
    file = model_file(engine, path)
    try:
        if engine == "sklearn" or file.suffix.lower() in _PICKLES:
            model = importlib.import_module("joblib").load(file)
        elif engine == "xgboost":
            model = importlib.import_module("xgboost").Booster()
            model.load_model(str(file))
        else:
            model = importlib.import_module("lightgbm").Booster(model_file=str(file))
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UserCodeLoadError(
            f"{file.name} cannot be loaded as a model of {engine}: {type(error).__name__}: {reason}",
            stage="load", hint=_hint(engine, error),
        ) from error  # fmt: skip
    if not callable(getattr(model, "predict", None)):
        raise UserCodeLoadError(
            f"{file.name} holds a {type(model).__name__}, which has no predict", stage="load",
            hint="register the fitted estimator itself, or load it in the Preprocess class",
        )  # fmt: skip
    return model


def model_file(engine: str, path: Path) -> Path:
    """Return the model's file: ``path``, or the only candidate in that folder. Raises ``UserCodeLoadError``."""
    if not path.is_dir():
        return path
    files = [p for p in sorted(path.rglob("*")) if p.is_file() and p.suffix.lower() in _SUFFIXES[engine]]
    named = [p for p in files if p.stem == "model"]
    for found in (files, named):
        if len(found) == 1:
            return found[0]
    raise UserCodeLoadError(
        f"the model folder has {len(files) or 'no'} files that could be the model of {engine}"
        + (f" ({', '.join(p.name for p in files[:5])})" if files else f" ({', '.join(_SUFFIXES[engine])})"),
        stage="load", hint="name one of them model.*, or load it in the Preprocess class",
    )  # fmt: skip


def predict(engine: str, model: Any, data: Any, *, is_body: bool) -> Any:
    """Return the result of the model's ``predict``. Converts rows for an XGBoost Booster to a ``DMatrix``.

    ``is_body``: the data is a request's body, not what a class made of it. It must be a list of rows;
    ``{"instances": rows}`` (KServe v1) and a single named tensor, ``{"x": rows}``, stand for their rows. Another object
    is refused: scikit-learn's text models would take its keys for the texts.

    Raises ``ValueError`` for JSON that is not a list: it is the caller's mistake. Texts must not reach the libraries:
    XGBoost and LightGBM would open the file of that name.
    """
    if is_body:
        data = _rows(data)
    if isinstance(data, str | bytes | bytearray | memoryview | PurePath):
        raise ValueError(_ROWS.format("a text"))  # noqa: TRY004 - a ValueError is the caller's mistake
    if is_body and not isinstance(data, list):
        raise ValueError(_ROWS.format("an object" if isinstance(data, dict) else json.dumps(data)))
    if engine == "xgboost" and type(model).__name__ == "Booster":
        matrix = importlib.import_module("xgboost").DMatrix
        if not isinstance(data, matrix):
            if isinstance(data, list | tuple):
                data = importlib.import_module("numpy").asarray(data, dtype="float32")
            data = matrix(data)
    return model.predict(data)


def _rows(data: Any) -> Any:
    if isinstance(data, dict) and len(data) == 1:
        ((name, value),) = data.items()
        if isinstance(value, list) and (name == "instances" or (value and isinstance(value[0], list))):
            return value
    return data


def _hint(engine: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name} where the gateway runs, in the version the model was saved with"
    if engine == "xgboost":
        return "save it with Booster.save_model as .json or .ubj, which every version reads"
    if engine == "lightgbm":
        return "save it with Booster.save_model"
    return "save it with joblib.dump, and install the scikit-learn it was saved with"
