"""A causal language model on Triton's python backend: ONNX Runtime in a loop, one response per token (decoupled).

Copied as ``1/model.py``, beside ``onnx_model.py``, into the folder of every text-generation model by model sync
(``model_folder/build``) and run by Triton's stub process, so it imports nothing else of ours.

Takes ``input_ids`` (INT64, [tokens]) and ``parameters`` (BYTES, [1], a JSON object; see ``Settings``), answers each new
token with ``token_ids`` (INT64, [1]) and ``finish_reason`` (BYTES, [1]: empty, ``eos`` or ``length``). The graph is in
the form that optimum exports: ``input_ids``, ``attention_mask``, ``position_ids`` where it has them, and a key/value
cache as ``past_key_values.*`` → ``present.*``; a graph without cache is run over the whole text for every token.
Each text is continued in a thread of its own, so that a long one does not hold up a short one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

# This comes first: it says where the packages are.
from .onnx_model import NEEDS_NUMPY_1, Refused, first_line, load_session, passes_arrays, read_arguments  # isort: split

import numpy as np

MAX_ACTIVE = 32
"""Texts that are continued at the same time; each holds a cache. Others wait for one to end."""

_TYPES: Mapping[str, Any] = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


@dataclass(frozen=True, slots=True)
class Settings:
    """How one sequence is continued; names and meanings are those of transformers' ``GenerationConfig``."""

    max_new_tokens: int = 20
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    seconds: float = math.inf
    """Until the text is given up, counted from its arrival: nobody cancels one, and nobody reads it after that."""

    @classmethod
    def read(cls, text: bytes | str) -> Settings:
        """From a request's JSON. Raises ``Refused``."""
        try:
            given = json.loads(text)
            made = cls(**{**given, "eos_token_ids": tuple(given.get("eos_token_ids", ()))})
            usable = made.max_new_tokens >= 1 and made.temperature > 0 and made.repetition_penalty > 0
        except (ValueError, TypeError, AttributeError) as error:
            raise Refused(f"parameters are not usable: {error}") from error
        if not usable:
            raise Refused("parameters are out of range")
        return made


def scores_of(logits: Any, seen: Sequence[int], settings: Settings) -> Any:
    """Return ``logits`` ([vocabulary]) after penalty and, where sampling, temperature, ``top_k`` and ``top_p``.

    In the order of transformers' processors; what is ruled out is -inf. float32, as torch computes.
    """
    scores = np.array(logits, dtype=np.float32)
    if settings.repetition_penalty != 1.0:
        ids = np.unique(np.asarray(seen, dtype=np.int64))
        own = scores[ids]
        penalty = np.float32(settings.repetition_penalty)
        scores[ids] = np.where(own < 0, own * penalty, own / penalty)
    if not settings.do_sample:
        return scores
    scores = scores / np.float32(settings.temperature)
    if 0 < settings.top_k < len(scores):
        least = np.partition(scores, -settings.top_k)[-settings.top_k]
        scores = np.where(scores < least, np.float32(-np.inf), scores)
    if settings.top_p < 1.0:
        order = np.argsort(scores, kind="stable")
        cumulative = np.cumsum(probabilities(scores[order]))
        out = cumulative <= 1 - settings.top_p
        out[-1] = False
        scores[order[out]] = -np.inf
    return scores


def probabilities(scores: Any) -> Any:
    """Softmax over scores of which some may be -inf."""
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def choose(scores: Any, settings: Settings, random: Any) -> int:
    """Return the next token: the best, or one drawn by its probability."""
    if not settings.do_sample:
        return int(scores.argmax())
    return int(np.searchsorted(np.cumsum(probabilities(scores.astype(np.float64))), random.random(), side="right"))


@dataclass(slots=True)
class Continued:
    """One text that is being continued: its tokens, how many of them the graph has read, and what it keeps of them."""

    ids: list[int]
    cache: dict[str, Any] = field(default_factory=dict)
    n_read: int = 0


class Graph:
    """One ONNX Runtime session and what it needs for the next token."""

    def __init__(self, session: Any, runtime: Any) -> None:
        self._session = session
        self._value = runtime.OrtValue.ortvalue_from_numpy
        self._inputs = {i.name: i for i in session.get_inputs()}
        outputs = [o.name for o in session.get_outputs()]
        if "logits" not in outputs or "input_ids" not in self._inputs:
            raise Refused(f"the graph must have input_ids and logits; it has {', '.join((*self._inputs, *outputs))}")
        self._past = [name for name in self._inputs if name.startswith("past_key_values")]
        present = {name: name.replace("past_key_values", "present") for name in self._past}
        missing = [name for name in present.values() if name not in outputs]
        if missing:
            raise Refused(f"the graph takes {len(self._past)} cache tensors but does not return {missing[0]}")
        known = {"input_ids", "attention_mask", "position_ids", "use_cache_branch", *self._past}
        unknown = [name for name in self._inputs if name not in known]
        if unknown:
            raise Refused(f"the graph takes {unknown[0]}, which text generation does not feed")
        self._outputs = ["logits", *present.values()]

    def next_logits(self, sequence: Continued) -> Any:
        """Read what the sequence has new; returns the last token's logits ([vocabulary])."""
        ids = sequence.ids
        start = sequence.n_read if self._past else 0
        fresh = np.array([ids[start:]], dtype=np.int64)
        feeds: dict[str, Any] = {"input_ids": self._value(fresh)}
        if "attention_mask" in self._inputs:
            feeds["attention_mask"] = self._value(np.ones((1, len(ids)), dtype=np.int64))
        if "position_ids" in self._inputs:
            feeds["position_ids"] = self._value(np.arange(start, len(ids), dtype=np.int64)[None])
        if "use_cache_branch" in self._inputs:
            feeds["use_cache_branch"] = self._value(np.array([start > 0]))
        feeds.update(sequence.cache or {name: self._value(self._empty(name)) for name in self._past})
        # OrtValues stay where they are: the cache is neither copied out nor in.
        logits, *present = self._session.run_with_ort_values(self._outputs, feeds)
        sequence.cache = dict(zip(self._past, present, strict=True))
        sequence.n_read = len(ids)
        return logits.numpy()[0, -1]

    def _empty(self, name: str) -> Any:
        # [rows, heads, past, size]: the symbols are rows and past.
        shape = [size if isinstance(size, int) else 0 for size in self._inputs[name].shape]
        return np.zeros([1, *shape[1:]], dtype=_TYPES.get(self._inputs[name].type, np.float32))


class TritonPythonModel:
    """What Triton's python backend calls; the class name and methods are Triton's."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model; raising here makes the load fail with this message."""
        self._backend = importlib.import_module("triton_python_backend_utils")
        if not passes_arrays(self._backend):
            raise self._backend.TritonModelException(
                f"text generation needs texts, which this stub cannot pass with numpy {np.__version__}: {NEEDS_NUMPY_1}"
            )
        _, parameters, path = read_arguments(args)
        try:
            self._graph = Graph(load_session(path, parameters), importlib.import_module("onnxruntime"))
        except Exception as error:
            raise self._backend.TritonModelException(f"the model cannot be loaded: {first_line(error)}") from error
        self._begin()

    def _begin(self) -> None:
        self._is_ending = threading.Event()
        self._threads = ThreadPoolExecutor(MAX_ACTIVE, thread_name_prefix="generate")

    def execute(self, requests: Sequence[Any]) -> None:
        """Begin to continue the text of every request."""
        backend = self._backend
        for request in requests:
            sender = request.get_response_sender()
            try:
                ids = backend.get_input_tensor_by_name(request, "input_ids").as_numpy().reshape(-1).tolist()
                text = backend.get_input_tensor_by_name(request, "parameters").as_numpy().reshape(-1)[0]
                if not ids:
                    raise Refused("input_ids is empty")
                settings = Settings.read(text)
            except Refused as error:
                self._fail(sender, str(error), backend.TritonError.INVALID_ARG)
                continue
            self._threads.submit(self._continue, sender, Continued(ids), settings, time.monotonic() + settings.seconds)

    def finalize(self) -> None:
        """End the texts that are being continued, with an error."""
        self._is_ending.set()
        self._threads.shutdown()

    def _continue(self, sender: Any, text: Continued, settings: Settings, until: float) -> None:
        """Send token after token; the last one says why it is the last."""
        random = np.random.default_rng(settings.seed)
        try:
            for left in reversed(range(settings.max_new_tokens)):
                if self._is_ending.is_set():
                    self._fail(sender, "the model is being unloaded", self._backend.TritonError.UNAVAILABLE)
                    return
                if time.monotonic() >= until or sender.is_cancelled():
                    sender.send(flags=self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                    return
                token = choose(scores_of(self._graph.next_logits(text), text.ids, settings), settings, random)
                text.ids.append(token)
                reason = "eos" if token in settings.eos_token_ids else "" if left else "length"
                self._answer(sender, token, reason)
                if reason:
                    return
        except Exception as error:  # noqa: BLE001 - ORT raises several unrelated types; the sender gets the reason
            self._fail(sender, first_line(error), self._backend.TritonError.INTERNAL)

    def _answer(self, sender: Any, token: int, reason: str) -> None:
        backend = self._backend
        response = backend.InferenceResponse([
            backend.Tensor("token_ids", np.array([token], dtype=np.int64)),
            backend.Tensor("finish_reason", np.array([reason.encode()], dtype=np.object_)),
        ])  # fmt: skip
        sender.send(response, flags=backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL if reason else 0)

    def _fail(self, sender: Any, message: str, code: Any) -> None:
        backend = self._backend
        response = backend.InferenceResponse(output_tensors=[], error=backend.TritonError(message, code))
        # Who asked may have left: then nobody is to be told.
        with contextlib.suppress(Exception):
            sender.send(response, flags=backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
