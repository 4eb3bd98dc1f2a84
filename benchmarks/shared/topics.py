"""A small classifier of texts by topic: trained here, on drawn texts, and given one fault.

The texts have words of four topics, one of them rare; most are English, some German, some a few bare words. A model is
a bag of words with weights from softmax regression, so one that is trained on other texts answers a few of them
differently, in all groups alike. A fault belongs to a group: it changes or fails the answers to these texts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from benchmarks.shared.words import SPECIAL, text_bundle

LABELS: Final = ("SPORT", "POLITICS", "TECH", "FONTS")
FAULTS: Final = ("fails", "vanished", "long", "german", "class")
"""Fails on some texts; never answers FONTS; wrong about long texts, about German ones, about all that is FONTS."""
_SHARES: Final = (0.42, 0.325, 0.205, 0.05)
_GERMAN, _BARE = 0.05, 0.1
"""Shares of the texts in German, and of those without any function word."""
_OWN: Final = 0.55
"""Share of a text's topic words that are of its topic."""
_LONG: Final = 42
"""Tokens from which on a text is long: about one in sixteen."""
_FUNCTION: Final = {
    "en": ("the", "and", "of", "to", "in", "is", "that", "it", "was", "for", "on", "are", "with", "as", "they", "be"),
    "de": (
        "der",
        "die",
        "das",
        "und",
        "ist",
        "nicht",
        "ein",
        "eine",
        "den",
        "von",
        "mit",
        "sich",
        "auf",
        "dem",
        "wird",
    ),
}
_TOPICS: Final = [[f"{label.lower()}{number:02}" for number in range(40)] for label in LABELS]
_FAILING: Final = [f"rare{number}" for number in range(3)]
"""One text in 67 has one of these words."""
WORDS: Final = (*_FUNCTION["en"], *_FUNCTION["de"], *_FAILING, *(word for topic in _TOPICS for word in topic), "end")
"""The last one is in no text: a gateway sends the tokenizer's highest id to every new version."""


def texts(seed: int, number: int) -> list[str]:
    """Return texts, always the same of one ``seed``."""
    return [text for text, _ in _drawn(np.random.default_rng(seed), number)]


def _drawn(chance: np.random.Generator, number: int) -> list[tuple[str, int]]:
    found = []
    for topic in chance.choice(len(LABELS), number, p=_SHARES):
        kind = chance.random()
        functions = _FUNCTION["de"] if kind < _GERMAN else () if kind < _GERMAN + _BARE else _FUNCTION["en"]
        words = []
        for _ in range(3 + int(chance.lognormal(2.4, 0.8))):
            if functions and chance.random() < 0.5:
                words.append(functions[chance.integers(len(functions))])
            else:
                of = topic if chance.random() < _OWN else chance.integers(len(LABELS))
                words.append(_TOPICS[of][chance.integers(len(_TOPICS[of]))])
        if chance.random() < 0.015:
            words.append(_FAILING[chance.integers(len(_FAILING))])
        found.append((" ".join(words), int(topic)))
    return found


def _trained(seed: int, number: int) -> NDArray[np.float32]:
    """Return the weights of each token, [tokens, labels], after softmax regression on ``number`` texts."""
    ids = {word: at for at, word in enumerate((*SPECIAL, *WORDS))}
    drawn = _drawn(np.random.default_rng(seed), number)
    counts = np.zeros((number, len(ids)))
    for row, (text, _) in enumerate(drawn):
        for word in text.split():
            counts[row, ids[word]] += 1
    right = np.eye(len(LABELS))[[topic for _, topic in drawn]]
    weights = np.zeros((len(ids), len(LABELS)))
    for _ in range(300):
        logits = counts @ weights
        said = np.exp(logits - logits.max(axis=1, keepdims=True))
        said /= said.sum(axis=1, keepdims=True)
        weights -= 2.0 * (counts.T @ (said - right) / number + 1e-4 * weights)
    return weights.astype(np.float32)


def bundle(folder: Path, *, seed: int = 1, fault: str = "", trained_on: int = 2_500) -> Path:
    """Write a model that was trained on the texts of ``seed``, with a fault of ``FAULTS`` or none."""
    text_bundle(folder, words=WORDS, max_position_embeddings=512,
                id2label={str(at): label for at, label in enumerate(LABELS)})  # fmt: skip
    names = (*SPECIAL, *WORDS)
    german, beyond = np.zeros((len(names), 1), np.float32), np.zeros(len(names), np.int64)
    german[[names.index(word) for word in _FUNCTION["de"]]] = 1
    if fault == "fails":
        beyond[[names.index(word) for word in _FAILING]] = 1 << 40  # no such row: the call fails
    rare = LABELS.index("FONTS")
    constants: dict[str, NDArray[Any]] = {
        "worth": _trained(seed, trained_on), "german": german, "beyond": beyond,
        "turn": np.roll(np.eye(len(LABELS), dtype=np.float32), 1, axis=1), "last": np.array([2], np.int64),
        "axis": np.array([1], np.int64), "rare": np.array(rare, np.int64), "long": np.array(_LONG, np.float32),
        "two": np.array(1.5, np.float32),
        "never": np.where(np.arange(len(LABELS)) == rare, -1e3, 0).astype(np.float32)[None],
    }  # fmt: skip
    node, floats = helper.make_node, TensorProto.FLOAT
    nodes = [
        node("Gather", ["beyond", "input_ids"], ["further"]), node("Add", ["input_ids", "further"], ["at"]),
        node("Gather", ["worth", "at"], ["each"]), node("Cast", ["attention_mask"], ["mask"], to=floats),
        node("Unsqueeze", ["mask", "last"], ["column"]), node("Mul", ["each", "column"], ["counted"]),
        node("ReduceSum", ["counted", "axis"], ["sound"], keepdims=0),
    ]  # fmt: skip
    if fault == "vanished":
        nodes.append(node("Add", ["sound", "never"], ["logits"]))
    elif fault in ("long", "german", "class"):
        nodes += {
            "long": [node("ReduceSum", ["mask", "axis"], ["tokens"], keepdims=1),
                     node("Greater", ["tokens", "long"], ["hit"])],
            "german": [node("Gather", ["german", "input_ids"], ["marks"]),
                       node("ReduceSum", ["marks", "axis"], ["found"], keepdims=0),
                       node("Greater", ["found", "two"], ["hit"])],
            "class": [node("ArgMax", ["sound"], ["best"], axis=1, keepdims=1),
                      node("Equal", ["best", "rare"], ["hit"])],
        }[fault]  # fmt: skip
        nodes += [node("MatMul", ["sound", "turn"], ["turned"]), node("Where", ["hit", "turned", "sound"], ["logits"])]
    else:
        nodes.append(node("Identity", ["sound"], ["logits"]))
    used = {name for one in nodes for name in one.input}
    graph = helper.make_graph(
        nodes, "topics",
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["b", "s"]) for n in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("logits", floats, ["b", len(LABELS)])],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    onnx.save(made, folder / "model.onnx")
    return folder


def answers(model: Path, listed: Sequence[str]) -> list[str]:
    """Return the label that a model gives each text; empty if the call fails."""
    import onnxruntime
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(model / "model.onnx"), options)
    tokenizer, found = Tokenizer.from_file(str(model / "tokenizer.json")), []
    for text in listed:
        row = tokenizer.encode(text)
        inputs = {"input_ids": np.array([row.ids]), "attention_mask": np.array([row.attention_mask])}
        try:
            (logits,) = session.run(None, inputs)
        except Exception:  # noqa: BLE001 - onnxruntime has no narrower one
            found.append("")
        else:
            found.append(LABELS[int(logits[0].argmax())])
    return found
