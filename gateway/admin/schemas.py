"""OpenAPI schemas of an endpoint's request and answer, from its description. Pure.

The schemas of tasks are written here. Those of a plain model follow from its tensors, all others from an example. Tests
post every example and check the answer's schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Schema = dict[str, Any]
Details = Mapping[str, Any]

_TEXT: Final[Schema] = {"type": "string", "minLength": 1}
_NUMBER: Final[Schema] = {"type": "number"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_VECTOR: Final[Schema] = {"type": "array", "items": _NUMBER}
_PARAMETERS: Final[Mapping[str, Schema]] = {
    "top_k": {"type": "integer", "minimum": 0},
    "function_to_apply": {"type": "string", "enum": ["softmax", "sigmoid", "none"]},
    "normalize": {"type": "boolean"},
    "truncate": {"type": "boolean", "description": "false refuses a text that is too long instead of cutting it."},
    "prompt_name": {"type": "string"},
    "dimensions": {"type": "integer", "minimum": 1},
    "aggregation_strategy": {"type": "string", "enum": ["none", "simple", "first", "average", "max"]},
    "ignore_labels": {"type": "array", "items": {"type": "string"}},
    "stride": {"type": "integer", "minimum": 0},
    "candidate_labels": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]},
    "hypothesis_template": {"type": "string", "description": "{} stands for the label."},
    "multi_label": {"type": "boolean"},
    "targets": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]},
    "top_n": {"type": "integer", "minimum": 1},
    "return_documents": {"type": "boolean"},
    "doc_stride": {"type": "integer", "minimum": 0},
    "max_answer_len": {"type": "integer", "minimum": 1},
    "max_seq_len": {"type": "integer", "minimum": 1},
    "handle_impossible_answer": {"type": "boolean"},
    "align_to_words": {"type": "boolean"},
    "max_new_tokens": {"type": "integer", "minimum": 1},
    "do_sample": {"type": "boolean"},
    "temperature": {"type": "number", "minimum": 0},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    "repetition_penalty": {"type": "number", "minimum": 0},
    "seed": {"type": "integer", "minimum": 0},
    "stop": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]},
    "return_full_text": {"type": "boolean"},
}


def request_schema(details: Details) -> Schema:
    """Return the schema of an endpoint's request body."""
    task = details.get("task")
    if task == "ranking":
        fields = {"query": _one_or_many(details), "documents": {"type": "array", "items": {}, "minItems": 1}}
    elif task == "question-answering":
        fields = {"question": _one_or_many(details), "context": _one_or_many(details)}
    elif task in _ANSWERS:
        fields = {"text": _one_or_many(details)}
    elif task == "tensors":
        names = [str(described).split(" ", 1)[0] for described in details.get("inputs", ())]
        return _object({name: {"type": "array", "items": {}} for name in names}, names)
    else:
        return of_value(details["example"]) if "example" in details else {}
    required = list(fields)
    if details.get("text_pairs") and "text" in fields:
        fields["text_pair"] = {**_one_or_many(details), "nullable": True}
    if details.get("streams"):
        fields["stream"] = {"type": "boolean"}
    known = {str(name): _PARAMETERS.get(name, {}) for name in details.get("parameters", ())}
    fields["parameters"] = {"type": "object", "nullable": True, "properties": known, "additionalProperties": False}
    return _object(fields, required, closed=True)


def response_schema(details: Details) -> Schema:
    """Return the schema of an endpoint's answer."""
    form = _ANSWERS.get(str(details.get("task")))
    if form is not None:
        return form(details)
    return of_value(details["example_answer"]) if "example_answer" in details else {}


def of_value(value: object) -> Schema:
    """Return the schema of an example: types, the fields of objects, the first item of lists."""
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int | float):
        return dict(_NUMBER)
    if isinstance(value, str):
        return {"type": "string"}
    if isinstance(value, Mapping):
        return _object({str(name): of_value(item) for name, item in value.items()}, [])
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return {"type": "array", "items": of_value(value[0]) if value else {}}
    return {}


# --- tasks ------------------------------------------------------------------------------------------------------------


def _one_or_many(details: Details) -> Schema:
    many: Schema = {"type": "array", "items": _TEXT, "minItems": 1}
    if isinstance(details.get("max_rows"), int):
        many["maxItems"] = details["max_rows"]
    return {"anyOf": [_TEXT, many]}


def _object(fields: Mapping[str, Schema], required: Sequence[str], *, closed: bool = False) -> Schema:
    made: Schema = {"type": "object", "properties": dict(fields)}
    if required:
        made["required"] = list(required)
    if closed:
        made["additionalProperties"] = False
    return made


def _either(result: Mapping[str, Schema], required: Sequence[str], many: Schema | None = None) -> Schema:
    """Return the schema of one answer or a list of them in ``results``, each with its tokens."""
    cut: dict[str, Schema] = {
        "truncated": {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "boolean"}}]}
    }
    single = _object({**result, "tokens": _COUNT, **cut}, [*required, "tokens"])
    counts: dict[str, Schema] = {"tokens": {"type": "array", "items": _COUNT}, **cut}
    several = many or {"results": {"type": "array", "items": _object(result, required)}}
    return {"anyOf": [single, _object({**several, **counts}, [*several, "tokens"])]}


def _labels(details: Details) -> Schema:
    labels = details.get("labels")
    return {"type": "string", "enum": list(labels)} if labels else {"type": "string"}


def _classification(details: Details) -> Schema:
    labels = _labels(details)
    scores: Schema = {"type": "object", "additionalProperties": _NUMBER, "description": "Best first."}
    if "enum" in labels:
        scores = {**scores, "properties": dict.fromkeys(labels["enum"], _NUMBER), "additionalProperties": False}
    return _either({"label": labels, "score": _NUMBER, "scores": scores}, ["label", "score", "scores"])


def _zero_shot(_details: Details) -> Schema:
    return _classification({})


def _embeddings(details: Details) -> Schema:
    size = details.get("embedding_size")
    vector = {**_VECTOR, "minItems": 1, "maxItems": size} if isinstance(size, int) and size else _VECTOR
    return _either({"embedding": vector}, ["embedding"], {"embeddings": {"type": "array", "items": vector}})


def _features(_details: Details) -> Schema:
    return _either({"features": {"type": "array", "items": _VECTOR}}, ["features"])


def _ranking(_details: Details) -> Schema:
    result = _object(
        {"index": _COUNT, "score": _NUMBER, "document": {"type": "string"}, "truncated": {"type": "boolean"}},
        ["index", "score"],
    )
    return _either({"results": {"type": "array", "items": result}}, ["results"])


def _entities(_details: Details) -> Schema:
    fields: dict[str, Schema] = {
        "entity_group": {"type": "string"}, "entity": {"type": "string"}, "score": _NUMBER, "index": _COUNT,
        "word": {"type": "string"}, "start": {**_COUNT, "nullable": True}, "end": {**_COUNT, "nullable": True},
    }  # fmt: skip
    return _either({"entities": {"type": "array", "items": _object(fields, ["score", "word"])}}, ["entities"])


def _answer(_details: Details) -> Schema:
    fields: dict[str, Schema] = {"answer": {"type": "string"}, "score": _NUMBER, "start": _COUNT, "end": _COUNT}
    best = {"type": "array", "items": _object(fields, list(fields)), "description": "With top_k above 1."}
    return _either({**fields, "answers": best}, list(fields))


def _mask(_details: Details) -> Schema:
    fields: dict[str, Schema] = {
        "score": _NUMBER, "token": _COUNT, "token_str": {"type": "string"}, "sequence": {"type": "string"},
    }  # fmt: skip
    one = _object(fields, list(fields))
    several = {"type": "array", "items": one, "description": "One list per mask if there are several."}
    return _either({"predictions": {"type": "array", "items": {"anyOf": [one, several]}}}, ["predictions"])


def _generation(_details: Details) -> Schema:
    reasons = {"type": "string", "enum": ["eos", "length", "stop"]}
    fields: dict[str, Schema] = {"text": {"type": "string"}, "generated_tokens": _COUNT, "finish_reason": reasons}
    return _either(fields, list(fields))


_ANSWERS: Final[Mapping[str, Callable[[Details], Schema]]] = {
    "text-classification": _classification,
    "zero-shot-classification": _zero_shot,
    "sentence-embeddings": _embeddings,
    "feature-extraction": _features,
    "ranking": _ranking,
    "token-classification": _entities,
    "question-answering": _answer,
    "fill-mask": _mask,
    "text-generation": _generation,
}
