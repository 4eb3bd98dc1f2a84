"""Ways a bundle goes wrong, each put where a bug would put it: into the graph, or into a file beside it.

``GRAPH`` changes an ONNX model in place, ``FILES`` a bundle's folder. A change of a graph that depends on rows or
lengths is written as the condition under which its answer is spoiled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Graph = Any
Spoil = Callable[[Graph], None]
OUTPUT = "logits"


class Tail:
    """Operations behind a graph: called with an operator and its inputs, names or constants, it returns the output."""

    def __init__(self, model: Graph) -> None:
        self._graph = model.graph
        self.right = f"right_{OUTPUT}"
        """The right answer, by another name."""
        for node in model.graph.node:
            for names in (node.output, node.input):
                names[:] = [self.right if name == OUTPUT else name for name in names]

    def __call__(self, kind: str, *inputs: Any, name: str = "", **attributes: Any) -> str:
        output = name or f"sabotage_{len(self._graph.node)}"
        given = [one if isinstance(one, str) else self._constant(one) for one in inputs]
        self._graph.node.append(helper.make_node(kind, given, [output], **attributes))
        return output

    def _constant(self, value: Any) -> str:
        name = f"constant_{len(self._graph.initializer)}"
        array = np.asarray(value, np.float32 if isinstance(value, float) else None)
        self._graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    @property
    def rows(self) -> str:
        """The number of rows."""
        return self("Gather", self("Shape", "input_ids"), 0)

    @property
    def tokens(self) -> str:
        """The number of tokens of each."""
        return self("Gather", self("Shape", "input_ids"), 1)

    def negated(self, is_so: str, factor: float = -1.0) -> str:
        """The answer times ``factor``, where ``is_so``."""
        return self("Mul", self.right, self("Where", is_so, factor, 1.0))

    def reordered(self, order: str) -> str:
        """The answers of these rows."""
        return self("Gather", self.right, order, axis=0)

    def counted(self) -> str:
        """The numbers of the rows."""
        return self("Range", 0, self.rows, 1)


def behind(answer: Callable[[Tail], str]) -> Spoil:
    """Put operations behind the answer; ``answer`` returns what takes its place."""

    def spoil(model: Graph) -> None:
        tail = Tail(model)
        tail("Identity", answer(tail), name=OUTPUT)

    return spoil


def rows(test: str, number: int, factor: float = -1.0) -> Spoil:
    """Multiply the answer where the number of rows passes an ONNX comparison."""
    return behind(lambda op: op.negated(op(test, op.rows, number), factor))


def tokens(test: str, number: int, factor: float = -1.0) -> Spoil:
    """The same with the number of tokens."""
    return behind(lambda op: op.negated(op(test, op.tokens, number), factor))


def output(kind: str, *constants: Any, **attributes: Any) -> Spoil:
    """Put one more operation behind the answer."""
    return behind(lambda op: op(kind, op.right, *constants, **attributes))


def neighbour(op: Tail) -> str:
    """Mix a hundredth of the row above into each row."""
    rest = op("Slice", op.right, np.array([1]), np.array([1 << 30]), np.array([0]))
    first = op("Slice", op.right, np.array([0]), np.array([1]), np.array([0]))
    return op("Add", op.right, op("Mul", op("Concat", rest, first, axis=0), 0.01))


def reversed_if_odd(op: Tail) -> str:
    """Answer odd batches in the wrong order."""
    odd = op("Mod", op.rows, 2)
    step, start = op("Sub", 1, op("Mul", odd, 2)), op("Mul", op("Sub", op.rows, 1), odd)
    return op.reordered(op("Add", op("Mul", op.counted(), step), start))


def _weights(model: Graph, least: int = 2) -> list[Any]:
    return [w for w in model.graph.initializer if w.data_type == TensorProto.FLOAT and len(w.dims) >= least]


def _table(model: Graph) -> Any:
    """The table of word embeddings: the largest weight."""
    return max(_weights(model), key=lambda w: np.prod(w.dims))


def weight(change: Callable[[np.ndarray], np.ndarray], *, pick: Callable[[Graph], Any]) -> Spoil:
    """Change one weight of the graph."""

    def spoil(model: Graph) -> None:
        tensor = pick(model)
        before = numpy_helper.to_array(tensor).copy()
        after = change(before.copy())
        assert not np.array_equal(before, after)
        tensor.CopyFrom(numpy_helper.from_array(after.astype(before.dtype), tensor.name))

    return spoil


def _square(model: Graph) -> Any:
    """Some weight of a layer."""
    return next(w for w in _weights(model) if list(w.dims) == [32, 32])


def _positions(model: Graph) -> Any:
    return next(w for w in _weights(model) if list(w.dims) == [130, 32])


def _with(index: Any, value: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array[index] = value(array[index])
        return array

    return change


def _later_positions(array: np.ndarray) -> np.ndarray:
    array[70:-1] = array[71:].copy()
    return array


def half_precision(model: Graph) -> None:
    """Weights that went through fp16 in a graph that is said to be fp32."""
    for tensor in _weights(model):
        value = numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def fed(name: str, change: Callable[[Tail], str]) -> Spoil:
    """Read something else everywhere instead of an input; ``change`` returns what."""

    def spoil(model: Graph) -> None:
        nodes = list(model.graph.node)
        for node in nodes:
            node.input[:] = ["other" if given == name else given for given in node.input]
        del model.graph.node[:]
        op = Tail(model)
        op("Identity", change(op), name="other")
        model.graph.node.extend(nodes)

    return spoil


def unmasked_alone(op: Tail) -> str:
    """A batch of one row has no padding, somebody thought."""
    return op("Max", "attention_mask", op("Cast", op("Equal", op.rows, 1), to=TensorProto.INT64))


def padding_by_its_token(op: Tail) -> str:
    """Padding is told by its token and not by the mask."""
    return op("Cast", op("Greater", "input_ids", 0), to=TensorProto.INT64)


def rounded_if_large(op: Tail) -> str:
    """Calls of more than 3,000 tokens use a kernel of less precision."""
    rounded = op("Div", op("Round", op("Mul", op.right, 64.0)), 64.0)
    return op("Where", op("Greater", op("Mul", op.rows, op.tokens), 3000), rounded, op.right)


def token_present(token: int) -> Spoil:
    """Negate the answers of rows that have one token."""

    def answer(op: Tail) -> str:
        number = op("Cast", op("Equal", "input_ids", token), to=TensorProto.INT64)
        return op.negated(op("Cast", op("ReduceMax", number, np.array([1])), to=TensorProto.BOOL))

    return behind(answer)


def beside_pads(count: int) -> Spoil:
    """Negate the answers of rows that have exactly so much padding."""

    def answer(op: Tail) -> str:
        own = op("ReduceSum", "attention_mask", np.array([1]))
        return op.negated(op("Equal", op("Sub", op.tokens, own), count))

    return behind(answer)


GRAPH: Mapping[str, Spoil] = {
    # shown to pass before
    "negated from 127 tokens": tokens("GreaterOrEqual", 127),
    "batches above 8": rows("Greater", 8),
    "a weight × 1.05": weight(lambda w: w * 1.05, pick=_square),
    "wrong above 60 tokens": tokens("Greater", 60),
    "wrong for batches": rows("Greater", 1),
    # lengths
    "only the longest row": tokens("Equal", 128),
    "not a number for one token": tokens("Equal", 1, float("nan")),
    "only 77 tokens": tokens("Equal", 77),
    "multiples of 16 tokens, a little": behind(lambda op: op.negated(op("Equal", op("Mod", op.tokens, 16), 0), 1.01)),
    # batches
    "batches above 16": rows("Greater", 16),
    "batches above 32, a little": rows("Greater", 32, 1.001),
    "only batches of 29": rows("Equal", 29),
    "odd batches reversed": behind(reversed_if_odd),
    "a hundredth of the neighbour": behind(neighbour),
    "padding is attended to": fed("attention_mask", lambda op: op("Max", "attention_mask", 1)),
    "one row unmasked": fed("attention_mask", unmasked_alone),
    "padding by its token": fed("attention_mask", padding_by_its_token),
    "large calls rounded": behind(rounded_if_large),
    "exactly 7 pads": beside_pads(7),
    "exactly 100 pads": beside_pads(100),
    # tokens
    "one common token": token_present(12),
    "one token that no text has": token_present(590),
    "types are not read": fed("token_type_ids", lambda op: op("Mul", "token_type_ids", 0)),
    "ids through a type that is too small": fed("input_ids", lambda op: op("Mod", "input_ids", 512)),
    # the answer
    "scores × 1.1": output("Mul", np.float32(1.1)),
    "one score + 0.001": output("Add", np.array([0.001, 0, 0], np.float32)),
    "columns exchanged": output("Gather", np.array([2, 1, 0]), axis=1),
    "probabilities instead of scores": output("Softmax", axis=-1),
    "scores cut off": output("Clip", np.float32(-1), np.float32(1)),
    "double precision": output("Cast", to=TensorProto.DOUBLE),
    "an axis more": output("Unsqueeze", np.array([1])),
    # weights
    "one number doubled": weight(_with((3, 4), lambda v: v * 2), pick=_square),
    "a rare token forgotten": weight(_with(597, lambda v: v * 0), pick=_table),
    "two rare tokens exchanged": weight(_with([595, 598], lambda v: v[::-1]), pick=_table),
    "positions off by one from 70": weight(_later_positions, pick=_positions),
    "one head forgotten": weight(_with((slice(None), slice(0, 16)), lambda v: v * 0), pick=_square),
    "a weight turned round": weight(lambda w: w.T, pick=_square),
    "one sign": weight(_with((5, 5), lambda v: -v), pick=_square),
    "weights through fp16": half_precision,
}


def _json(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def spoil(bundle: Path) -> None:
        values = json.loads((bundle / name).read_text(encoding="utf-8"))
        change(values)
        (bundle / name).write_text(json.dumps(values), encoding="utf-8")

    return spoil


def _exchange(vocabulary: dict[str, int]) -> None:
    rare = sorted(vocabulary, key=lambda word: vocabulary[word])[-2:]
    vocabulary[rare[0]], vocabulary[rare[1]] = vocabulary[rare[1]], vocabulary[rare[0]]


def _add_token(values: dict[str, Any]) -> None:
    token = {"id": 599, "content": "zq", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": False}  # fmt: skip
    values["added_tokens"].append(token)


def _shorter(bundle: Path) -> None:
    (bundle / "sentence_bert_config.json").write_text('{"max_seq_length": 64}')


FILES: Mapping[str, Callable[[Path], None]] = {
    "labels exchanged": _json("config.json", lambda c: c["id2label"].update({"0": "positive", "2": "negative"})),
    "case kept": _json("tokenizer.json", lambda t: t["normalizer"].update(lowercase=False)),
    "no special tokens": _json("tokenizer.json", lambda t: t.update(post_processor=None)),
    "two rare words exchanged": _json("tokenizer.json", lambda t: _exchange(t["model"]["vocab"])),
    "a word added": _json("tokenizer.json", _add_token),
    "accents kept": _json("tokenizer.json", lambda t: t["normalizer"].update(strip_accents=False)),
    "cut on the left": _json("tokenizer_config.json", lambda t: t.update(truncation_side="left")),
    "half as long": _json("tokenizer_config.json", lambda t: t.update(model_max_length=64)),
    "longer than its positions": _json("tokenizer_config.json", lambda t: t.update(model_max_length=1024)),
    "padded on the left": _json("tokenizer_config.json", lambda t: t.update(padding_side="left")),
    "another padding token": _json("config.json", lambda c: c.update(pad_token_id=5)),
    "several labels at once": _json("config.json", lambda c: c.update(problem_type="multi_label_classification")),
    "half as long, by sentence-transformers": _shorter,
}


def spoiled(graph: Path, spoil: Spoil, target: Path) -> None:
    """Write the graph, spoiled, to ``target``; it must still be a graph that loads."""
    model = onnx.load(graph)
    spoil(model)
    onnx.save(model, target)
