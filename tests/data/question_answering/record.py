"""Records what the question-answering pipeline of transformers 4.57.6 answers (version 5 has none any more).

Run by hand with a `transformers==4.57.6` on PYTHONPATH; writes `answers.json` and the tokenizers beside this file. The
model is a formula over token ids and positions (`tiny_models.logits_of`), so that the test needs no weights.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
_version = importlib.metadata.version
# 4.57 refuses newer versions of two packages by their numbers alone.
importlib.metadata.version = lambda name: {
    "tokenizers": "0.22.1",
    "huggingface-hub": "0.36.0",
    "huggingface_hub": "0.36.0",
}.get(name, _version(name))
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "integration")]

import numpy as np  # noqa: E402
import tiny_models as tiny  # noqa: E402
import torch  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    BertForQuestionAnswering,
    PreTrainedTokenizerFast,
    QuestionAnsweringPipeline,
)
from transformers.modeling_outputs import QuestionAnsweringModelOutput  # noqa: E402

LONG = " ".join(tiny.families.CORPUS)
PAIRS = [
    ("Who jumps?", "The quick brown fox jumps over the lazy dog, doesn't it?"),
    ("Wo?", "Straße, naïve façade, Ünïcödé İstanbul, ﬁne ﬂow; ｆｕｌｌ ｗｉｄｔｈ, ½"),
    ("何?", "你好，世界。日本語のテキスト 한국어 텍스트 שלום עולם مرحبا بالعالم हिन्दी ไทยคำ"),
    ("emoji?", "e\u0301 a\u0308\u0323 😀 👨‍👩‍👧 👍🏽 🇩🇪 one two"),
    ("nul", "a \x00 b \x01 c\n\nd\te  f"),
    ("Which address?", LONG),
    ("what is it?", LONG[300:]),
]
PARAMETERS: list[dict[str, Any]] = [
    {},
    {"top_k": 3},
    {"top_k": 4, "handle_impossible_answer": True, "max_answer_len": 4},
    {"max_seq_len": 90, "doc_stride": 10, "align_to_words": False},
    {"max_seq_len": 100, "doc_stride": 0, "top_k": 2},
]


class Formula(BertForQuestionAnswering):
    """The formula as a model of transformers."""

    def forward(self, input_ids: Any = None, **_: Any) -> Any:
        rows = [tiny.logits_of(row) for row in input_ids.numpy()]
        start, end = (torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))
        return QuestionAnsweringModelOutput(start_logits=start, end_logits=end)


def main() -> None:
    """Write everything."""
    recorded = []
    for family in ("WordPiece", "byte-level BPE", "Unigram"):
        raw, names = tiny.FAMILIES[family]()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=128, **names)
        folder = HERE / family.replace(" ", "-")
        folder.mkdir(exist_ok=True)
        raw.save(str(folder / "tokenizer.json"), pretty=False)
        settings = {key: value for key, value in names.items() if isinstance(value, str | list)}
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 128}))
        (folder / "config.json").write_text(json.dumps({"architectures": ["BertForQuestionAnswering"]}))
        model = Formula(BertConfig(vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1,
                                   num_attention_heads=1, intermediate_size=8)).eval()  # fmt: skip
        pipeline = QuestionAnsweringPipeline(model=model, tokenizer=tokenizer, device="cpu")
        for question, context in PAIRS:
            for parameters in PARAMETERS:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    answer = pipeline(question=question, context=context, **parameters)
                recorded.append({
                    "family": family, "question": question, "context": context, "parameters": parameters,
                    "answers": answer if isinstance(answer, list) else [answer],
                })  # fmt: skip
    (HERE / "answers.json").write_text(json.dumps(recorded, ensure_ascii=False, indent=0) + "\n")
    print(len(recorded), "answers")


if __name__ == "__main__":
    main()
