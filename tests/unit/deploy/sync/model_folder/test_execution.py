"""runtime.json: what a bundle needs of a CPU is checked before Triton is asked to load it."""

from __future__ import annotations

import hashlib
import json

import pytest
from google.protobuf import text_format
from onnx import TensorProto, helper
from tritonclient.grpc import model_config_pb2

from deploy.sync.model_folder.build import Builder
from deploy.sync.model_folder.execution import BF16, FILE, Execution, Tuning, cpu_features, encode, tuning_for
from gateway.errors import ArtifactCorrupt, SpecFault
from gateway.spec import EndpointSpec, ModelRecord
from tests import tiny

BF16_BUNDLE = Execution("openvino", "bf16", needs=(BF16,))


def graph(folder, execution=None):
    """A graph of ids and mask, and its runtime.json."""
    node = helper.make_node("Add", ["input_ids", "attention_mask"], ["logits"])
    tiny.saved(folder / "model.onnx", [node], tiny.TOKENS, [("logits", TensorProto.INT64, ("batch", "sequence"))])
    if execution is not None:
        (folder / FILE).write_text(encode(execution))
    return folder


def built(folder, engine="python", features=frozenset({"avx512_bf16"}), pairs=None):
    """The config.pbtxt of a folder, parsed."""
    endpoint = EndpointSpec("m", "m", "", "triton", "m", auxiliary_json=json.dumps(pairs or {}))
    build = Builder(engine, Tuning(), features).build("m", endpoint, ModelRecord("m", "m", "", "onnx"), folder)
    return text_format.Parse(build.config, model_config_pb2.ModelConfig())


@pytest.mark.parametrize("engine", ["python", "native"])
def test_a_model_that_is_not_the_judged_one_is_not_given_to_triton(tmp_path, engine):
    """Whichever Triton it is."""
    bundle = graph(tmp_path)
    judged = hashlib.sha256((bundle / "model.onnx").read_bytes()).hexdigest()
    (bundle / "manifest.json").write_text(json.dumps({"files": {"model.onnx": judged}}))
    built(bundle, engine=engine)
    with (bundle / "model.onnx").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ArtifactCorrupt, match=r"model\.onnx of the bundle is not the file that was judged"):
        built(bundle, engine=engine)


@pytest.mark.parametrize("spoiled", [{"format": 2}, {"engine": "tensorflow"}, {"needs": ["avx2"]}, {"precision": 8}])
def test_a_spoiled_file_is_refused_by_name(tmp_path, spoiled):
    """The message names the file and the remedy."""
    written = json.loads(encode(BF16_BUNDLE))
    (graph(tmp_path) / FILE).write_text(json.dumps({**written, **spoiled}))
    with pytest.raises(SpecFault, match=r"runtime\.json") as caught:
        built(tmp_path)
    assert "triton-gateway optimize" in caught.value.hint


def test_a_cpu_without_the_feature_is_refused(tmp_path):
    """Before anything reaches Triton. One feature of a group is enough, and a silent kernel is trusted."""
    folder = graph(tmp_path, BF16_BUNDLE)
    with pytest.raises(SpecFault, match="needs a CPU with amx_bf16 or avx512_bf16 or bf16") as caught:
        built(folder, features=frozenset({"avx2"}))
    assert "on this kind of machine" in caught.value.hint
    for features in (frozenset({"avx512_bf16"}), frozenset[str]()):
        assert built(folder, features=features)


FP16_ON_GPU = Execution(precision="fp16", target="gpu")
BUILDS = [
    (None, "python", {}, "python", {"threads": "1"}),
    (BF16_BUNDLE, "python", {"precision": "fp32"}, "python",
     {"threads": "1", "engine": "openvino", "precision": "fp32"}),
    (BF16_BUNDLE, "native", {"threads": "2"}, "openvino",
     {"INFERENCE_NUM_THREADS": "2", "NUM_STREAMS": "1", "HINT_BF16": "yes"}),
    (Execution(), "native", {"threads": "2"}, "onnxruntime",
     {"intra_op_thread_count": "2", "inter_op_thread_count": "1"}),
    (FP16_ON_GPU, "native", {}, "onnxruntime", {}),
]  # fmt: skip
"""runtime.json, server, parameters of --aux-config (which win) → backend and parameters."""


@pytest.mark.parametrize(("execution", "engine", "pairs", "backend", "parameters"), BUILDS, ids=range(len(BUILDS)))
def test_engine_and_precision_reach_the_server(tmp_path, execution, engine, pairs, backend, parameters):
    """The embedded server's program, or a full Triton's own backend under its own names."""
    config = built(graph(tmp_path, execution), engine=engine, pairs={"parameters": pairs} if pairs else {})
    found = {name: value.string_value for name, value in config.parameters.items()}
    assert (backend, parameters) == (config.backend, found)
    assert config.default_model_filename == ("model.onnx" if backend == "openvino" else "")
    if execution == FP16_ON_GPU:  # Triton's own message, so its names are checked; it was not run on a GPU
        (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
        assert ("tensorrt", "FP16") == (accelerator.name, accelerator.parameters["precision_mode"])
        assert [model_config_pb2.ModelInstanceGroup.KIND_GPU] == [g.kind for g in config.instance_group]
        with pytest.raises(SpecFault, match="made for a Triton with a GPU"):
            built(tmp_path)


@pytest.mark.parametrize("engine", ["python", "native"])
def test_a_bundle_is_never_given_more_rows_than_it_was_judged_with(tmp_path, engine, caplog):
    """A graph may be right up to 64 rows and wrong above: lowered, and said, since the endpoint shall serve."""
    pairs = {"max_batch_size": "128", "dynamic_batching": {"preferred_batch_size": [8, 64, 128]}}
    free = built(graph(tmp_path), engine=engine, pairs=pairs)
    assert 128 == free.max_batch_size, "nobody judged it, so nobody limits it"
    config = built(graph(tmp_path, Execution()), engine=engine, pairs=pairs)
    assert (64, [8, 64]) == (config.max_batch_size, list(config.dynamic_batching.preferred_batch_size))
    assert "max_batch_size 128 is lowered" in caplog.text


def test_features_and_cores_of_a_machine():
    """x86 calls them flags, ARM Features. Every core is used: instances were measured to be better than threads, but
    each costs the model's memory, so at most four.
    """
    assert {"avx2", "amx_bf16"} == cpu_features("processor: 0\nflags\t\t: avx2 amx_bf16\n\nprocessor: 1\nflags: x\n")
    assert {"asimddp", "bf16"} == cpu_features("Features\t: asimddp bf16\n")
    found = {cores: (tuning_for(cores).instances, tuning_for(cores).threads) for cores in (1, 2, 4, 8, 30)}
    assert {1: (1, 1), 2: (2, 1), 4: (4, 1), 8: (4, 2), 30: (4, 7)} == found
