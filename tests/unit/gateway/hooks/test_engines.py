"""Models of the Python engines in every form that clearml-serving accepts, with the real libraries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from gateway.hooks.engines import load_model, model_file, predict
from preprocessing.errors import UserCodeLoadError

X = np.array([[0.0, 1.0], [1.0, 0.0], [0.2, 0.9], [0.8, 0.1]] * 10)
Y = np.array([0, 1, 0, 1] * 10)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, Any]]:
    """Train a model of an engine and save it. Return its path and its predictions for X."""
    folder = tmp_path_factory.mktemp("models")
    logistic = LogisticRegression().fit(X, Y)
    booster = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(X, Y), 3)
    light = lightgbm.train({"objective": "binary", "verbose": -1, "min_data_in_leaf": 1}, lightgbm.Dataset(X, Y), 3)

    def save(engine: str, name: str) -> tuple[Path, Any]:
        path = folder / name
        model, wanted = {
            "sklearn": (logistic, logistic.predict(X)),
            "xgboost": (booster, booster.predict(xgboost.DMatrix(X))),
            "lightgbm": (light, light.predict(X)),
        }[engine]
        if name.endswith((".pkl", ".joblib", ".gz")):
            joblib.dump(model, path)
        else:
            model.save_model(path)
        return path, wanted

    return save


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("sklearn", "model.pkl"), ("sklearn", "model.joblib"), ("sklearn", "model.pkl.gz"), ("xgboost", "model.json"),
        ("xgboost", "model.ubj"), ("xgboost", "booster.pkl"), ("lightgbm", "model.txt"), ("lightgbm", "light.pkl"),
    ],
)  # fmt: skip
def test_a_saved_model_predicts_the_same(saved: Any, tmp_path: Path, engine: str, name: str) -> None:
    """From its file and from a folder; with rows as lists, as arrays, and as XGBoost's DMatrix, which hooks return."""
    path, wanted = saved(engine, name)
    (tmp_path / "readme.md").touch()
    (tmp_path / name).write_bytes(path.read_bytes())
    for place in (path, tmp_path):
        model = load_model(engine, place)
        for rows in (X, X.tolist()):
            assert np.allclose(wanted, predict(engine, model, rows, is_body=rows is not X))
        if engine == "xgboost":
            assert np.allclose(wanted, predict(engine, model, xgboost.DMatrix(X), is_body=False))


@pytest.mark.parametrize(
    ("engine", "name"), [("sklearn", "model.pkl"), ("xgboost", "model.json"), ("lightgbm", "model.txt")]
)
def test_a_body_is_rows_and_anything_else_the_callers_mistake(saved: Any, engine: str, name: str) -> None:
    """Rows may come under a name, as KServe v1's ``instances`` and as the only tensor of the Open Inference Protocol.

    A ValueError is a refusal with 422. XGBoost and LightGBM would predict from the file that a text names: a caller
    could have files of the gateway read.
    """
    path, wanted = saved(engine, name)
    model = load_model(engine, path)
    for key in ("instances", "x"):
        assert np.allclose(wanted, predict(engine, model, {key: X.tolist()}, is_body=True))
    for data, said in (({"x": 1.0, "y": 2.0}, "an object"), (None, "null"), (7, "7"), (str(path), "a text")):
        with pytest.raises(ValueError, match=f"not {said}$"):
            predict(engine, model, data, is_body=True)
    for form in (str, str.encode, Path):
        with pytest.raises(ValueError, match=r"list of rows, such as .* not a text"):
            predict(engine, model, form(str(path)), is_body=False)


_AFTERWARDS = "class Preprocess:\n    def postprocess(self, data, state, collect=None):\n        return list(data)\n"
_BEFORE = "class Preprocess:\n    def preprocess(self, body, state, collect=None):\n        return [body['text']]\n"


async def test_a_text_model_answers_rows_and_refuses_objects(stack: Any) -> None:
    """It would iterate over an object's keys and answer them with 200. With a class's ``preprocess``, the body has the
    class's own form.
    """
    model = make_pipeline(TfidfVectorizer(), LogisticRegression())
    model.fit(["good film", "good", "bad film", "bad"], ["pos", "pos", "neg", "neg"])
    joblib.dump(model, stack.folder / "model.joblib")
    stack.registry.add_model("m", stack.folder / "model.joblib")
    stack.registry.add_endpoint("alone", "m", engine="sklearn")
    stack.add_hook("after", _AFTERWARDS, "m", engine="sklearn")
    stack.add_hook("before", _BEFORE, "m", engine="sklearn")
    await stack.served("alone", "after", "before")
    assert ["pos"] == (await stack.client.post("/serve/before", json={"text": "good film"})).json()
    for url in ("alone", "after"):
        assert ["pos"] == (await stack.client.post(f"/serve/{url}", json=["good film"])).json()
        for body in ({"text": "good film"}, {"good": 1, "film": 2}, "good film", {}, 1):
            reply = await stack.client.post(f"/serve/{url}", json=body)
            assert (422, "input_refused") == (reply.status_code, reply.json()["code"]), (body, reply.text)
        reply = await stack.client.post(f"/v1/models/{url}:predict", json={"instances": ["good film", "bad"]})
        assert {"predictions": ["pos", "neg"]} == reply.json()


@pytest.mark.parametrize(
    ("engine", "name", "content"),
    [("sklearn", "m.pkl", b"?"), ("xgboost", "m.json", b"{}"), ("lightgbm", "m.txt", b"tree")],
)
def test_a_file_that_is_not_a_model_is_reported(tmp_path: Path, engine: str, name: str, content: bytes) -> None:
    """With its name, the reason, and how to save a model. So is a pickle of something else."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserCodeLoadError, match=f"{name} cannot be loaded as a model of {engine}") as refused:
        load_model(engine, tmp_path / name)
    assert "save" in (refused.value.hint or "")
    joblib.dump({"x": 1}, tmp_path / "m.pkl")
    with pytest.raises(UserCodeLoadError, match="dict, which has no predict"):
        load_model(engine, tmp_path / "m.pkl")


def test_a_folder_needs_one_model_and_an_engine_its_library(tmp_path: Path) -> None:
    """Of several candidates the file named model.* is used."""
    for engine, said in (("sklearn", "has no model"), ("nosuchengine", "a package that is not installed")):
        with pytest.raises(UserCodeLoadError, match=said):
            load_model(engine, None)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).touch()
    with pytest.raises(UserCodeLoadError, match="2 files that could be the model"):
        model_file("lightgbm", tmp_path)
    (tmp_path / "model.txt").touch()
    assert tmp_path / "model.txt" == model_file("lightgbm", tmp_path)
