"""Translates a bundle's ``runtime.json`` for a full Triton: backend, threads and accelerators of its config.pbtxt.

Pure: it changes a ModelConfig message according to an ``Execution``. Only ``model_config.py`` calls it. Whatever the
user sets with ``--aux-config`` wins. Parameter names are those of Triton's ONNX Runtime and OpenVINO backends; nothing
here was measured on a GPU.
"""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import model_config_pb2

from deploy.sync.model_folder.execution import Execution

_TENSORRT_WORKSPACE = str(4 << 30)


def run_natively(config: Any, execution: Execution) -> None:
    """Write backend, threads and accelerators for ``execution``, unless the user chose a backend."""
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
    for ours in ("threads", "spinning"):  # parameters of the embedded server's program
        if ours in config.parameters:
            del config.parameters[ours]


def _on_gpu(config: Any, execution: Execution) -> None:
    if not config.instance_group:
        group = config.instance_group.add()
        group.kind = model_config_pb2.ModelInstanceGroup.KIND_GPU
        group.count = 1
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    if accelerators:
        return
    # Falls back to the CUDA provider for parts that TensorRT cannot build. Building an engine for a shape takes
    # minutes, so engines are cached in the server's temporary folder for the life of the container.
    tensorrt = accelerators.add()
    tensorrt.name = "tensorrt"
    tensorrt.parameters["precision_mode"] = "FP16" if execution.precision == "fp16" else "FP32"
    tensorrt.parameters["max_workspace_size_bytes"] = _TENSORRT_WORKSPACE
    tensorrt.parameters["trt_engine_cache_enable"] = "true"
    tensorrt.parameters["trt_engine_cache_path"] = "/tmp/trt-engines"  # noqa: S108 - a path inside NVIDIA's container


def _default(config: Any, name: str, value: str) -> None:
    if value and name not in config.parameters:
        config.parameters[name].string_value = value
