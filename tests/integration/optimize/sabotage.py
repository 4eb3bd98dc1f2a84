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


def _constant(model: Graph, name: str, value: Any) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def _renamed(model: Graph, output: str = OUTPUT) -> str:
    """Give the right answer another name, so that what is added can take its own."""
    right = f"right_{output}"
    for node in model.graph.node:
        for names in (node.output, node.input):
            for i, name in enumerate(names):
                if name == output:
                    names[i] = right
    return right


def _add(model: Graph, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
    model.graph.node.append(helper.make_node(kind, inputs, [output], **attributes))
    return output


def _size(model: Graph, axis: int) -> str:
    """The number of rows (axis 0) or of tokens (axis 1)."""
    shape = _add(model, "Shape", ["input_ids"], "sabotage_shape")
    return _add(model, "Gather", [shape, _constant(model, "sabotage_axis", np.int64(axis))], "sabotage_size")


def when(axis: int, test: str, number: int, factor: float = -1.0) -> Spoil:
    """Multiply the answer where the number of rows or tokens passes an ONNX comparison."""

    def spoil(model: Graph) -> None:
        right = _renamed(model)
        size = _size(model, axis)
        if test == "Multiple":
            size = _add(model, "Mod", [size, _constant(model, "sabotage_by", np.int64(number))], "sabotage_rest")
        kind, against = ("Equal", 0) if test == "Multiple" else (test, number)
        is_so = _add(model, kind, [size, _constant(model, "sabotage_at", np.int64(against))], "sabotage_is")
        one = _constant(model, "sabotage_one", np.float32(1))
        other = _constant(model, "sabotage_factor", np.float32(factor))
        by = _add(model, "Where", [is_so, other, one], "sabotage_times")
        _add(model, "Mul", [right, by], OUTPUT)

    return spoil


def between(low: int, high: int) -> Spoil:
    """Shift the answers to rows of ``low`` to ``high`` tokens by a little."""

    def spoil(model: Graph) -> None:
        right = _renamed(model)
        size = _size(model, 1)
        over = _add(model, "GreaterOrEqual", [size, _constant(model, "sabotage_low", np.int64(low))], "sabotage_over")
        under = _add(model, "LessOrEqual", [size, _constant(model, "sabotage_high", np.int64(high))], "sabotage_under")
        both = _add(model, "And", [over, under], "sabotage_both")
        number = _add(model, "Cast", [both], "sabotage_number", to=TensorProto.FLOAT)
        little = _add(model, "Mul", [number, _constant(model, "sabotage_little", np.float32(0.05))], "sabotage_by")
        _add(model, "Add", [right, little], OUTPUT)

    return spoil


def output(kind: str, *constants: Any, **attributes: Any) -> Spoil:
    """Put one more operation behind the answer."""

    def spoil(model: Graph) -> None:
        names = [_constant(model, f"sabotage_{i}", value) for i, value in enumerate(constants)]
        _add(model, kind, [_renamed(model), *names], OUTPUT, **attributes)

    return spoil


def neighbour(model: Graph) -> None:
    """Mix a hundredth of the row above into each row."""
    right = _renamed(model)
    size = _size(model, 0)
    one, two = _constant(model, "sabotage_1", np.array([1])), _constant(model, "sabotage_2", np.array([1 << 30]))
    axis = _constant(model, "sabotage_0", np.array([0]))
    rest = _add(model, "Slice", [right, one, two, axis], "sabotage_rest")
    first = _add(model, "Slice", [right, axis, one, axis], "sabotage_first")
    rolled = _add(model, "Concat", [rest, first], "sabotage_rolled", axis=0)
    part = _add(model, "Mul", [rolled, _constant(model, "sabotage_part", np.float32(0.01))], "sabotage_added")
    _add(model, "Add", [right, part], OUTPUT)
    assert size


def reversed_if_odd(model: Graph) -> None:
    """Answer odd batches in the wrong order."""
    right = _renamed(model)
    size = _size(model, 0)
    odd = _add(model, "Mod", [size, _constant(model, "sabotage_two", np.int64(2))], "sabotage_odd")
    sign = _add(model, "Mul", [odd, _constant(model, "sabotage_minus", np.int64(-2))], "sabotage_sign")
    step = _add(model, "Add", [sign, _constant(model, "sabotage_plus", np.int64(1))], "sabotage_step")
    last = _add(model, "Sub", [size, _constant(model, "sabotage_less", np.int64(1))], "sabotage_last")
    start = _add(model, "Mul", [last, odd], "sabotage_start")
    count = _add(model, "Range", [_constant(model, "z", np.int64(0)), size, _constant(model, "o", np.int64(1))], "n")
    order = _add(model, "Add", [_add(model, "Mul", [count, step], "sabotage_m"), start], "sabotage_order")
    _add(model, "Gather", [right, order], OUTPUT, axis=0)


def last_of_a_batch(model: Graph) -> None:
    """Lose the last row of a batch of more than one: it gets the answer of the one above."""
    right = _renamed(model)
    size = _size(model, 0)
    count = _add(model, "Range", [_constant(model, "z", np.int64(0)), size, _constant(model, "o", np.int64(1))], "n")
    two = _add(model, "Sub", [size, _constant(model, "t", np.int64(2))], "sabotage_two_less")
    most = _add(model, "Max", [two, "z"], "sabotage_most")
    order = _add(model, "Min", [count, most], "sabotage_order")
    _add(model, "Gather", [right, order], OUTPUT, axis=0)


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


def epsilon(model: Graph) -> None:
    """Another epsilon in every LayerNorm."""
    nodes = [n for n in model.graph.node if n.op_type == "LayerNormalization"]
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-2
    assert nodes


def half_precision(model: Graph) -> None:
    """Weights that went through fp16 in a graph that is said to be fp32."""
    for tensor in _weights(model):
        value = numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def four_bits(model: Graph) -> None:
    """Weights that were rounded, each by its largest."""
    for tensor in (one for one in _weights(model) if len(one.dims) == 2):
        value = numpy_helper.to_array(tensor)
        step = np.abs(value).max() / 7
        tensor.CopyFrom(numpy_helper.from_array((np.round(value / step) * step).astype(np.float32), tensor.name))


def replaced(name: str, value: int) -> Spoil:
    """Read one number everywhere instead of an input."""

    def spoil(model: Graph) -> None:
        shape = _add(model, "Shape", [name], "sabotage_shape_of_input")
        same = _add(
            model, "ConstantOfShape", [shape], "sabotage_same", value=numpy_helper.from_array(np.array([value]))
        )
        nodes = list(model.graph.node)
        for node in nodes[:-2]:
            for i, given in enumerate(node.input):
                if given == name:
                    node.input[i] = same
        del model.graph.node[:]
        model.graph.node.extend([*nodes[-2:], *nodes[:-2]])

    return spoil


def _rows_negated(model: Graph, is_so: str) -> None:
    """Negate the answers of the rows for which ``is_so`` ([rows, 1])."""
    one, other = _constant(model, "sabotage_one", np.float32(1)), _constant(model, "sabotage_minus", np.float32(-1))
    by = _add(model, "Where", [is_so, other, one], "sabotage_times")
    _add(model, "Mul", ["right_" + OUTPUT, by], OUTPUT)


def token_present(token: int) -> Spoil:
    """Negate the answers of rows that have one token."""

    def spoil(model: Graph) -> None:
        _renamed(model)
        equal = _add(
            model, "Equal", ["input_ids", _constant(model, "sabotage_token", np.int64(token))], "sabotage_equal"
        )
        number = _add(model, "Cast", [equal], "sabotage_number", to=TensorProto.INT64)
        most = _add(model, "ReduceMax", [number, _constant(model, "sabotage_axes", np.array([1]))], "sabotage_most")
        _rows_negated(model, _add(model, "Cast", [most], "sabotage_is", to=TensorProto.BOOL))

    return spoil


def beside_pads(count: int) -> Spoil:
    """Negate the answers of rows that have exactly so much padding."""

    def spoil(model: Graph) -> None:
        _renamed(model)
        axes = _constant(model, "sabotage_axes", np.array([1]))
        own = _add(model, "ReduceSum", ["attention_mask", axes], "sabotage_own")
        rest = _add(model, "Sub", [_size(model, 1), own], "sabotage_rest")
        at = _constant(model, "sabotage_at", np.int64(count))
        _rows_negated(model, _add(model, "Equal", [rest, at], "sabotage_is"))

    return spoil


GRAPH: Mapping[str, Spoil] = {
    # shown to pass before
    "negated from 127 tokens": when(1, "GreaterOrEqual", 127),
    "batches above 8": when(0, "Greater", 8),
    "a weight × 1.05": weight(lambda w: w * 1.05, pick=_square),
    "wrong above 60 tokens": when(1, "Greater", 60),
    "wrong for batches": when(0, "Greater", 1),
    # lengths
    "only the longest row": when(1, "Equal", 128),
    "not a number for one token": when(1, "Equal", 1, float("nan")),
    "only 77 tokens": when(1, "Equal", 77),
    "multiples of 16 tokens, a little": when(1, "Multiple", 16, 1.01),
    "17 to 31 tokens, a little": between(17, 31),
    # batches
    "batches above 16": when(0, "Greater", 16),
    "batches above 32, a little": when(0, "Greater", 32, 1.001),
    "only batches of 29": when(0, "Equal", 29),
    "odd batches reversed": reversed_if_odd,
    "the last row of a batch": last_of_a_batch,
    "a hundredth of the neighbour": neighbour,
    "padding is attended to": replaced("attention_mask", 1),
    "exactly 7 pads": beside_pads(7),
    "exactly 100 pads": beside_pads(100),
    # tokens
    "one common token": token_present(12),
    "one token that no text has": token_present(590),
    "types are not read": replaced("token_type_ids", 0),
    # the answer
    "scores × 1.1": output("Mul", np.float32(1.1)),
    "one score + 0.001": output("Add", np.array([0.001, 0, 0], np.float32)),
    "columns exchanged": output("Gather", np.array([2, 1, 0]), axis=1),
    "probabilities instead of scores": output("Softmax", axis=-1),
    "scores cut off": output("Clip", np.float32(-1), np.float32(1)),
    "double precision": output("Cast", to=TensorProto.DOUBLE),
    "an axis more": output("Unsqueeze", np.array([1])),
    # weights
    "one number × 1.05": weight(_with((3, 4), lambda v: v * 1.05), pick=_square),
    "a rare token forgotten": weight(_with(597, lambda v: v * 0), pick=_table),
    "two rare tokens exchanged": weight(_with([595, 598], lambda v: v[::-1]), pick=_table),
    "positions off by one from 70": weight(_later_positions, pick=_positions),
    "one head forgotten": weight(_with((slice(None), slice(0, 16)), lambda v: v * 0), pick=_square),
    "a weight turned round": weight(lambda w: w.T, pick=_square),
    "one sign": weight(_with((5, 5), lambda v: -v), pick=_square),
    "another epsilon": epsilon,
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
