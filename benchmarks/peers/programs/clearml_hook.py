"""The leanest ``Preprocess`` class for stock clearml-serving: ``tokenizers`` and numpy."""

# ruff: noqa: ARG002 - clearml-serving's signatures

import os
from typing import Any

import numpy as np
from tokenizers import Tokenizer


class Preprocess:
    def __init__(self):
        self.tokenizer = Tokenizer.from_file(os.environ["BENCH_TOKENIZER"])
        self.tokenizer.enable_truncation(512)
        self.tokenizer.no_padding()
        self.has_types = os.environ["BENCH_INPUTS"] == "3"

    def preprocess(self, body: dict, state: dict, collect_custom_statistics_fn=None) -> Any:
        encoding = self.tokenizer.encode(body["text"])
        state["tokens"] = len(encoding.ids)
        ids = np.array([encoding.ids], dtype=np.int64)
        tensors = [ids, np.ones_like(ids)]
        return [*tensors, np.zeros_like(ids)] if self.has_types else tensors

    def postprocess(self, data: Any, state: dict, collect_custom_statistics_fn=None) -> dict:
        row = data[0]
        if len(row) > 2:
            return {"embedding": row.tolist(), "tokens": state["tokens"]}
        score = float(1 / (1 + np.exp(row[0] - row[1])))
        return {"label": "POSITIVE" if score > 0.5 else "NEGATIVE", "score": score, "tokens": state["tokens"]}
