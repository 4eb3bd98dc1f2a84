"""Sends the same tensors straight to Triton by gRPC, one at a time: a request's cost without anything in front."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.shared import processes
from benchmarks.shared.command import tell
from benchmarks.shared.statistics import percentiles_ms

if TYPE_CHECKING:
    from benchmarks.peers.systems import Bench
    from benchmarks.shared.backends import Backend

_CALLS = 3000
_SECONDS = 4.0


def measure(bench: Bench, backend: Backend, texts: Path) -> dict[str, Any]:
    """Run the client on the core that the gateway would have; return its numbers in ms."""
    from benchmarks.peers.systems import OTHER_CORE, SERVER_CORE
    from benchmarks.shared.command import ROOT

    model = f"direct-{backend.name}"
    bench.triton.serve(model, backend, bench.bundles[backend.name])
    bench.triton.pin([OTHER_CORE])
    argv = [sys.executable, "-m", "benchmarks.peers.direct", bench.triton.grpc, model, ",".join(backend.inputs)]
    argv += [str(bench.bundles[backend.name] / "tokenizer.json"), str(texts)]
    done = subprocess.run(
        processes.on_cores(argv, [SERVER_CORE]), capture_output=True, text=True, timeout=120, check=True, cwd=ROOT
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(address: str, model: str, inputs: str, tokenizer_file: str, texts_file: str) -> None:
    """Send texts one after the other; print percentiles of the call and of the tokenization, in ms, as JSON."""
    import grpc
    import numpy as np
    from tokenizers import Tokenizer
    from tritonclient.grpc import service_pb2 as pb

    tokenizer = Tokenizer.from_file(tokenizer_file)
    tokenizer.enable_truncation(512)
    tokenizer.no_padding()
    channel = grpc.insecure_channel(address)
    infer = channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )
    texts = [json.loads(line) for line in Path(texts_file).read_text().splitlines()[: _CALLS + 200]]
    calls: list[float] = []
    encodes: list[float] = []
    until = perf_counter() + _SECONDS
    for text in texts:
        began = perf_counter()
        ids = np.array([tokenizer.encode(text).ids], dtype=np.int64)
        encoded = perf_counter()
        request = pb.ModelInferRequest(model_name=model)
        tensors = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        for name in inputs.split(","):
            tensor = request.inputs.add()
            tensor.name, tensor.datatype = name, "INT64"
            tensor.shape.extend(ids.shape)
            request.raw_input_contents.append(tensors[name].tobytes())
        infer(request, timeout=10)
        done = perf_counter()
        calls.append(done - encoded)
        encodes.append(encoded - began)
        if done > until:
            break
    skipped = min(200, len(calls) // 5)
    found = {"call_": percentiles_ms(calls[skipped:], 50, 99), "tokenize_": percentiles_ms(encodes[skipped:], 50, 99)}
    figures = {f"{what}{name}": value for what, figures in found.items() for name, value in figures.items()}
    tell({"calls": len(calls) - skipped, **figures})


if __name__ == "__main__":
    main(*sys.argv[1:6])
