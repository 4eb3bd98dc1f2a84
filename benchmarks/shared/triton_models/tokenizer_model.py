"""The tokenizer of an ensemble, in Triton's python backend.

One batch encode for all requests that Triton passes together.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class TritonPythonModel:
    """One instance with one tokenizer."""

    def initialize(self, args):
        parameters = {k: v["string_value"] for k, v in json.loads(args["model_config"])["parameters"].items()}
        self.outputs = parameters["outputs"].split(",")
        self.tokenizer = Tokenizer.from_file(parameters["folder"] + "/tokenizer.json")
        self.tokenizer.enable_truncation(512)
        self.tokenizer.no_padding()

    def execute(self, requests):
        texts = [
            [t.decode("utf-8") for t in pb_utils.get_input_tensor_by_name(r, "TEXT").as_numpy().ravel().tolist()]
            for r in requests
        ]
        encodings = iter(self.tokenizer.encode_batch_fast([text for query in texts for text in query]))
        responses = []
        for query in texts:
            rows = [next(encodings) for _ in query]
            longest = max(len(row.ids) for row in rows)
            found = {name: np.zeros((len(rows), longest), dtype=np.int64) for name in self.outputs}
            for i, row in enumerate(rows):
                size = len(row.ids)
                found["input_ids"][i, :size] = row.ids
                found["attention_mask"][i, :size] = 1
                if "token_type_ids" in found:
                    found["token_type_ids"][i, :size] = row.type_ids
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(n, a) for n, a in found.items()]))
        return responses
