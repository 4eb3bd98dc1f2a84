"""runtime.json: what a bundle needs of a CPU is checked before Triton is asked to load it."""

from __future__ import annotations

import hashlib
import json

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from deploy.sync.model_folder.build import Builder
from deploy.sync.model_folder.execution import (
    BF16,
    FILE,
    Execution,
    check_cpu,
    cpu_features,
    decode,
    encode,
    read_execution,
)
from deploy.sync.model_folder.model_config import Tuning
from gateway.errors import ArtifactCorrupt, SpecFault
from gateway.spec import EndpointSpec, ModelRecord

BF16_BUNDLE = Execution("openvino", "bf16", needs=(BF16,), fallback="make another bundle")


def graph(folder, **names):
    """A graph of ids and mask, small enough to be written by hand."""
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    inputs = [
        helper.make_tensor_value_info(n, kinds.INT64, ["batch", "sequence"]) for n in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("logits", kinds.INT64, ["batch", "sequence"])
    node = helper.make_node("Add", ["input_ids", "attention_mask"], ["logits"])
    model = helper.make_model(helper.make_graph([node], "g", inputs, [output]))
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    return folder


def built(folder, engine="python", features=frozenset({"avx512_bf16"}), pairs=None):
    """The config.pbtxt of a folder, parsed."""
    endpoint = EndpointSpec("m", "m", "", "triton", "m", auxiliary_json=json.dumps(pairs or {}))
    build = Builder(engine, Tuning(), features).build("m", endpoint, ModelRecord("m", "m", "", "onnx"), folder)
    return text_format.Parse(build.config, model_config_pb2.ModelConfig())


@pytest.mark.parametrize("engine", ["python", "native"])
def test_a_model_that_is_not_the_judged_one_is_not_given_to_triton(tmp_path, engine):
    """Whichever Triton it is."""
    bundle = graph(tmp_path / "bundle")
    judged = hashlib.sha256((bundle / "model.onnx").read_bytes()).hexdigest()
    (bundle / "manifest.json").write_text(json.dumps({"files": {"model.onnx": judged}}))
    built(bundle, engine=engine)
    with (bundle / "model.onnx").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ArtifactCorrupt, match=r"model\.onnx of the bundle is not the file that was judged"):
        built(bundle, engine=engine)


def test_what_is_written_is_read_again():
    """Every field survives."""
    assert BF16_BUNDLE == decode(json.loads(encode(BF16_BUNDLE)))


@pytest.mark.parametrize("spoiled", [{"format": 2}, {"engine": "tensorflow"}, {"needs": ["avx2"]}, {"precision": 8}])
def test_a_spoiled_file_is_refused_by_name(tmp_path, spoiled):
    """The message names the file and the remedy."""
    (tmp_path / FILE).write_text(json.dumps({**json.loads(encode(BF16_BUNDLE)), **spoiled}))
    with pytest.raises(SpecFault, match=r"runtime\.json") as caught:
        read_execution(tmp_path)
    assert "triton-gateway optimize" in caught.value.hint


def test_features_are_read_from_cpuinfo():
    """x86 calls them flags, ARM Features."""
    assert {"avx2", "amx_bf16"} == cpu_features("processor: 0\nflags\t\t: avx2 amx_bf16\n\nprocessor: 1\nflags: x\n")
    assert {"asimddp", "bf16"} == cpu_features("Features\t: asimddp bf16\n")


def test_a_cpu_without_the_feature_is_refused_with_the_fallback():
    """Which feature, and what to do instead."""
    with pytest.raises(SpecFault, match="needs a CPU with amx_bf16 or avx512_bf16 or bf16") as caught:
        check_cpu(BF16_BUNDLE, frozenset({"avx2"}))
    assert "make another bundle" == caught.value.hint


def test_any_one_of_a_group_is_enough_and_a_silent_kernel_is_trusted():
    """A bundle is not refused for want of knowledge."""
    check_cpu(BF16_BUNDLE, frozenset({"avx512_bf16"}))
    check_cpu(BF16_BUNDLE, frozenset())


def test_a_bundle_on_the_wrong_cpu_is_never_written(tmp_path):
    """Model sync refuses it when it builds the folder: nothing reaches Triton."""
    folder = graph(tmp_path / "m")
    (folder / FILE).write_text(encode(BF16_BUNDLE))
    with pytest.raises(SpecFault, match="which this machine does not have"):
        built(folder, features=frozenset({"avx2"}))


def test_engine_and_precision_reach_the_embedded_servers_program(tmp_path):
    """As parameters; --aux-config wins over the bundle."""
    folder = graph(tmp_path / "m")
    (folder / FILE).write_text(encode(BF16_BUNDLE))
    config = built(folder, pairs={"parameters": {"precision": "fp32"}})
    found = {name: value.string_value for name, value in config.parameters.items()}
    assert ("python", "openvino", "fp32") == (config.backend, found["engine"], found["precision"])


@pytest.mark.parametrize("engine", ["python", "native"])
def test_a_bundle_is_never_given_more_rows_than_it_was_judged_with(tmp_path, engine, caplog):
    """A graph may be right up to 64 rows and wrong above: lowered, and said, since the endpoint shall serve."""
    folder = graph(tmp_path / "m")
    pairs = {"max_batch_size": "128", "dynamic_batching": {"preferred_batch_size": [8, 64, 128]}}
    assert 128 == built(folder, engine=engine, pairs=pairs).max_batch_size, "nobody judged it, so nobody limits it"
    (folder / FILE).write_text(encode(Execution()))
    config = built(folder, engine=engine, pairs=pairs)
    assert (64, [8, 64]) == (config.max_batch_size, list(config.dynamic_batching.preferred_batch_size))
    assert "judged in batches of up to 64 rows: max_batch_size 128 is lowered" in caplog.text


def test_a_full_triton_gets_its_own_backend_and_parameters(tmp_path):
    """The same bundle, the same --aux-config."""
    folder = graph(tmp_path / "m")
    (folder / FILE).write_text(encode(BF16_BUNDLE))
    config = built(folder, engine="native", pairs={"parameters": {"threads": "2"}})
    found = {name: value.string_value for name, value in config.parameters.items()}
    assert ("openvino", "model.onnx") == (config.backend, config.default_model_filename)
    assert {"INFERENCE_NUM_THREADS": "2", "NUM_STREAMS": "1", "HINT_BF16": "yes"} == found


def test_onnx_runtime_on_a_full_triton(tmp_path):
    """Threads under the names of its ONNX Runtime backend."""
    folder = graph(tmp_path / "m")
    (folder / FILE).write_text(encode(Execution()))
    config = built(folder, engine="native", pairs={"parameters": {"threads": "2"}})
    assert "onnxruntime" == config.backend
    assert {"intra_op_thread_count": "2", "inter_op_thread_count": "1"} == {
        n: v.string_value for n, v in config.parameters.items()
    }


def test_a_gpu_bundle_gets_tensorrt_in_fp16(tmp_path):
    """The configuration is Triton's own message, so its names are checked; it was not run on a GPU."""
    folder = graph(tmp_path / "m")
    (folder / FILE).write_text(encode(Execution(precision="fp16", target="gpu")))
    config = built(folder, engine="native")
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert ("tensorrt", "FP16") == (accelerator.name, accelerator.parameters["precision_mode"])
    assert [model_config_pb2.ModelInstanceGroup.KIND_GPU] == [g.kind for g in config.instance_group]


def test_a_gpu_bundle_is_refused_on_the_embedded_server(tmp_path):
    """It has no GPU."""
    folder = graph(tmp_path / "m")
    (folder / FILE).write_text(encode(Execution(precision="fp16", target="gpu")))
    with pytest.raises(SpecFault, match="made for a Triton with a GPU"):
        built(folder)


def test_a_model_without_the_file_is_built_as_before(tmp_path):
    """No engine, no precision: ONNX Runtime in the program's own defaults."""
    config = built(graph(tmp_path / "m"))
    assert {"threads"} == set(config.parameters)
