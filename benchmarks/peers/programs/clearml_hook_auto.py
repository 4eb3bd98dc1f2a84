"""A ``Preprocess`` class as clearml-serving's Hugging Face example writes it: ``AutoTokenizer`` per request."""

# ruff: noqa: ARG002 - clearml-serving's signatures

import os
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer


class Preprocess:
    def __init__(self):
        self.tokenizer = AutoTokenizer.from_pretrained(Path(os.environ["BENCH_TOKENIZER"]).parent)
        self.has_types = os.environ["BENCH_INPUTS"] == "3"

    def preprocess(self, body: dict, state: dict, collect_custom_statistics_fn=None) -> Any:
        tokens = self.tokenizer(body["text"], return_tensors="np", truncation=True, max_length=512)
        state["tokens"] = tokens["input_ids"].shape[1]
        names = ("input_ids", "attention_mask", "token_type_ids") if self.has_types else ("input_ids", "attention_mask")
        # the example returns lists, which clearml-serving turns into arrays again
        return [tokens[name].tolist() for name in names]

    def postprocess(self, data: Any, state: dict, collect_custom_statistics_fn=None) -> dict:
        row = data[0]
        if len(row) > 2:
            return {"embedding": row.tolist(), "tokens": state["tokens"]}
        score = float(1 / (1 + np.exp(row[0] - row[1])))
        return {"label": "POSITIVE" if score > 0.5 else "NEGATIVE", "score": score, "tokens": state["tokens"]}
