"""One real gateway in front of the real Triton, for every client and form: text tasks, plain models, a canary."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import TensorProto, helper
from tokenizers import Tokenizer

from gateway.app import Gateway
from gateway.settings import Settings
from gateway.spec import decode, triton_model_name
from gateway.triton.backend import TritonBackend
from tests import tiny, words
from tests.core_client import in_a_thread
from tests.fakes import FakeRegistry
from tests.integration import tiny_generators as generators
from tests.processes import free_port
from tests.unit.preprocessing.tokenizer_families import gpt2
from tests.waiting import until

WORDS = [*words.SPECIAL, "[MASK]", *words.WORDS]
SIZE = 8
"""Numbers in a sentence vector."""

DTYPES = {
    "TEXT": TensorProto.STRING, "HALF": TensorProto.FLOAT16, "I64": TensorProto.INT64, "U8": TensorProto.UINT8,
    "F64": TensorProto.DOUBLE, "FLAG": TensorProto.BOOL, "F32": TensorProto.FLOAT, "I8": TensorProto.INT8,
}  # fmt: skip
"""Inputs of the identity model; each comes back as ``NAME_OUT``."""


def _write_identity(folder: Path) -> None:
    tiny.saved(
        folder / "model.onnx", [helper.make_node("Identity", [name], [f"{name}_OUT"]) for name in DTYPES],
        *([(f"{name}{end}", kind, ("batch", "n")) for name, kind in DTYPES.items()] for end in ("", "_OUT")),
    )  # fmt: skip


def _write_text_parts(folder: Path, architecture: str = "BertForSequenceClassification", **config: Any) -> None:
    words.text_bundle(folder, architecture, words=WORDS, **{"max_position_embeddings": 64, **config})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([word for word in WORDS if word.startswith("[")])
    tokenizer.save(str(folder / "tokenizer.json"))


def _write_classifier(folder: Path) -> None:
    """Logits are the number of `bad` and of `good` in a text."""
    _write_text_parts(folder)
    tiny.summed(folder / "model.onnx", _worth(2, bad=[1, 0], good=[0, 1]), "logits")


def _write_embedder(folder: Path) -> None:
    """A sentence is the sum of its words' vectors, pooled in the graph."""
    _write_text_parts(folder, "BertModel", hidden_size=SIZE)
    modules = [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
               {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
               {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": SIZE, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    table = np.random.default_rng(7).normal(size=(len(WORDS), SIZE)).astype(np.float32)
    tiny.summed(folder / "model.onnx", table, "sentence_embedding")


def _write_per_token(path: Path, tables: Mapping[str, Any]) -> None:
    """Each output is a row of its table for every token; a table of one column has no last dimension."""
    nodes = [helper.make_node("Gather", [f"{name}_table", "input_ids"], [name]) for name in tables]
    found = [(name, TensorProto.FLOAT, ("batch", "sequence", *table.shape[1:])) for name, table in tables.items()]
    weights = {f"{name}_table": table.astype(np.float32) for name, table in tables.items()}
    tiny.saved(path, nodes, tiny.TOKENS, found, **weights)


def _worth(columns: int = 0, **words: Any) -> Any:
    """A table with what each word is worth; the rest is nothing."""
    table = np.zeros((len(WORDS), columns) if columns else len(WORDS), np.float32)
    for word, value in words.items():
        table[WORDS.index(word)] = value
    return table


def _write_tasks(folder: Path) -> None:
    """Models that know a word or two, one for each of the other tasks."""
    labels = {"0": "O", "1": "B-PER", "2": "I-PER"}
    _write_text_parts(folder / "ner", "BertForTokenClassification", id2label=labels)
    per_token = {"logits": _worth(3, hello=[0, 5, 0], world=[0, 0, 5]) + np.array([2, 0, 0])}
    _write_per_token(folder / "ner" / "model.onnx", per_token)
    _write_text_parts(folder / "qa", "BertForQuestionAnswering")
    spans = {"start_logits": _worth(film=5, good=8), "end_logits": _worth(film=9, good=5)}
    _write_per_token(folder / "qa" / "model.onnx", spans)
    _write_text_parts(folder / "mask", "BertForMaskedLM")
    tokenizer = {"mask_token": "[MASK]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    (folder / "mask" / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    guess = np.zeros(len(WORDS))
    guess[[WORDS.index("film"), WORDS.index("world")]] = 3, 2
    _write_per_token(folder / "mask" / "model.onnx", {"logits": _worth(len(WORDS), **{"[MASK]": guess})})
    entailment = {"0": "contradiction", "1": "neutral", "2": "entailment"}
    _write_text_parts(folder / "zero", id2label=entailment)
    tiny.summed(folder / "zero" / "model.onnx", _worth(3, good=[0, 0, 2], bad=[2, 0, 0]), "logits")
    _write_text_parts(folder / "rank", id2label={"0": "LABEL_0"}, sentence_transformers={"version": "5.0.0"})
    tiny.summed(folder / "rank" / "model.onnx", _worth(1, film=[2], bad=[-1]), "logits")


CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@dataclass(frozen=True)
class Generator:
    """A random causal model as a bundle, and what transformers makes of it."""

    folder: Path
    model: Any
    tokenizer: Any


def make_generator(folder: Path, kind: str) -> Generator:
    """What it says makes no sense, but is always the same."""
    made = Generator(folder, *generators.save(kind, folder, gpt2(), chat_template=CHAT_TEMPLATE))
    generators.export(folder)
    return made


@pytest.fixture(scope="session")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Generator:
    """A GPT-2 with a chat template."""
    return make_generator(tmp_path_factory.mktemp("generator") / "gpt2", "gpt2")


@dataclass(frozen=True)
class Stack:
    """Where the gateway and its Triton answer; ``triton_names`` by endpoint url."""

    http: str
    grpc: str
    triton_http: str
    triton_grpc: str
    triton_names: Mapping[str, str]

    @property
    def url(self) -> str:
        """The gateway's address with its scheme."""
        return f"http://{self.http}"


@pytest.fixture(scope="session")
def stack(
    embedded_triton: Any, generator: Generator, tmp_path_factory: pytest.TempPathFactory, make_token_model: Any
) -> Iterator[Stack]:
    """The gateway in a thread of its own; all endpoints are served when the test begins."""
    folder = tmp_path_factory.mktemp("forms")
    _write_classifier(folder / "classifier")
    _write_classifier(folder / "classifier2")
    _write_embedder(folder / "embedder")
    _write_identity(folder / "identity")
    shutil.copytree(generator.folder, folder / "generator")
    _write_tasks(folder)
    make_token_model(folder / "tokens" / "model.onnx")
    endpoints: list[tuple[str, str, dict[str, Any]]] = [
        ("sentiment", "classifier", {"version": "1"}), ("sentiment", "classifier2", {"version": "2"}),
        ("vectors", "embedder", {}), ("team/identity", "identity", {}), ("tokens", "tokens", {}),
        ("story", "generator", {}), *((name, name, {}) for name in ("ner", "qa", "mask", "rank")),
        ("zero", "zero", {"auxiliary_cfg": {"gateway": {"task": "zero-shot-classification"}}}),
    ]  # fmt: skip
    registry = FakeRegistry()
    for url, model, fields in endpoints:
        registry.add_model(
            model, Path(shutil.make_archive(str(folder / model), "zip", folder / model)), is_package=True
        )
        registry.add_endpoint(url, model, **fields)
    registry.canary["live"] = {
        "endpoint": "live", "weights": [0.5, 0.5], "load_endpoints": ["sentiment/1", "sentiment/2"],
    }  # fmt: skip
    names: dict[str, str] = {}
    for url, spec in decode(registry.task()).endpoints.items():
        assert spec.model_id is not None
        names[url] = triton_model_name(spec, registry.model(spec.model_id))
        embedded_triton.serve(folder / spec.model_id, name=names[url])
    rpc = free_port()
    settings = Settings(
        state_dir=folder / "state", triton_grpc=embedded_triton.grpc, grpc_port=rpc, poll_frequency="200ms"
    )
    try:
        with in_a_thread(Gateway(settings, registry=registry, make_backend=TritonBackend)) as port:
            until(lambda: httpx.get(f"http://127.0.0.1:{port}/v2/health/ready").status_code == 200)
            yield Stack(f"127.0.0.1:{port}", f"127.0.0.1:{rpc}", embedded_triton.http, embedded_triton.grpc, names)
    finally:
        for name in names.values():
            embedded_triton.withdraw(name)
