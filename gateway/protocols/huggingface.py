"""The Hugging Face Inference form: ``{"inputs": …, "parameters": …}`` to our own body, our answer to theirs.

Answers have the shapes that ``huggingface_hub.InferenceClient`` reads and that Hugging Face's own servers send, per
task. Used by the serve route for bodies that have ``inputs`` and by ``POST /predict``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import orjson

from gateway.endpoints.endpoint import Event
from gateway.errors import InputRefused

Body = Mapping[str, Any]
Convert = Callable[[Any], Any]
"""Our answer to theirs."""

_FIELDS: Final = ("inputs", "parameters", "options", "stream")
_BESIDE_INPUTS: Final = (
    "normalize", "prompt_name", "truncate", "truncation_direction", "dimensions", "encoding_format",
)  # fmt: skip
"""Parameters of feature extraction, which text-embeddings-inference and huggingface_hub put beside ``inputs``."""
_OF_SERVERS: Final = ("use_cache", "wait_for_model", "use_gpu")


def is_form(body: object) -> bool:
    """True for a body that is in this form rather than in ours."""
    return type(body) is dict and "inputs" in body and "text" not in body


def read(task: str, body: Body) -> tuple[dict[str, Any], Convert]:
    """Return our body for ``task`` and how its answer is converted. Raises ``InputRefused``."""
    parameters = body.get("parameters")
    if parameters is None:
        parameters = {}
    elif not isinstance(parameters, dict):
        raise InputRefused("parameters must be an object")
    for name in body:
        if name in _FIELDS:
            continue
        if name not in _BESIDE_INPUTS:
            raise InputRefused(
                f"unknown field {_shown(name)} beside inputs", hint='send {"inputs": …, "parameters": {…}}'
            )
        parameters = {**parameters, name: body[name]}
    options = body.get("options")
    if options is not None and (not isinstance(options, dict) or any(name not in _OF_SERVERS for name in options)):
        raise InputRefused(f"options takes {', '.join(_OF_SERVERS)} only, and they change nothing here")
    form = _TASKS.get(task)
    if form is None:
        raise InputRefused(
            f"the task {task} has no Hugging Face form here", hint='send the form of docs/tasks.md: {"text": …}'
        )
    # Clients send what was not chosen as null.
    ours, convert = form(body["inputs"], {name: value for name, value in parameters.items() if value is not None})
    if body.get("stream") is not None:
        if task != "text-generation":
            raise InputRefused("stream is for text generation")
        ours["stream"] = body["stream"]
    return ours, convert


def _classification(inputs: Any, parameters: Body) -> tuple[dict[str, Any], Convert]:
    if isinstance(inputs, dict):
        body = {"text": inputs.get("text"), "text_pair": inputs.get("text_pair")}
        _only(inputs, ("text", "text_pair"))
    else:
        body = {"text": inputs}

    def one(result: Body) -> list[dict[str, Any]]:
        return [{"label": label, "score": score} for label, score in result["scores"].items()]

    # A single text is answered with a list of lists too: so do Hugging Face's servers, so reads their client.
    return _with(body, parameters), lambda answer: [one(result) for result in _results(answer)]


def _embeddings(inputs: Any, parameters: Body) -> tuple[dict[str, Any], Convert]:
    chosen = dict(parameters)
    _drop(chosen, "truncate", (True,), "whether long texts are cut is an option of the endpoint")
    _drop(chosen, "truncation_direction", ("right", "Right"), "texts are cut where the model's files say")
    _drop(chosen, "encoding_format", ("float",), "base64 is an OpenAI form: POST /v1/embeddings")
    if isinstance(inputs, dict):
        return _similarity(inputs, chosen)
    size = chosen.pop("dimensions", None)
    if size is not None:
        whole_number(size, "dimensions")

    def convert(answer: Body) -> Any:
        vectors = answer["embeddings"] if "embeddings" in answer else answer["embedding"]
        return vectors if size is None else shortened(vectors, size)

    return _with({"text": inputs}, chosen), convert


def _similarity(inputs: Body, parameters: Body) -> tuple[dict[str, Any], Convert]:
    source, sentences = _source_and_sentences(inputs)

    def convert(answer: Body) -> list[float]:
        vectors = np.asarray(answer["embeddings"], dtype=np.float64)
        lengths = np.linalg.norm(vectors, axis=1)
        lengths[lengths == 0] = 1
        found = (vectors[1:] @ vectors[0]) / (lengths[1:] * lengths[0])
        return cast("list[float]", found.tolist())

    return _with({"text": [source, *sentences]}, parameters), convert


def _features(inputs: Any, parameters: Body) -> tuple[dict[str, Any], Convert]:
    chosen = dict(parameters)
    _drop(chosen, "truncate", (True,), "whether long texts are cut is an option of the endpoint")

    def convert(answer: Body) -> Any:
        found = [[result["features"]] for result in _results(answer)]
        return found if "results" in answer else found[0]

    return _with({"text": inputs}, chosen), convert


def _ranking(inputs: Any, parameters: Body) -> tuple[dict[str, Any], Convert]:
    if isinstance(inputs, dict) and "source_sentence" in inputs:
        query, sentences = _source_and_sentences(inputs)

        def in_order(answer: Body) -> list[float]:
            scores = [0.0] * len(sentences)
            for result in answer["results"]:
                scores[result["index"]] = result["score"]
            return scores

        return _with({"query": query, "documents": sentences}, parameters), in_order
    if not isinstance(inputs, dict) or "query" not in inputs or not ({"documents", "texts"} & set(inputs)):
        raise InputRefused('inputs must be {"query": "…", "documents": ["…", …]}')
    _only(inputs, ("query", "documents", "texts"))
    documents = inputs.get("documents", inputs.get("texts"))
    return _with({"query": inputs["query"], "documents": documents}, parameters), lambda answer: answer["results"]


def _zero_shot(inputs: Any, parameters: Body) -> tuple[dict[str, Any], Convert]:
    def one(result: Body) -> list[dict[str, Any]]:
        return [{"label": label, "score": score} for label, score in result["scores"].items()]

    return _with({"text": inputs}, parameters), lambda answer: _as_sent(answer, one)


def _tokens(inputs: Any, parameters: Body) -> tuple[dict[str, Any], Convert]:
    return _with({"text": inputs}, parameters), lambda answer: _as_sent(answer, lambda result: result["entities"])


def _mask(inputs: Any, parameters: Body) -> tuple[dict[str, Any], Convert]:
    return _with({"text": inputs}, parameters), lambda answer: _as_sent(answer, lambda result: result["predictions"])


def _question(inputs: Any, parameters: Body) -> tuple[dict[str, Any], Convert]:
    if not isinstance(inputs, dict) or not {"question", "context"} <= set(inputs):
        raise InputRefused('inputs must be {"question": "…", "context": "…"}')
    _only(inputs, ("question", "context"))
    several = parameters.get("top_k", 1) not in (1, True)

    def one(result: Body) -> Any:
        answers = result.get("answers")
        if answers and several:
            return [_part(answer, ("answer", "score", "start", "end")) for answer in answers]
        return _part(result, ("answer", "score", "start", "end"))

    return _with(dict(inputs), parameters), lambda answer: _as_sent(answer, one)


def _generation(inputs: Any, parameters: Body) -> tuple[dict[str, Any], Convert]:
    chosen = dict(parameters)
    for name, neutral in _GENERATION_NEUTRAL.items():
        _drop(chosen, name, neutral, "it is not offered here")
    details = chosen.pop("details", False)

    def one(result: Body) -> dict[str, Any]:
        written = {"generated_text": result["text"]}
        return {**written, "details": _details(result)} if details is True else written

    return _with({"text": inputs}, chosen), lambda answer: [one(result) for result in _results(answer)]


_GENERATION_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "best_of": (1,), "decoder_input_details": (False,), "watermark": (False,), "frequency_penalty": (0,),
    "top_n_tokens": (0,), "typical_p": (1,),
}  # fmt: skip


def _details(result: Body) -> dict[str, Any]:
    return {
        "finish_reason": _FINISH[result["finish_reason"]],
        "generated_tokens": result["generated_tokens"],
        "seed": None,
        "prefill": [],
        "tokens": [],
    }


_FINISH: Final = {"eos": "eos_token", "stop": "stop_sequence", "length": "length"}


class GenerationEvents:
    """Events of a streamed text as text-generation-inference sends them: one object each, the last with the text."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def __call__(self, event: Event) -> bytes:
        """Write one event."""
        self._parts.append(event.text)
        is_last = event.finish_reason is not None
        content = {
            "index": event.generated_tokens,
            "token": {
                "id": event.token_ids[-1] if event.token_ids else 0, "text": event.text, "logprob": 0.0,
                "special": not event.text,
            },
            "generated_text": "".join(self._parts) if is_last else None,
            "details": None if event.finish_reason is None else {
                "finish_reason": _FINISH[event.finish_reason], "generated_tokens": event.generated_tokens,
                "input_length": event.tokens, "seed": None,
            },
        }  # fmt: skip
        return b"data:" + orjson.dumps(content) + b"\n\n"


_TASKS: Final[Mapping[str, Callable[[Any, Body], tuple[dict[str, Any], Convert]]]] = {
    "text-classification": _classification,
    "sentence-embeddings": _embeddings,
    "feature-extraction": _features,
    "ranking": _ranking,
    "zero-shot-classification": _zero_shot,
    "token-classification": _tokens,
    "fill-mask": _mask,
    "question-answering": _question,
    "text-generation": _generation,
}


# --- parts shared with other forms ------------------------------------------------------------------------------------


def whole_number(value: object, name: str) -> int:
    """Return ``value`` when it is a whole number of at least 1. Raises ``InputRefused``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputRefused(f"{name} must be a whole number of at least 1")
    return value


def shortened(vectors: Any, size: int) -> Any:
    """Return the first ``size`` numbers of each vector ([n] or [rows, n]), at length one again.

    For models that were trained for it (Matryoshka). Raises ``InputRefused`` where vectors are shorter than that.
    """
    array = np.asarray(vectors, dtype=np.float32)
    if size > array.shape[-1]:
        raise InputRefused(f"this model's vectors have {array.shape[-1]} dimensions, not {size}")
    cut = array[..., :size]
    length = np.linalg.norm(cut, axis=-1, keepdims=True)
    return np.ascontiguousarray(cut / np.maximum(length, 1e-12))


def _results(answer: Body) -> Sequence[Body]:
    found = answer.get("results")
    return [answer] if found is None else found


def _as_sent(answer: Body, one: Callable[[Body], Any]) -> Any:
    """A single text's result by itself, a list's in a list."""
    return [one(result) for result in answer["results"]] if "results" in answer else one(answer)


def _with(body: dict[str, Any], parameters: Body) -> dict[str, Any]:
    return {**body, "parameters": dict(parameters)} if parameters else body


def _only(inputs: Body, known: Sequence[str]) -> None:
    for name in inputs:
        if name not in known:
            raise InputRefused(f"unknown field {_shown(name)} in inputs", hint=f"it takes {', '.join(known)}")


def _part(values: Body, names: Sequence[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _source_and_sentences(inputs: Body) -> tuple[str, list[str]]:
    source, sentences = inputs.get("source_sentence"), inputs.get("sentences")
    if not isinstance(source, str) or not isinstance(sentences, list) or not sentences:
        raise InputRefused('inputs must be text, a list of texts, or {"source_sentence": "…", "sentences": ["…", …]}')
    _only(inputs, ("source_sentence", "sentences"))
    return source, sentences


def _drop(parameters: dict[str, Any], name: str, fine: tuple[object, ...], otherwise: str) -> None:
    """Take out a parameter that changes nothing here; refuse a value that would."""
    if name in parameters and parameters.pop(name) not in fine:
        raise InputRefused(f"{name} cannot be chosen for a request: {otherwise}")


def _shown(name: object) -> str:
    return ascii(str(name))[1:-1][:60]
