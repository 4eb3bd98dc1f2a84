"""Text Embeddings Inference's API: its routes, bodies and answers, and the endpoint that a route calls.

Each route calls an endpoint of its task. Features that do not exist here are refused by name. The path names the
endpoint (``/tei/NAME/embed``); the bare routes (``/embed``) call the only endpoint. Pure: bodies in, bodies out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.errors import EndpointNotFound, InputRefused
from gateway.handlers.endpoint import Endpoint, Lookup
from gateway.path.call import Call
from gateway.path.routing import Snapshot
from gateway.protocols import huggingface
from gateway.protocols.fields import (
    Body,
    flag,
    object_in,
    object_of,
    refuse_other_fields,
    rows_of,
    texts_or_ids,
    whole_number,
)
from gateway.protocols.json_body import dumps
from gateway.trace import Trace
from preprocessing.config import CLASSIFICATION, EMBEDDINGS, FEATURES, RANKING

_LENGTH: Final = ("truncate", "truncation_direction")
_NORMALIZED: Final = {"normalize": True}
_MODEL_OF: Final = {EMBEDDINGS: "an embedding", RANKING: "a re-ranker", CLASSIFICATION: "a classification",
                    FEATURES: "a token embedding"}  # fmt: skip

Asked = tuple[Any, huggingface.Convert]
"""The request for an endpoint, and a function that converts its answer."""


class WrongModel(InputRefused):
    """The endpoint does another task; Text Embeddings Inference answers 424."""


class NothingSent(InputRefused):
    """An empty list; Text Embeddings Inference answers 400."""


@dataclass(frozen=True, slots=True)
class Route:
    """What a route takes."""

    ask: Callable[[Body, Endpoint], Asked]
    """Reads the values of a body for an endpoint. Raises ``InputRefused``."""
    tasks: tuple[str, ...] = ()
    """The tasks of the endpoints that it may call; empty for any text task."""
    fields: tuple[str, ...] | None = ()
    """The fields that a body may have beside ``required``; None for any."""
    required: tuple[str, ...] = ("inputs",)
    form: str = '{"inputs": "…"}'
    """An example of a body."""
    instead: str = ""
    """The hint if the endpoint does another task."""

    def __call__(self, body: object, path: str) -> TeiCall:
        """Return the call of a body for the endpoint at ``path``. Raises ``InputRefused``."""
        return TeiCall(self, self.read(body), path)

    def read(self, body: object) -> Body:
        """Return ``body`` if it has the fields of this route. Raises ``InputRefused``."""
        fields = self.fields
        if fields is None:
            return object_of(body, self.form)
        if isinstance(body, dict) and "parameters" in body and "parameters" not in fields:
            body = _with_parameters(body)  # Hugging Face's client always sends the field, often empty
        found = object_of(body, self.form, *self.required)
        refuse_other_fields(found, (*self.required, *fields))
        return found

    def check(self, endpoint: Endpoint) -> None:
        """Raise ``WrongModel`` if the endpoint does another task."""
        if endpoint.text is None or (self.tasks and endpoint.task not in self.tasks):
            wanted = _MODEL_OF[self.tasks[0]] if self.tasks else "a text"
            does = f"it does {endpoint.task}" if endpoint.task else "it runs code of its own"
            raise WrongModel(f"model is not {wanted} model: {does}", hint=self.instead)


class TeiCall(Call):
    """A body of a route for the endpoint at ``path``."""

    def __init__(self, route: Route, body: Body, path: str) -> None:
        self.path = path
        self._route = route
        self._body = body

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        self._route.check(endpoint)
        asked, self._convert = self._route.ask(self._body, endpoint)
        return asked

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace) -> bytes:
        """See ``Call.render``."""
        del endpoint, trace
        return dumps(self._convert(answer))


# --- the routes -------------------------------------------------------------------------------------------------------


def _embed(body: Body, endpoint: Endpoint) -> Asked:
    """Texts or token ids to vectors, of length 1 unless ``normalize`` is false."""
    inputs = body["inputs"]
    if len(body) == 1 and type(inputs) is str:  # most requests
        return {"text": inputs, "parameters": _NORMALIZED}, _vectors
    texts, ids = _texts_or_ids(inputs, "inputs")
    size, normalize = whole_number(body, "dimensions"), flag(body, "normalize", default=True)
    asked: Any
    if ids is not None:
        asked = rows_of(endpoint, ids, {"normalize": normalize})
    else:
        parameters = _parameters(body, normalize=normalize, prompt_name=body.get("prompt_name"))
        asked = {"text": inputs if type(inputs) is str else texts, "parameters": parameters}
    if size is None:
        return asked, _vectors
    return asked, lambda answer: huggingface.shorten(_vectors(answer), size, normalize=normalize)


def _vectors(answer: Body) -> Any:
    return [answer["embedding"]] if "embedding" in answer else answer["embeddings"]


def _embed_all(body: Body, _endpoint: Endpoint) -> Asked:
    """Texts to one vector per token."""
    texts, ids = _texts_or_ids(body["inputs"], "inputs")
    if ids is not None:
        raise InputRefused("inputs must be texts: only /embed takes token ids")
    asked = {"text": texts, "parameters": _parameters(body, prompt_name=body.get("prompt_name"))}
    return asked, lambda answer: [result["features"] for result in answer["results"]]


def _predict(body: Body, endpoint: Endpoint) -> Asked:
    """A text, a pair ``["…", "…"]``, or a batch of either ``[["…"], ["…", "…"]]``, to labels."""
    inputs = body["inputs"]
    refuse_empty(inputs, "inputs")
    is_batch = isinstance(inputs, list) and isinstance(inputs[0], list)
    texts, pairs = inputs, None
    if type(inputs) is not str:
        several = inputs if is_batch else [inputs if isinstance(inputs, list) else [inputs]]
        texts, pairs = huggingface.singles_or_pairs(several)
    raw = flag(body, "raw_scores", default=False)
    parameters = _parameters(body, function_to_apply="none" if raw else None)
    if endpoint.task == CLASSIFICATION:
        asked, one = {"text": texts, "text_pair": pairs, "parameters": parameters}, huggingface.label_scores
    elif pairs is None:
        raise InputRefused("a re-ranker takes pairs", hint='send ["query", "document"], or POST …/rerank')
    else:
        parameters.setdefault("function_to_apply", "sigmoid")
        documents = [[other] for other in pairs]
        asked, one = {"query": texts, "documents": documents, "parameters": parameters}, huggingface.as_predictions

    def convert(answer: Body) -> Any:
        found = [one(result) for result in answer.get("results", [answer])]
        return found if is_batch else found[0]

    return asked, convert


def _rerank(body: Body, _endpoint: Endpoint) -> Asked:
    """A query and texts to the indexes of the texts, best first."""
    refuse_empty(body["texts"], "texts")
    raw, returns = (flag(body, name, default=False) for name in ("raw_scores", "return_text"))
    parameters = _parameters(body, function_to_apply="none" if raw else "sigmoid", return_documents=returns)
    return {"query": body["query"], "documents": body["texts"], "parameters": parameters}, lambda answer: [
        {"index": result["index"], **({"text": result["document"]} if "document" in result else {}),
         "score": result["score"]}
        for result in answer["results"]
    ]  # fmt: skip


def _similarity(body: Body, endpoint: Endpoint) -> Asked:
    """A sentence and others to a similarity for each of them."""
    inputs, parameters = body["inputs"], object_in(body, "parameters")
    if not isinstance(inputs, dict):
        raise InputRefused('inputs must be {"source_sentence": "…", "sentences": ["…", …]}')
    refuse_empty(inputs.get("sentences"), "inputs.sentences")
    refuse_other_fields(parameters, (*_LENGTH, "prompt_name"))
    chosen = _parameters(parameters, prompt_name=parameters.get("prompt_name"))
    return huggingface.read(endpoint.task, {"inputs": inputs, "parameters": chosen})


def _tokenize(body: Body, _endpoint: Endpoint) -> Asked:
    """Texts to all their tokens, also those beyond the model's length."""
    inputs, name = body["inputs"], body.get("prompt_name")
    refuse_empty(inputs, "inputs")
    texts = inputs if isinstance(inputs, list) else [inputs]
    special = flag(body, "add_special_tokens", default=True)
    find = Lookup(lambda processor: processor.tokens_of(texts, add_special_tokens=special, prompt_name=name))
    return find, lambda answer: [_tokens(text, tokens) for text, tokens in answer]


def _tokens(text: str, tokens: Sequence[Any]) -> list[dict[str, Any]]:
    """Return tokens with positions as byte offsets in UTF-8, as in Text Embeddings Inference."""
    offset = _byte_offsets(text)
    return [
        {"id": token.id, "text": token.text, "special": token.special,
         "start": None if token.start is None else offset(token.start),
         "stop": None if token.stop is None else offset(token.stop)}
        for token in tokens
    ]  # fmt: skip


def _decode(body: Body, _endpoint: Endpoint) -> Asked:
    """Token ids of the model's tokenizer to texts."""
    texts, ids = _texts_or_ids(body["ids"], "ids")
    if texts is not None or ids is None:
        raise InputRefused("ids must be a list of token ids, or a list of such lists")
    skip = flag(body, "skip_special_tokens", default=True)
    return Lookup(lambda processor: processor.text_of(ids, skip_special_tokens=skip)), lambda answer: answer


def _of_task(body: Body, endpoint: Endpoint) -> Asked:
    """What the route of the endpoint's task takes."""
    compares = isinstance(body.get("inputs"), dict)
    route = ROUTES["/similarity"] if compares else _OF_TASK.get(endpoint.task)
    if route is None:
        raise WrongModel("model has no task of Text Embeddings Inference", hint="POST /serve/NAME")
    route.check(endpoint)
    return route.ask(route.read(body), endpoint)


ROUTES: Final[Mapping[str, Route]] = {
    "/embed": Route(
        _embed, (EMBEDDINGS,), (*_LENGTH, "normalize", "prompt_name", "dimensions"),
        instead="GET /tei/NAME/info says what a model is for",
    ),
    "/embed_all": Route(
        _embed_all, (FEATURES,), (*_LENGTH, "prompt_name"),
        instead="add the model as an endpoint with --aux-config gateway.task=feature-extraction",
    ),
    "/predict": Route(_predict, (CLASSIFICATION, RANKING), (*_LENGTH, "raw_scores")),
    "/rerank": Route(
        _rerank, (RANKING,), (*_LENGTH, "raw_scores", "return_text"), ("query", "texts"),
        '{"query": "…", "texts": ["…", "…"]}',
    ),
    "/similarity": Route(
        _similarity, (EMBEDDINGS, RANKING), ("parameters",),
        form='{"inputs": {"source_sentence": "…", "sentences": ["…", "…"]}}',
    ),
    "/tokenize": Route(_tokenize, (), ("add_special_tokens", "prompt_name")),
    "/decode": Route(_decode, (), ("skip_special_tokens",), ("ids",), '{"ids": [101, 102]}'),
}  # fmt: skip
"""The path behind an endpoint's name → its route."""

ROOT: Final = Route(_of_task, fields=None, instead="POST /serve/NAME")
"""``POST /tei/NAME``, as ``POST /`` of Text Embeddings Inference. ``InferenceClient(model=URL)`` calls it."""

_OF_TASK: Final[Mapping[str, Route]] = {
    EMBEDDINGS: ROUTES["/embed"], FEATURES: ROUTES["/embed_all"], CLASSIFICATION: ROUTES["/predict"],
    RANKING: ROUTES["/rerank"],
}  # fmt: skip


def _parameters(body: Body, **more: object) -> dict[str, Any]:
    """Return the parameters for an endpoint: ``more`` that is not None, and those about the length of texts."""
    found = {name: value for name, value in more.items() if value is not None}
    found |= {name: body[name] for name in _LENGTH if body.get(name) is not None}
    if isinstance(direction := found.get("truncation_direction"), str):
        found["truncation_direction"] = direction.lower()
    return found


def _texts_or_ids(value: object, field: str) -> tuple[list[str] | None, list[Sequence[int]] | None]:
    refuse_empty(value, field)
    return texts_or_ids(value, field)


# --- the endpoint of a bare route, and its description ----------------------------------------------------------------


def only(snapshot: Snapshot, route: str) -> str:
    """Return the path of the only endpoint that is served.

    Raises ``EndpointNotFound`` if there are several or none, and ``Unavailable`` if none can answer yet.

    The versions of an endpoint count as one if its bare name has a recorded default or a canary.
    """
    left = {url for url in snapshot.endpoints if not any(url in c.shares for c in snapshot.canaries.values())}
    bare = {url: url.rpartition("/")[0] for url in left}
    found = sorted({*snapshot.canaries, *(bare[url] if bare[url] in snapshot.defaults else url for url in left)})
    if len(found) == 1:
        return found[0]
    if not found:
        raise snapshot.missing()
    raise EndpointNotFound(
        f"{route} needs a gateway that serves only one endpoint",
        hint=f"call one of the {len(found)} here by its name: {', '.join(found[:10])}",
    )


def info(endpoint: Endpoint, path: str, version: str, most: int) -> dict[str, Any]:
    """Return the answer to ``GET /info``: the model in Text Embeddings Inference's fields.

    ``most`` is the number of requests that a worker accepts at once. Raises ``WrongModel``.
    """
    if endpoint.text is None:
        raise WrongModel(
            "model has no task of Text Embeddings Inference", hint="GET /v2/models/NAME describes any model"
        )
    config, identity = endpoint.text.processor.config, endpoint.identity
    labels = {str(i): label for i, label in enumerate(config.labels)}
    named = {"id2label": labels, "label2id": {label: i for i, label in enumerate(config.labels)}}
    kinds = {
        EMBEDDINGS: {"embedding": {"pooling": config.pooling[0] if config.pooling else "graph"}},
        CLASSIFICATION: {"classifier": named}, RANKING: {"reranker": named},
    }  # fmt: skip
    return {
        "model_id": identity.model_name or identity.model_id or path,
        "model_sha": identity.model_id or None,
        "model_dtype": "float32",
        "served_model_name": path,
        "model_type": kinds.get(endpoint.task, {endpoint.task: {}}),
        "max_concurrent_requests": most,
        "max_input_length": config.max_length,
        "max_batch_tokens": config.max_length * config.max_rows,
        "max_batch_requests": None,
        "max_client_batch_size": config.max_rows,
        "auto_truncate": config.truncate,
        "tokenization_workers": 1,
        "version": version,
        "sha": None,
        "docker_label": None,
    }


def _with_parameters(body: Body) -> Body:
    """Return the body with the fields of its ``parameters`` moved up beside the others. Raises ``InputRefused``."""
    chosen = {name: value for name, value in object_in(body, "parameters").items() if value is not None}
    return {**chosen, **{name: value for name, value in body.items() if name != "parameters"}}


def refuse_empty(value: object, field: str) -> None:
    """Raise ``NothingSent`` for an empty list."""
    if value == []:
        raise NothingSent(f"`{field}` cannot be empty")


def _byte_offsets(text: str) -> Callable[[int], int]:
    """Return a function from a character offset in ``text`` to its byte offset in UTF-8."""
    if text.isascii():
        return int
    found = [0]
    for character in text:
        found.append(found[-1] + len(character.encode()))
    return found.__getitem__
