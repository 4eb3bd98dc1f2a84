"""OpenAPI schemas of an endpoint's request and answer, from its description. Pure.

The schemas of tasks are written here. Those of a plain model follow from its tensors, all others from an example. Tests
post every example and check the answer's schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Schema = dict[str, Any]
Details = Mapping[str, Any]

_SENTENCE: Final = "A man is eating food."
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


# --- other forms ------------------------------------------------------------------------------------------------------


def form_paths(
    endpoints: Sequence[Details], canaries: Mapping[str, Any], defaults: Mapping[str, str]
) -> dict[str, Any]:
    """Return the paths of the other request forms, with the endpoints that each can call."""
    urls = [str(endpoint["url"]) for endpoint in endpoints]
    by_task: dict[str, list[str]] = {}
    for endpoint in endpoints:
        by_task.setdefault(str(endpoint["details"].get("task")), []).append(str(endpoint["url"]))
    routes: dict[str, Any] = {**{name: {url: 1.0} for name, url in defaults.items()}, **canaries}
    for name, shares in routes.items():
        for found in by_task.values():
            if any(url in found for url in shares):
                found.append(name)
                break
    every = sorted({*urls, *routes})
    openai_error = _object(
        {"error": _object({"message": {"type": "string"}, "type": {"type": "string"}}, ["message"])}, []
    )
    paths: dict[str, Any] = {}
    vectors, texts = by_task.get("sentence-embeddings"), by_task.get("text-generation")
    if vectors:
        paths["/v1/embeddings"] = _post(
            "Embeddings (OpenAI)",
            _object({
                "model": {"type": "string", "enum": sorted(vectors)},
                "input": {"anyOf": [_TEXT, {"type": "array", "items": {}, "minItems": 1}]},
                "encoding_format": {"type": "string", "enum": ["float", "base64"]},
                "dimensions": {"type": "integer", "minimum": 1},
            }, ["model", "input"]),
            {"model": sorted(vectors)[0], "input": [_SENTENCE]}, openai_error,
        )  # fmt: skip
    if texts:
        sampling: dict[str, Schema] = {
            "model": {"type": "string", "enum": sorted(texts)}, "max_tokens": {"type": "integer", "minimum": 1},
            "temperature": _PARAMETERS["temperature"], "top_p": _PARAMETERS["top_p"], "seed": _PARAMETERS["seed"],
            "stop": _PARAMETERS["stop"], "stream": {"type": "boolean"},
        }  # fmt: skip
        paths["/v1/completions"] = _post(
            "Completions (OpenAI)",
            _object({**sampling, "prompt": {"anyOf": [_TEXT, {"type": "array", "items": {}}]}}, ["model", "prompt"]),
            {"model": sorted(texts)[0], "prompt": "Once upon a time", "max_tokens": 16}, openai_error,
        )  # fmt: skip
        message = _object({"role": {"type": "string"}, "content": {}}, ["role", "content"])
        messages = {"type": "array", "items": message, "minItems": 1}
        paths["/v1/chat/completions"] = _post(
            "Chat completions (OpenAI)",
            _object({**sampling, "messages": messages}, ["model", "messages"]),
            {"model": sorted(texts)[0], "messages": [{"role": "user", "content": "Hello"}]}, openai_error,
        )  # fmt: skip
    for task in ("sentence-embeddings", "text-classification", "ranking"):
        for name in sorted(by_task.get(task, ()))[:1]:
            paths |= _tei_paths(task, sorted(by_task[task]), name)
    if every:
        tensor = _object(
            {"name": {"type": "string"}, "datatype": {"type": "string"},
             "shape": {"type": "array", "items": {"type": "integer"}}, "data": {"type": "array", "items": {}}},
            ["name", "datatype", "shape"],
        )  # fmt: skip
        tensors = {"type": "array", "items": tensor}
        infer = _post(
            "Infer (Open Inference Protocol)",
            _object({"id": {"type": "string"}, "inputs": tensors, "outputs": {"type": "array", "items": {}}},
                    ["inputs"]),
            {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [_SENTENCE]}]},
            _object({"error": {"type": "string"}}, ["error"]),
        )  # fmt: skip
        named = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "enum": every}}
        infer["post"]["parameters"] = [named]
        paths["/v2/models/{model}/infer"] = infer
        about = {"200": {"description": "Inputs, outputs and versions."}, "404": {"description": "Not served."}}
        paths["/v2/models/{model}"] = {
            "get": {"summary": "Metadata (Open Inference Protocol)", "tags": ["other request forms"],
                    "parameters": [named], "responses": about}
        }  # fmt: skip
    return paths


def _tei_paths(task: str, names: Sequence[str], example: str) -> dict[str, Any]:
    """Return Text Embeddings Inference's routes for a task, and Cohere's for ranking."""
    said = _object({"error": {"type": "string"}, "error_type": {"type": "string"}}, ["error", "error_type"])
    texts: Schema = {"anyOf": [_TEXT, {"type": "array", "items": {}, "minItems": 1}]}
    cut: dict[str, Schema] = {"truncate": {"type": "boolean"}}
    routes: dict[str, tuple[dict[str, Schema], dict[str, object]]] = {
        "/tokenize": ({"inputs": texts, "add_special_tokens": {"type": "boolean"}}, {"inputs": _SENTENCE}),
        "/decode": ({"ids": {"type": "array", "items": {}}, "skip_special_tokens": {"type": "boolean"}}, {"ids": [1]}),
    }
    ranked: dict[str, object] = {"query": "Who wrote Faust?", "texts": ["It rains.", "Goethe wrote it."]}
    documents: dict[str, Schema] = {"query": _TEXT, "texts": {"type": "array", "items": _TEXT, "minItems": 1}}
    if task == "sentence-embeddings":
        fields = {"normalize": _PARAMETERS["normalize"], "dimensions": _PARAMETERS["dimensions"]}
        routes["/embed"] = ({"inputs": texts, **cut, **fields}, {"inputs": [_SENTENCE]})
        compared = _object({"source_sentence": _TEXT, "sentences": {"type": "array", "items": _TEXT}}, [])
        both = {"source_sentence": _SENTENCE, "sentences": [_SENTENCE]}
        routes["/similarity"] = ({"inputs": compared}, {"inputs": both})
    elif task == "text-classification":
        routes["/predict"] = ({"inputs": texts, **cut, "raw_scores": {"type": "boolean"}}, {"inputs": _SENTENCE})
    else:
        flags: dict[str, Schema] = {"raw_scores": {"type": "boolean"}, "return_text": {"type": "boolean"}}
        routes["/rerank"] = ({**documents, **cut, **flags}, ranked)
    found: dict[str, Any] = {}
    for route, (properties, asked) in routes.items():
        operation = _post(f"{route} (Text Embeddings Inference)", _object(properties, list(asked)), asked, said)
        operation["post"]["parameters"] = [
            {"name": "name", "in": "path", "required": True, "example": example,
             "schema": {"type": "string", "enum": list(names)} if route not in ("/tokenize", "/decode")
             else {"type": "string"}}
        ]  # fmt: skip
        found[f"/tei/{{name}}{route}"] = operation
    if task == "ranking":
        for version in ("/v1/rerank", "/v2/rerank"):
            found[version] = _post(
                "Rerank (Cohere, Jina)",
                _object({"model": {"type": "string", "enum": list(names)}, "query": _TEXT,
                         "documents": {"type": "array", "items": {}, "minItems": 1}, "top_n": _PARAMETERS["top_n"]},
                        ["model", "query", "documents"]),
                {"model": example, "query": ranked["query"], "documents": ranked["texts"]},
                _object({"message": {"type": "string"}}, ["message"]),
            )  # fmt: skip
    return found


def _post(summary: str, schema: Schema, example: object, error: Schema) -> dict[str, Any]:
    content = {"application/json": {"schema": schema, "example": example}}
    refused = {"description": "Refused", "content": {"application/json": {"schema": error}}}
    return {
        "post": {
            "summary": summary, "tags": ["other request forms"], "requestBody": {"required": True, "content": content},
            "responses": {"200": {"description": "The answer, in this form."}, "4XX": refused, "5XX": refused},
        }
    }  # fmt: skip
