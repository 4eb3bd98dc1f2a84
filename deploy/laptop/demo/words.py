"""``python -m deploy.laptop.demo.words``: generate the folder ``words_model`` beside this file.

The model is a text classifier that adds up the weights of words. Needs onnx (extra ``optimize``); the package contains
the result. A test generates it again and compares.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from gateway.metrics import drift

FOLDER = Path(__file__).parent / "words_model"
LABELS = ("NEGATIVE", "POSITIVE")


def _list(text: str) -> list[str]:
    return text.split()


POSITIVE = _list(
    "amazing beautiful best better brilliant calm clear enjoyed excellent fair fast fine friendly fun glad good great "
    "happy helpful honest kind like liked love loved lovely moving nice perfect pleasant recommend right smart smooth "
    "solid strong superb true warm well wonderful worth"
)
NEGATIVE = _list(
    "angry annoying awful bad bland boring broken cheap cold confusing dirty disappointed dull empty fail failed "
    "hate hated horrible late lazy loud mediocre mess noisy pointless poor rude sad silly slow stupid terrible tired "
    "ugly unclear waste weak worse worst wrong"
)
NEUTRAL = _list(
    "a an and are as at be but by for from had has have he her his i in is it its me my not of on or our she so that "
    "the their them there they this to was we were what when which who will with you your about after all also any "
    "been before can could day did do film first food get hotel how into just made make more most movie much music new "
    "no now one only other out over people place product really room see service some staff story than then these time "
    "two up us use very way work year"
)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted({*POSITIVE, *NEGATIVE, *NEUTRAL})]
MAX_TOKENS = 128


def files() -> dict[str, bytes]:
    """Return the bundle's files by name."""
    return {
        "config.json": _json({
            "architectures": ["BertForSequenceClassification"], "model_type": "bert", "pad_token_id": 0,
            "id2label": {str(n): label for n, label in enumerate(LABELS)}, "max_position_embeddings": MAX_TOKENS,
            "vocab_size": len(WORDS),
        }),
        "tokenizer.json": _tokenizer().to_str(pretty=False).encode() + b"\n",
        "model.onnx": _graph(),
        drift.FILE: drift.encode({
            "token_length": drift.scalar_bins([float(n) for n in range(4, 20) for _ in range(25)]),
            "predicted_label": drift.enum_bins({"POSITIVE": 240, "NEGATIVE": 160}),
        }).encode(),
    }  # fmt: skip


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))  # noqa: S106 - a word, no secret
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def _graph() -> bytes:
    weights = np.zeros((len(WORDS), len(LABELS)), dtype=np.float32)
    for word in POSITIVE:
        weights[WORDS.index(word), 1] = 1.5
    for word in NEGATIVE:
        weights[WORDS.index(word), 0] = 1.5
    nodes = [
        helper.make_node("Gather", ["weights", "input_ids"], ["each"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["each", "column"], ["counted"]),
        helper.make_node("ReduceSum", ["counted", "tokens"], ["logits"], keepdims=0),
    ]
    inputs = ("input_ids", "attention_mask")
    graph = helper.make_graph(
        nodes, "words",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in inputs],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(LABELS)])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(np.array([2], dtype=np.int64), "last"),
         numpy_helper.from_array(np.array([1], dtype=np.int64), "tokens")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="triton-gateway")
    model.ir_version = 8
    content: bytes = model.SerializeToString()
    return content


def main() -> int:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, content in files().items():
        (FOLDER / name).write_bytes(content)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
