"""Before minutes of work it is said what an export lacks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from deploy.bundles import model_kinds, prerequisites
from deploy.bundles.export.source import find_source
from deploy.bundles.model_kinds import Given
from deploy.tools.errors import DeployError, ExportFailed

FOLDER = Given("transformers", "m", "m", Path("m"))


def test_an_export_without_torch_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel for CPUs too, which PyPI does not have."""
    prerequisites.check(FOLDER)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DeployError, match="needs torch") as told:
        prerequisites.check(FOLDER)
    assert all(word in told.value.hint for word in (".[bundles]", "CPU wheel", "--extra-index-url"))


def test_what_is_ready_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ONNX file, a pickle and a bundle are served without torch."""
    monkeypatch.setitem(sys.modules, "torch", None)
    prerequisites.check(Given("onnx", "m.onnx", "m", Path(), Path("m.onnx")))


def test_code_of_a_model_that_nobody_trusts_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """The export, minutes later and beside a stack that was started for it, would say the same."""
    (tmp_path / "config.json").write_text('{"model_type": "strange", "auto_map": {"AutoModel": "modeling_own.Own"}}')
    given = Given("transformers", str(tmp_path), "own", tmp_path)
    with pytest.raises(ExportFailed, match="modeling_own") as told:
        prerequisites.check(given)
    assert "--trust-remote-code" in told.value.hint
    prerequisites.check(given, trusts_code=True)


@pytest.mark.parametrize(("architecture", "is_refused"), [("BertModel", False), ("OwnBertModel", True)])
def test_a_class_of_a_models_own_is_not_replaced_by_that_of_its_type(
    tmp_path: Path, architecture: str, is_refused: bool
) -> None:
    """transformers would load the weights into its own class, whose answers are others."""
    config = {"model_type": "bert", "architectures": [architecture], "auto_map": {"AutoModel": f"own.{architecture}"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = Given("transformers", str(tmp_path), "own", tmp_path)
    if is_refused:
        with pytest.raises(ExportFailed, match="its own Python code"):
            prerequisites.check(given)
    else:
        prerequisites.check(given)


def test_a_model_that_generates_is_refused_with_how_to_export_it(tmp_path: Path) -> None:
    """Before anything starts, and before weights are loaded."""
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}')
    with pytest.raises(ExportFailed, match="generates text") as told:
        prerequisites.check(model_kinds.recognise(str(tmp_path)))
    with pytest.raises(ExportFailed, match="generates text"):
        find_source(str(tmp_path), task="auto", scratch=tmp_path)
    assert f"optimum-cli export onnx --model {tmp_path} --task text-generation-with-past" in told.value.hint
