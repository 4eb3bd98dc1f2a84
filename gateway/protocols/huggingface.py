"""Hugging Face's inference API: converts ``{"inputs": …, "parameters": …}`` to an endpoint's body, and its answer back.

Answers of each task have the form that Hugging Face's servers send and ``huggingface_hub.InferenceClient`` reads. The
serve route uses it for bodies with ``inputs``, ``POST /predict`` for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import orjson

from gateway.errors import InputRefused
from gateway.handlers.endpoint import Event
from gateway.protocols.fields import Body, is_among, object_in, refuse_other_fields, whole_number

Convert = Callable[[Any], Any]
"""Converts an endpoint's answer to Hugging Face's form."""
Form = Callable[[Any, Mapping[str, Any]], tuple[dict[str, Any], Convert]]
"""Makes an endpoint's body of ``inputs`` and parameters, and says how its answer is converted."""

_FIELDS: Final = ("inputs", "parameters", "options", "stream")
_SERVER_OPTIONS: Final = ("use_cache", "wait_for_model", "use_gpu")


def is_huggingface_body(body: object) -> bool:
    """Return whether a body has Hugging Face's form instead of an endpoint's own."""
    return type(body) is dict and "inputs" in body and "text" not in body


def read(task: str, body: Body) -> tuple[dict[str, Any], Convert]:
    """Return the endpoint's own body for ``task``, and a function that converts its answer. Raises ``InputRefused``."""
    parameters = object_in(body, "parameters")
    # Text Embeddings Inference and huggingface_hub put some parameters beside the inputs.
    if beside := {name: value for name, value in body.items() if name not in _FIELDS}:
        parameters = {**parameters, **beside}
    refuse_other_fields(object_in(body, "options"), _SERVER_OPTIONS)  # they have no effect here
    form = _TASKS.get(task)
    if form is None:
        raise InputRefused(
            f"the task {task} has no Hugging Face form here",
            hint='send {"text": …} instead, as docs/tasks.md describes it',
        )
    ours, convert = form(body["inputs"], _our_parameters(parameters) if parameters else parameters)
    if body.get("stream") is not None:
        if task != "text-generation":
            raise InputRefused("stream is for text generation")
        ours["stream"] = body["stream"]
    return ours, convert


def _classification(inputs: Any, parameters: Body) -> tuple[dict[str, Any], Convert]:
    body: dict[str, Any]
    if isinstance(inputs, dict):
        body = {"text": inputs.get("text"), "text_pair": inputs.get("text_pair")}
        refuse_other_fields(inputs, ("text", "text_pair"))
    elif isinstance(inputs, list) and inputs and isinstance(inputs[0], list):
        texts, pairs = singles_or_pairs(inputs)
        body = {"text": texts, "text_pair": pairs}
    else:
        body = {"text": inputs}
    # A single text is answered with a list of lists too, as Hugging Face's servers do and their client expects.
    return _request(body, parameters), lambda answer: [label_scores(result) for result in _results(answer)]


def _embeddings(inputs: Any, parameters: Body) -> tuple[dict[str, Any], Convert]:
    ours = dict(parameters)
    if ours.pop("encoding_format", "float") != "float":
        raise InputRefused("encoding_format must be float: for base64, use OpenAI's POST /v1/embeddings")
    if isinstance(inputs, dict):
        return _similarity(inputs, ours)
    size = whole_number(ours, "dimensions")
    ours.pop("dimensions", None)

    def convert(answer: Body) -> Any:
        vectors = answer["embeddings"] if "embeddings" in answer else answer["embedding"]
        return vectors if size is None else shorten(vectors, size)

    return _request({"text": inputs}, ours), convert


def _similarity(inputs: Body, parameters: Body) -> tuple[dict[str, Any], Convert]:
    source, sentences = _source_and_sentences(inputs)

    def convert(answer: Body) -> list[float]:
        vectors = np.asarray(answer["embeddings"], dtype=np.float64)
        lengths = np.linalg.norm(vectors, axis=1)
        lengths[lengths == 0] = 1
        cosines = (vectors[1:] @ vectors[0]) / (lengths[1:] * lengths[0])
        return cast("list[float]", cosines.tolist())

    return _request({"text": [source, *sentences]}, parameters), convert


def _features(inputs: Any, parameters: Body) -> tuple[dict[str, Any], Convert]:
    def convert(answer: Body) -> Any:
        features = [[result["features"]] for result in _results(answer)]
        return features if "results" in answer else features[0]

    return _request({"text": inputs}, parameters), convert


def _ranking(inputs: Any, parameters: Body) -> tuple[dict[str, Any], Convert]:
    if isinstance(inputs, dict) and "source_sentence" in inputs:
        query, sentences = _source_and_sentences(inputs)

        def in_order(answer: Body) -> list[float]:
            scores = [0.0] * len(sentences)
            for result in answer["results"]:
                scores[result["index"]] = result["score"]
            return scores

        return _request({"query": query, "documents": sentences}, parameters), in_order
    pairs = [inputs] if isinstance(inputs, dict) else inputs
    if isinstance(pairs, list) and all(isinstance(pair, dict) and set(pair) == {"text", "text_pair"} for pair in pairs):
        pairs = [[pair["text"], pair["text_pair"]] for pair in pairs]
    if not isinstance(pairs, list) or not pairs or (split := singles_or_pairs(pairs))[1] is None:
        raise InputRefused('inputs must be [{"text": "…", "text_pair": "…"}, …], or [["query", "document"], …]')
    body = {"query": split[0], "documents": [[document] for document in split[1]]}
    return _request(body, parameters), lambda answer: [as_predictions(result) for result in answer["results"]]


def as_predictions(result: Body) -> list[dict[str, Any]]:
    """Return the score of one pair as a classifier with one label would."""
    return [{"label": "LABEL_0", "score": document["score"]} for document in result["results"]]


def label_scores(result: Body) -> list[dict[str, Any]]:
    """Return the scores of a classifier's labels."""
    return [{"label": label, "score": score} for label, score in result["scores"].items()]


def _of_each_text(one: Callable[[Body], Any]) -> Form:
    """Return the form of a task that takes texts only, and converts the result of each with ``one``."""
    return lambda inputs, parameters: (_request({"text": inputs}, parameters), lambda answer: _per_text(answer, one))


def _question(inputs: Any, parameters: Body) -> tuple[dict[str, Any], Convert]:
    if not isinstance(inputs, dict) or not {"question", "context"} <= set(inputs):
        raise InputRefused('inputs must be {"question": "…", "context": "…"}')
    refuse_other_fields(inputs, ("question", "context"))
    several = parameters.get("top_k", 1) not in (1, True)

    def one(result: Body) -> Any:
        answers = result.get("answers")
        if answers and several:
            return [_select(answer, ("answer", "score", "start", "end")) for answer in answers]
        return _select(result, ("answer", "score", "start", "end"))

    return _request(dict(inputs), parameters), lambda answer: _per_text(answer, one)


def _generation(inputs: Any, parameters: Body) -> tuple[dict[str, Any], Convert]:
    ours = dict(parameters)
    details = ours.pop("details", False)

    def one(result: Body) -> dict[str, Any]:
        text = {"generated_text": result["text"]}
        return {**text, "details": _details(result)} if details is True else text

    return _request({"text": inputs}, ours), lambda answer: [one(result) for result in _results(answer)]


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
    """Renders the events of a streamed text as Text Generation Inference does; the last one contains the whole text."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def __call__(self, event: Event) -> bytes:
        """Return one event as bytes of a ``text/event-stream``."""
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


_TASKS: Final[Mapping[str, Form]] = {
    "text-classification": _classification,
    "sentence-embeddings": _embeddings,
    "feature-extraction": _features,
    "ranking": _ranking,
    "zero-shot-classification": _of_each_text(label_scores),
    "token-classification": _of_each_text(lambda result: result["entities"]),
    "fill-mask": _of_each_text(lambda result: result["predictions"]),
    "question-answering": _question,
    "text-generation": _generation,
}


# --- parameters -------------------------------------------------------------------------------------------------------

_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "padding": (True, False, "longest", "max_length", "do_not_pad"), "function_to_apply": ("default",),
    "num_beams": (1,), "num_beam_groups": (1,), "diversity_penalty": (0,), "penalty_alpha": (0,),
    "length_penalty": (1,), "early_stopping": (False,), "num_return_sequences": (1,), "best_of": (1,),
    "no_repeat_ngram_size": (0,), "frequency_penalty": (0,), "presence_penalty": (0,), "typical_p": (1,),
    "min_p": (0,), "min_length": (0,), "min_new_tokens": (0,), "use_cache": (True,), "prefix": ("",),
    "clean_up_tokenization_spaces": (False,), "handle_long_generation": ("hole",), "return_text": (True,),
    "return_tensors": (False,), "add_special_tokens": (True,), "decoder_input_details": (False,),
    "top_n_tokens": (0,), "watermark": (False,), "generate_parameters": ({},), "max_question_len": (64,),
    "ignore_subwords": (False,),
}  # fmt: skip
"""Parameters of pipelines and servers → their values that change nothing, and are left out."""
_SIMILARITY_TASK: Final = "sentence-similarity"


def _our_parameters(given: Body) -> dict[str, Any]:
    """Return the parameters of a Hugging Face pipeline under the endpoints' own names, without those of no effect.

    An endpoint refuses what it does not know by name.
    """
    ours: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or is_among(value, _NEUTRAL.get(name, ())):  # clients send unset parameters as null
            continue
        if name == "truncation":
            ours["truncate"] = _truncates(value)
        elif name == "truncation_direction" and isinstance(value, str):
            ours[name] = value.lower()
        elif name == "raw_scores" and isinstance(value, bool):
            if value:
                ours["function_to_apply"] = "none"
        else:
            ours["stop" if name == "stop_sequences" else name] = value
    return ours


def _truncates(value: object) -> bool:
    if value in ("longest_first", "only_first", "only_second") or value is True:
        return True
    if value == "do_not_truncate" or value is False:
        return False
    raise InputRefused("truncation must be true, false, or the name of one of transformers' strategies")


def expect_task(task: str, wanted: str) -> None:
    """Raise ``InputRefused`` unless an endpoint with ``task`` does ``wanted``, the task in its address.

    ``wanted`` is a name of Hugging Face's, for whom embeddings are a kind of feature extraction.
    """
    fitting = {task, *({"feature-extraction", _SIMILARITY_TASK} if task == "sentence-embeddings" else ())}
    fitting |= {_SIMILARITY_TASK, "text-classification", "sentence-ranking"} if task == "ranking" else set()
    if wanted not in fitting:
        raise InputRefused(
            f"this endpoint's task is {task or 'that of its own code'}, not {wanted}",
            hint="GET /v1/status says which endpoint does what",
        )


# --- parts shared with other forms ------------------------------------------------------------------------------------


def shorten(vectors: Any, size: int, *, normalize: bool = True) -> Any:
    """Return the first ``size`` numbers of each vector ([n] or [rows, n]) as FP32, scaled to length 1 if ``normalize``.

    For models that were trained for shorter vectors (Matryoshka). Raises ``InputRefused`` if the vectors are shorter.
    """
    array = np.asarray(vectors, dtype=np.float32)
    if size > array.shape[-1]:
        raise InputRefused(f"this model's vectors have {array.shape[-1]} dimensions, not {size}")
    cut = array[..., :size]
    if not normalize:
        return np.ascontiguousarray(cut)
    length = np.linalg.norm(cut, axis=-1, keepdims=True)
    return np.ascontiguousarray(cut / np.maximum(length, 1e-12))


def singles_or_pairs(inputs: Sequence[Any]) -> tuple[list[Any], list[Any] | None]:
    """Return the first texts, and the second texts or None if there are no pairs. Raises ``InputRefused``.

    ``inputs`` are lists of one text or lists of two, as in Text Embeddings Inference.
    """
    sizes = {len(item) if isinstance(item, list) else 0 for item in inputs}
    if sizes == {1}:
        return [item[0] for item in inputs], None
    if sizes == {2}:
        return [item[0] for item in inputs], [item[1] for item in inputs]
    if sizes == {1, 2}:
        raise InputRefused("single texts and pairs cannot be in one request", hint="send them in two requests")
    raise InputRefused("each of the inputs must be a list of one text, or of two", hint='send [["…", "…"], ["…", "…"]]')


def _results(answer: Body) -> Sequence[Body]:
    results = answer.get("results")
    return [answer] if results is None else results


def _per_text(answer: Body, one: Callable[[Body], Any]) -> Any:
    """Convert an answer with ``one``: a single result if the request was a single text, else a list."""
    return [one(result) for result in answer["results"]] if "results" in answer else one(answer)


def _request(body: dict[str, Any], parameters: Body) -> dict[str, Any]:
    return {**body, "parameters": dict(parameters)} if parameters else body


def _select(values: Body, names: Sequence[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _source_and_sentences(inputs: Body) -> tuple[str, list[str]]:
    source, sentences = inputs.get("source_sentence"), inputs.get("sentences")
    if not isinstance(source, str) or not isinstance(sentences, list) or not sentences:
        raise InputRefused('inputs must be text, a list of texts, or {"source_sentence": "…", "sentences": ["…", …]}')
    refuse_other_fields(inputs, ("source_sentence", "sentences"))
    return source, sentences
