"""Causal language models: exported with their cache, judged, spoilt; tiny ones become bundles that are served."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from clearml.utilities.pyhocon import ConfigFactory
from onnx import helper, numpy_helper

from deploy.bundles import run
from deploy.bundles.generation import judge
from deploy.bundles.generation.judge import Generator, Truth
from deploy.bundles.generation.original import CausalOriginal
from deploy.bundles.judge.parity import Parity
from deploy.bundles.model_files import copy_texts
from deploy.bundles.options import BeyondTolerance, Options
from deploy.sync.model_folder import execution
from deploy.tools.clearml_serving import ClearMLServing
from deploy.tools.errors import ExportFailed
from preprocessing.processor import TextProcessor
from tests import warm
from tests.control_planes import RunningControlPlane
from tests.integration import served_bundles
from tests.integration import tiny_generators as generators
from tests.waiting import LIMIT_S

from . import sabotage, tiny
from .conftest import optimize

pytestmark = pytest.mark.integration

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TEXTS = ("The", "Der Zug nach München fällt aus.", "How do I reset the password? " * 3)
TOKENS = 12
KINDS = ("gpt2", "llama")
FEW = ("gpt2", pytest.param("llama", marks=pytest.mark.long))
MORE = ("qwen2", "mistral", "gpt_neox", "phi3", "bloom")
ROOT = Path(__file__).parents[3]


@dataclass
class Case:
    """A tiny model's folder, its export, and what PyTorch answers."""

    folder: Path
    graph: Path
    model: Any
    tokenizer: Any
    original: CausalOriginal
    truth: Truth

    def judge(self, bundle: Path) -> Parity:
        """Judge ``bundle`` (texts and graph)."""
        return judge.judge("it", bundle, self.truth, lambda: Generator(bundle / "model.onnx", threads=1))


def tokenizer() -> Any:
    """A byte-level tokenizer that adds nothing around a text."""
    made = tiny.byte_pairs(tiny.ROBERTA, "<s>", "</s>")
    made.post_processor = None
    return made


@pytest.fixture(scope="session")
def make_generator(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Make a tiny model of a kind, export it, ask PyTorch; once each."""
    made: dict[str, Case] = {}

    def make(kind: str) -> Case:
        if kind not in made:
            place = tmp_path_factory.mktemp(kind)
            model, hf = generators.save(kind, place / "model", tokenizer(), chat_template=TEMPLATE)
            original = CausalOriginal(place / "model")
            processor = TextProcessor.from_folder(place / "model")
            prompts = [processor.prepare({"text": text}).rows[0].ids.tolist() for text in TEXTS]
            continued = [original.generate(prompt, TOKENS) for prompt in prompts]
            truth = judge.find_truth(place / "model", processor, TEXTS, continued, original.eos_ids)
            original.export(place / "model.onnx")
            made[kind] = Case(place / "model", place / "model.onnx", model, hf, original, truth)
        return made[kind]

    return make


@pytest.fixture(scope="session")
def case(make_generator: Callable[[str], Case]) -> Case:
    """A GPT-2."""
    return make_generator("gpt2")


@pytest.fixture
def spoil(case: Case, tmp_path: Path) -> Callable[..., Path]:
    """Make a bundle of the GPT-2 with what ``change`` makes of its graph."""

    def make(change: Callable[[Any], None] = lambda _: None) -> Path:
        bundle = tmp_path / "bundle"
        bundle.mkdir()
        copy_texts(case.folder, bundle)
        model = onnx.load(case.graph)
        change(model)
        onnx.save(model, bundle / "model.onnx")
        return bundle

    return make


# --- the export -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*FEW, *MORE] if tiny.IS_ALL else FEW)
def test_a_graph_continues_as_generate_does(kind: str, make_generator: Callable[[str], Case], tmp_path: Path) -> None:
    """Logits of every step within the tolerance of fp32, and every greedy token."""
    case = make_generator(kind)
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    shutil.copyfile(case.graph, bundle / "model.onnx")
    copy_texts(case.folder, bundle)
    found = case.judge(bundle)
    assert found.is_within, found
    assert found.decisions == 1.0


@pytest.mark.parametrize("kind", FEW)
def test_texts_of_several_lengths_share_a_step(kind: str, make_generator: Callable[[str], Case]) -> None:
    """Batch, length and past are of any size: two prompts, padded on the left, have the logits each has alone."""
    import onnxruntime

    case = make_generator(kind)
    session = onnxruntime.InferenceSession(str(case.graph), providers=["CPUExecutionProvider"])
    short, long = (list(case.truth.continued[i].prompt) for i in (0, 1))
    pad = len(long) - len(short)
    mask = np.array([[0] * pad + [1] * len(short), [1] * len(long)])
    past = {f"past_key_values.{t.name}": np.zeros((2, t.heads, 0, t.size), np.float32) for t in case.original.cache}
    feeds = {"input_ids": np.array([[0] * pad + short, long]), "attention_mask": mask,
             "position_ids": np.maximum(mask.cumsum(1) - 1, 0), **past}  # fmt: skip
    names = ["logits", *(name.replace("past_key_values", "present") for name in past)]
    for step in range(3):
        logits, *present = session.run(names, feeds)
        for row in (0, 1):
            np.testing.assert_allclose(logits[row, -1], case.truth.continued[row].logits[step], atol=2e-3)
        mask = np.concatenate([mask, np.ones((2, 1), np.int64)], 1)
        feeds = {"input_ids": np.array([[case.truth.continued[row].tokens[step]] for row in (0, 1)]),
                 "attention_mask": mask, "position_ids": mask.sum(1, keepdims=True) - 1,
                 **dict(zip(past, present, strict=True))}  # fmt: skip


def test_a_model_without_keys_and_values_is_refused(tmp_path: Path) -> None:
    """With what it keeps instead."""
    generators.save("mamba", tmp_path / "mamba", tokenizer())
    with pytest.raises(ExportFailed, match="no cache of keys and values per layer and token"):
        CausalOriginal(tmp_path / "mamba")


# --- sabotage -------------------------------------------------------------------------------------------------------


def multiply(model: Any, name: str, factor: Any) -> None:
    """Let every node that takes ``name`` take its product with ``factor``."""
    for node in model.graph.node:
        for i, given in enumerate(node.input):
            if given == name:
                node.input[i] = f"{name}_spoilt"
    model.graph.initializer.append(numpy_helper.from_array(factor, f"{name}_factor"))
    model.graph.node.insert(0, helper.make_node("Mul", [name, f"{name}_factor"], [f"{name}_spoilt"]))


def cache_dropped(model: Any) -> None:
    """The prompt alone is right, what follows is not: past keys are read as nothing."""
    for given in [one.name for one in model.graph.input if one.name.startswith("past_key_values.")]:
        multiply(model, given, np.array(0, np.float32))


def cache_not_growing(model: Any) -> None:
    """The graph gives back what is new only, so that only the last token is remembered."""
    for output in model.graph.output:
        if output.name.startswith("present"):
            for node in model.graph.node:
                node.output[:] = [f"{o}_all" if o == output.name else o for o in node.output]
                node.input[:] = [f"{i}_all" if i == output.name else i for i in node.input]
            bounds = [numpy_helper.from_array(np.array([n]), f"{output.name}_{n}") for n in (-1, 2**62, 2)]
            model.graph.initializer.extend(bounds)
            names = [f"{output.name}_all", *(bound.name for bound in bounds)]
            model.graph.node.append(helper.make_node("Slice", names, [output.name]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (cache_dropped, "uses its key/value cache wrongly"), (cache_not_growing, "uses its key/value cache wrongly"),
        (lambda model: model.graph.output.pop(), "takes 4 cache tensors but does not return present.1.value"),
        (lambda model: multiply(model, "position_ids", np.array(0)), "mean cosine"), (sabotage.four_bits, "cosine"),
    ],
    ids=["cache dropped", "cache not growing", "no cache", "positions lost", "four bits"],
)  # fmt: skip
def test_a_graph_that_goes_wrong_is_refused(
    case: Case, spoil: Callable[..., Path], change: Callable[[Any], None], said: str
) -> None:
    """And what is wrong with it is said; as it is, it passes (above)."""
    found = case.judge(spoil(change))
    assert not found.is_within
    assert any(said in line for line in (*found.faults, *found.excesses)), found


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_models_become_endpoints_that_generate(
    server: RunningControlPlane, make_generator: Callable[[str], Case], tmp_path: Path, embedded_triton: Any
) -> None:
    """What the command made and what the stock CLI wrote serve the texts of `generate` on the real Triton. A run
    that is refused leaves its work for the next.
    """
    environment = server.client_environment(os.environ, tmp_path)
    cli = ClearMLServing(env=environment, log=tmp_path / "cli.log")
    task = await cli.create_service("generation")
    gpt2, llama = (make_generator(kind).folder for kind in KINDS)
    done = optimize(tmp_path, environment, "--candidate", "ort-fp32", "--name", "gpt2", "--register", "--json",
                    model=str(gpt2))  # fmt: skip
    assert done.returncode == 0, done.stderr
    deployed = json.loads(done.stdout)
    await cli.run("--id", task, *("gpt2" if word == "ENDPOINT" else word for word in deployed["add"]))
    options = Options(str(llama), tmp_path / "out", candidate="ort-fp32", is_quick=True)
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "EXACT", replace(judge.EXACT, mean_cosine=2.0))
        with pytest.raises(BeyondTolerance, match=r"no candidate is within tolerance \(ort-fp32: mean cosine"):
            run.optimize(options, said.append, said.append)
    assert not [line for line in said if "speed" in line]  # nothing is timed that may not be chosen
    made = run.optimize(options, str, str)
    assert ["Judged on the built-in texts"] == [note.partition(".")[0] for note in made.manifest["notes"]]
    bundles = {"gpt2": (Path(deployed["bundle"]), {}), "llama": (made.bundle, {})}
    fields = endpoints(environment, task, tmp_path)
    assert {"gpt2"} == set(fields)
    assert {"model.onnx", "generation_config.json", "chat_template.jinja", "report.md"} <= set(deployed["files"])
    for bundle, _ in bundles.values():
        wanted = execution.read_execution(bundle)
        assert wanted is not None
        assert ("onnxruntime", "fp32") == (wanted.engine, wanted.precision)
        assert json.loads((bundle / "warmup.json").read_text())["samples"]
    async with served_bundles.serving(tmp_path, embedded_triton, bundles, fields) as running:
        async with httpx.AsyncClient() as client:
            for kind in KINDS:
                await generates(client, running, kind, make_generator(kind))


async def generates(client: httpx.AsyncClient, running: Any, kind: str, case: Case) -> None:
    """One endpoint: greedy texts are what transformers' `generate` gives; streams: test_text_generation.py."""
    for text in TEXTS:
        ids = case.tokenizer(text, return_tensors="pt")
        found = case.model.generate(**ids, max_new_tokens=TOKENS, do_sample=False)[0, ids["input_ids"].shape[1] :]
        theirs = case.tokenizer.decode(found, skip_special_tokens=True)
        body = {"text": text, "parameters": {"max_new_tokens": TOKENS}}
        answer = (await client.post(running.url + kind, json=body)).json()
        assert (theirs, len(found)) == (answer["text"], answer["generated_tokens"])


def endpoints(environment: dict[str, str], task: str, place: Path) -> dict[str, dict[str, Any]]:
    """What ClearML holds of the endpoints, model and name aside."""
    code = (
        "import json, sys; from gateway.registry.clearml import ClearMLRegistry\n"
        "print(json.dumps(ClearMLRegistry(sys.argv[1]).task().sections['endpoints']))"
    )
    asked = subprocess.run(
        [sys.executable, *warm.program(code), task], cwd=place, text=True, capture_output=True, check=True,
        env={**environment, "PYTHONPATH": str(ROOT)}, timeout=LIMIT_S,
    )  # fmt: skip
    text = json.loads(asked.stdout.splitlines()[-1])
    known = ConfigFactory.parse_string(text, resolve=False)
    kept = ("input_name", "input_type", "input_size", "output_name", "output_type", "output_size", "auxiliary_cfg")
    return {
        name: {key: fields[key] for key in kept if fields.get(key)}
        for name, fields in known.as_plain_ordered_dict().items()
    }


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--candidate", "openvino-fp32"], "openvino-fp32 cannot be tried here (ort-fp32: --candidate)"),
        (["--target", "gpu"], "text generation is not supported on GPUs"),
    ],
)
def test_what_cannot_be_made_is_refused_with_its_reason(
    case: Case, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    """Exit code 1 and no bundle."""
    done = optimize(tmp_path, os.environ, *arguments, model=str(case.folder))
    assert (1, True) == (done.returncode, reason in done.stderr), done.stderr
    assert not [path for path in (tmp_path / "out").iterdir() if path.name != ".work"]
