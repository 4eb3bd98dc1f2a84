"""What a bundle's ``runtime.json`` means for a full Triton: backend, threads, accelerators of its config.pbtxt.

Pure: a ModelConfig message and an ``Execution`` in, the message changed; called by ``model_config.py`` only. What the
user says with ``--aux-config`` always wins. Names of parameters are those of Triton's ONNX Runtime and OpenVINO
backends; nothing here was measured on a GPU.
"""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import model_config_pb2

from deploy.modelsync.model_folder.execution import Execution

_TENSORRT_WORKSPACE = str(4 << 30)


def run_natively(config: Any, execution: Execution) -> None:
    """Write backend, threads and accelerators for ``execution`` where the user did not choose a backend."""
    if not config.platform and not config.backend:
        config.backend = execution.engine
    threads = config.parameters["threads"].string_value if "threads" in config.parameters else ""
    if execution.target == "gpu":
        _on_gpu(config, execution)
    elif config.backend == "openvino":
        _default(config, "INFERENCE_NUM_THREADS", threads)
        _default(config, "NUM_STREAMS", "1")
        _default(config, "HINT_BF16", "yes" if execution.precision == "bf16" else "no")
    else:
        _default(config, "intra_op_thread_count", threads)
        _default(config, "inter_op_thread_count", "1")
    for ours in ("threads", "max_padding", "pad_to", "spinning"):  # parameters of the embedded server's program
        if ours in config.parameters:
            del config.parameters[ours]


def finish_natively(config: Any) -> None:
    """Name the model file for the one backend whose own default name is not ``model.onnx``."""
    if config.backend == "openvino":
        config.default_model_filename = "model.onnx"


def _on_gpu(config: Any, execution: Execution) -> None:
    if not config.instance_group:
        group = config.instance_group.add()
        group.kind = model_config_pb2.ModelInstanceGroup.KIND_GPU
        group.count = 1
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    if accelerators:
        return
    # Falls back to the CUDA provider for what TensorRT cannot build. An engine per shape takes minutes to build: they
    # are kept beside the model's weights in the server's own temporary folder for the life of the container.
    tensorrt = accelerators.add()
    tensorrt.name = "tensorrt"
    tensorrt.parameters["precision_mode"] = "FP16" if execution.precision == "fp16" else "FP32"
    tensorrt.parameters["max_workspace_size_bytes"] = _TENSORRT_WORKSPACE
    tensorrt.parameters["trt_engine_cache_enable"] = "true"
    tensorrt.parameters["trt_engine_cache_path"] = "/tmp/trt-engines"  # noqa: S108 - a path inside NVIDIA's container


def _default(config: Any, name: str, value: str) -> None:
    if value and name not in config.parameters:
        config.parameters[name].string_value = value
