"""Before minutes of work it is said what an export lacks, and what the hub does not give."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from deploy.bundles import hub, model_kinds, prerequisites
from deploy.bundles.export.source import find_source
from deploy.bundles.model_kinds import Given
from deploy.tools.errors import DeployError, ExportFailed

FOLDER = Given("transformers", "m", "m", Path("m"))


def test_an_export_without_torch_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel for CPUs too, which PyPI does not have."""
    prerequisites.check(FOLDER)
    monkeypatch.setitem(sys.modules, "torch", None)
    prerequisites.check(Given("onnx", "m.onnx", "m", Path(), Path("m.onnx")))  # is ready
    with pytest.raises(DeployError, match="needs torch") as told:
        prerequisites.check(FOLDER)
    assert all(word in told.value.hint for word in (".[bundles]", "CPU wheel", "--extra-index-url"))


@pytest.mark.parametrize(
    ("config", "is_refused"),
    [
        ({"model_type": "strange", "auto_map": {"AutoModel": "own.Own"}}, True),
        (
            {"model_type": "bert", "architectures": ["OwnBertModel"], "auto_map": {"AutoModel": "own.OwnBertModel"}},
            True,
        ),
        ({"model_type": "bert", "architectures": ["BertModel"], "auto_map": {"AutoModel": "own.BertModel"}}, False),
    ],
    ids=["unknown type", "its own class of a known type", "a known class"],
)
def test_code_of_a_model_that_nobody_trusts_is_refused_before_anything_starts(
    tmp_path: Path, config: dict[str, object], is_refused: bool
) -> None:
    """transformers would load the weights of its own class into that of its type, whose answers are others."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = Given("transformers", str(tmp_path), "own", tmp_path)
    if is_refused:
        with pytest.raises(ExportFailed, match=r"own Python code|own\.Own") as told:
            prerequisites.check(given)
        assert "--trust-remote-code" in told.value.hint
    prerequisites.check(given, trusts_code=True)


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


class NotFoundError(Exception):
    """As the client raises it: with the answer."""

    response = SimpleNamespace(status_code=404)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("Name or service not known\nmore"), "cannot be reached (Name or service not known)"),
        (NotFoundError("404"), "no model of that name"),  # private models look the same to a stranger
    ],
)
def test_a_refusal_says_what_to_do(error: Exception, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong name is not blamed on the network."""
    client = Mock(snapshot_download=Mock(side_effect=error))
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    with pytest.raises(DeployError) as told:
        hub.fetch("x/y")
    assert said in told.value.line()
