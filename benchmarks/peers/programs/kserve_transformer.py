"""A KServe transformer: ``tokenizers`` in ``preprocess``, a ``grpc-v2`` predictor (our Triton), a small answer.

Run by the Python of KServe's own environment with KServe's own arguments (``--predictor_host`` and so on).
"""

# ruff: noqa: ARG002 - KServe's signatures

import argparse
import os

import numpy as np
from kserve import InferInput, InferRequest, InferResponse, Model, ModelServer, model_server
from tokenizers import Tokenizer


class TextTransformer(Model):
    def __init__(self, name: str, predictor_model: str):
        super().__init__(name)
        self.predictor_model = predictor_model
        self.tokenizer = Tokenizer.from_file(os.environ["BENCH_TOKENIZER"])
        self.tokenizer.enable_truncation(512)
        self.tokenizer.no_padding()
        self.has_types = os.environ["BENCH_INPUTS"] == "3"
        self.ready = True

    async def preprocess(self, payload: dict, headers: dict | None = None) -> InferRequest:
        ids = np.array([self.tokenizer.encode(payload["instances"][0]).ids], dtype=np.int64)
        tensors = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        if self.has_types:
            tensors["token_type_ids"] = np.zeros_like(ids)
        inputs = []
        for name, array in tensors.items():
            tensor = InferInput(name, list(array.shape), "INT64")
            tensor.set_data_from_numpy(array, binary_data=True)
            inputs.append(tensor)
        return InferRequest(model_name=self.predictor_model, infer_inputs=inputs)

    async def postprocess(self, result: InferResponse, headers: dict | None = None) -> dict:
        row = result.outputs[0].as_numpy()[0]
        if len(row) > 2:
            return {"predictions": [{"embedding": row.tolist()}]}
        score = float(1 / (1 + np.exp(row[0] - row[1])))
        return {"predictions": [{"label": "POSITIVE" if score > 0.5 else "NEGATIVE", "score": score}]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(parents=[model_server.parser])
    arguments, _ = parser.parse_known_args()
    ModelServer().start([TextTransformer("bench", os.environ["BENCH_MODEL"])])
