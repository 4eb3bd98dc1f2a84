"""Text Embeddings Inference's API: its routes, bodies and answers, and the endpoint that a route calls.

Each route calls an endpoint of its task. Features that do not exist here are refused by name. The path names the
endpoint (``/tei/NAME/embed``); the bare routes (``/embed``) call the only endpoint. Pure: bodies in, bodies out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.errors import EndpointNotFound, InputRefused
from gateway.handlers.endpoint import Endpoint, Lookup
from gateway.path.call import Call
from gateway.path.routing.snapshot import Snapshot
from gateway.protocols import huggingface
from gateway.protocols.fields import Body, flag, object_of, parameters_of, rows_of, texts_or_ids, whole_number
from gateway.protocols.json_body import dumps
from gateway.protocols.tensors import escaped
from gateway.trace import Trace
from preprocessing.config import CLASSIFICATION, EMBEDDINGS, FEATURES, RANKING

_LENGTH: Final = ("truncate", "truncation_direction")
_NORMALIZED: Final = {"normalize": True}
_MODEL_OF: Final = {EMBEDDINGS: "an embedding", RANKING: "a re-ranker", CLASSIFICATION: "a classification",
                    FEATURES: "a token embedding"}  # fmt: skip


class WrongModel(InputRefused):
    """The endpoint does another task; Text Embeddings Inference answers 424."""


class NothingSent(InputRefused):
    """An empty list; Text Embeddings Inference answers 400."""


class TeiCall(Call):
    """A body for the endpoint at ``path``. A subclass per route defines its tasks and its fields."""

    tasks: tuple[str, ...] = ()
    """The tasks of the endpoints that the route may call; empty for any text task."""
    fields: tuple[str, ...] = ()
    """The fields that a body may have beside ``required``."""
    required: tuple[str, ...] = ("inputs",)
    form = '{"inputs": "…"}'
    """An example of a body."""
    instead = ""
    """The hint if the endpoint does another task."""
    _known: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        """Put the names of all fields together once."""
        super().__init_subclass__()
        cls._known = (*cls.required, *cls.fields)

    def __init__(self, body: object, path: str) -> None:
        """Read ``body``. Raises ``InputRefused``."""
        self.path = path
        if isinstance(body, dict) and "parameters" in body and "parameters" not in self.fields:
            body = _with_parameters(body)  # Hugging Face's client always sends the field, often empty
        self._body: Body = object_of(body, self.form, *self.required)
        for name in self._body:
            if name not in self._known:
                raise InputRefused(f"unknown field {escaped(name)}", hint=f"known are {', '.join(self._known)}")
        self.read(self._body)

    def read(self, body: Body) -> None:
        """Read the fields of this route. Raises ``InputRefused``."""

    def check(self, endpoint: Endpoint) -> None:
        """Raise ``WrongModel`` if the endpoint does another task."""
        if endpoint.text is None or (self.tasks and endpoint.task not in self.tasks):
            wanted = _MODEL_OF[self.tasks[0]] if self.tasks else "a text"
            does = f"it does {endpoint.task}" if endpoint.task else "it runs code of its own"
            raise WrongModel(f"model is not {wanted} model: {does}", hint=self.instead)

    def _parameters(self, body: Body, **more: object) -> dict[str, Any]:
        found = {name: value for name, value in more.items() if value is not None}
        if len(body) > len(self.required):
            found |= {name: body[name] for name in _LENGTH if body.get(name) is not None}
            if isinstance(direction := found.get("truncation_direction"), str):
                found["truncation_direction"] = direction.lower()
        return found


class EmbedCall(TeiCall):
    """``POST /embed``: texts or token ids to vectors, of length 1 unless ``normalize`` is false."""

    tasks = (EMBEDDINGS,)
    fields = (*_LENGTH, "normalize", "prompt_name", "dimensions")
    instead = "GET /tei/NAME/info says what a model is for"

    def read(self, body: Body) -> None:
        """See ``TeiCall.read``."""
        refuse_empty(body["inputs"], "inputs")
        self._texts, self._ids = texts_or_ids(body["inputs"], "inputs")
        self._size = whole_number(body, "dimensions")

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        self.check(endpoint)
        body = self._body
        inputs = body["inputs"]
        if len(body) == 1 and type(inputs) is str:  # most requests
            return {"text": inputs, "parameters": _NORMALIZED}
        normalize = flag(body, "normalize", default=True)
        if self._ids is not None:
            return rows_of(endpoint, self._ids, {"normalize": normalize})
        parameters = self._parameters(body, normalize=normalize, prompt_name=body.get("prompt_name"))
        return {"text": inputs if type(inputs) is str else self._texts, "parameters": parameters}

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace, outputs: Any) -> bytes:
        """See ``Call.render``."""
        del endpoint, trace, outputs
        vectors = [answer["embedding"]] if "embedding" in answer else answer["embeddings"]
        if self._size is not None:
            normalize = flag(self._body, "normalize", default=True)
            vectors = huggingface.shorten(vectors, self._size, normalize=normalize)
        return dumps(vectors)


class EmbedAllCall(TeiCall):
    """``POST /embed_all``: texts to one vector per token."""

    tasks = (FEATURES,)
    fields = (*_LENGTH, "prompt_name")
    instead = "add the model as an endpoint with --aux-config gateway.task=feature-extraction"

    def read(self, body: Body) -> None:
        """See ``TeiCall.read``."""
        refuse_empty(body["inputs"], "inputs")
        self._texts, ids = texts_or_ids(body["inputs"], "inputs")
        if ids is not None:
            raise InputRefused("inputs must be texts: only /embed takes token ids")

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        self.check(endpoint)
        parameters = self._parameters(self._body, prompt_name=self._body.get("prompt_name"))
        return {"text": self._texts, "parameters": parameters}

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace, outputs: Any) -> bytes:
        """See ``Call.render``."""
        del endpoint, trace, outputs
        return dumps([result["features"] for result in answer["results"]])


class PredictCall(TeiCall):
    """``POST /predict``: a text, a pair ``["…", "…"]``, or a batch of either ``[["…"], ["…", "…"]]``, to labels."""

    tasks = (CLASSIFICATION, RANKING)
    fields = (*_LENGTH, "raw_scores")

    def read(self, body: Body) -> None:
        """See ``TeiCall.read``."""
        inputs = body["inputs"]
        self._texts: Any
        if type(inputs) is str:
            self._is_batch, self._texts, self._pairs = False, inputs, None
            return
        refuse_empty(inputs, "inputs")
        self._is_batch = isinstance(inputs, list) and isinstance(inputs[0], list)
        several = inputs if self._is_batch else [inputs if isinstance(inputs, list) else [inputs]]
        self._texts, self._pairs = huggingface.singles_or_pairs(several)

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        self.check(endpoint)
        raw = flag(self._body, "raw_scores", default=False)
        parameters = self._parameters(self._body, function_to_apply="none" if raw else None)
        if endpoint.task == CLASSIFICATION:
            return {"text": self._texts, "text_pair": self._pairs, "parameters": parameters}
        if self._pairs is None:
            raise InputRefused("a re-ranker takes pairs", hint='send ["query", "document"], or POST …/rerank')
        parameters.setdefault("function_to_apply", "sigmoid")
        return {"query": self._texts, "documents": [[other] for other in self._pairs], "parameters": parameters}

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace, outputs: Any) -> bytes:
        """See ``Call.render``."""
        del trace, outputs
        found = [
            huggingface.as_predictions(result) if endpoint.task == RANKING
            else [{"score": score, "label": label} for label, score in result["scores"].items()]
            for result in answer.get("results", [answer])
        ]  # fmt: skip
        return dumps(found if self._is_batch else found[0])


class RerankCall(TeiCall):
    """``POST /rerank``: a query and texts to the indexes of the texts, best first."""

    tasks = (RANKING,)
    fields = (*_LENGTH, "raw_scores", "return_text")
    required = ("query", "texts")
    form = '{"query": "…", "texts": ["…", "…"]}'

    def read(self, body: Body) -> None:
        """See ``TeiCall.read``."""
        refuse_empty(body["texts"], "texts")

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        self.check(endpoint)
        body = self._body
        parameters = self._parameters(
            body, function_to_apply="none" if flag(body, "raw_scores", default=False) else "sigmoid",
            return_documents=flag(body, "return_text", default=False),
        )  # fmt: skip
        return {"query": body["query"], "documents": body["texts"], "parameters": parameters}

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace, outputs: Any) -> bytes:
        """See ``Call.render``."""
        del endpoint, trace, outputs
        return dumps([
            {"index": result["index"], **({"text": result["document"]} if "document" in result else {}),
             "score": result["score"]}
            for result in answer["results"]
        ])  # fmt: skip


class SimilarityCall(TeiCall):
    """``POST /similarity``: a sentence and others to a similarity for each of them."""

    tasks = (EMBEDDINGS, RANKING)
    fields = ("parameters",)
    form = '{"inputs": {"source_sentence": "…", "sentences": ["…", "…"]}}'

    def read(self, body: Body) -> None:
        """See ``TeiCall.read``."""
        inputs, parameters = body["inputs"], parameters_of(body)
        if not isinstance(inputs, dict):
            raise InputRefused('inputs must be {"source_sentence": "…", "sentences": ["…", …]}')
        refuse_empty(inputs.get("sentences"), "inputs.sentences")
        self._chosen = self._parameters(parameters, prompt_name=parameters.get("prompt_name"))
        for name in parameters:
            if name not in (*_LENGTH, "prompt_name"):
                raise InputRefused(f"unknown parameter {escaped(name)}")

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        self.check(endpoint)
        body = {"inputs": self._body["inputs"], "parameters": self._chosen}
        question, self._convert = huggingface.read(endpoint.task, body)
        return question

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace, outputs: Any) -> bytes:
        """See ``Call.render``."""
        del endpoint, trace, outputs
        return dumps(self._convert(answer))


class TokenizeCall(TeiCall):
    """``POST /tokenize``: texts to all their tokens, also those beyond the model's length."""

    fields = ("add_special_tokens", "prompt_name")

    def read(self, body: Body) -> None:
        """See ``TeiCall.read``."""
        inputs = body["inputs"]
        refuse_empty(inputs, "inputs")
        self._texts = inputs if isinstance(inputs, list) else [inputs]

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        self.check(endpoint)
        special = flag(self._body, "add_special_tokens", default=True)
        name = self._body.get("prompt_name")
        return Lookup(lambda processor: processor.tokens_of(self._texts, add_special_tokens=special, prompt_name=name))

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace, outputs: Any) -> bytes:
        """See ``Call.render``. Positions are byte offsets in UTF-8, as in Text Embeddings Inference."""
        del endpoint, trace, outputs
        return dumps([[self._written(token, offset) for token in tokens] for text, tokens in answer
                      for offset in [_byte_offsets(text)]])  # fmt: skip

    def _written(self, token: Any, offset: Callable[[int], int]) -> dict[str, Any]:
        start, stop = token.start, token.stop
        return {
            "id": token.id, "text": token.text, "special": token.special,
            "start": None if start is None else offset(start), "stop": None if stop is None else offset(stop),
        }  # fmt: skip


class DecodeCall(TeiCall):
    """``POST /decode``: token ids of the model's tokenizer to texts."""

    fields = ("skip_special_tokens",)
    required = ("ids",)
    form = '{"ids": [101, 102]}'

    def read(self, body: Body) -> None:
        """See ``TeiCall.read``."""
        refuse_empty(body["ids"], "ids")
        texts, ids = texts_or_ids(body["ids"], "ids")
        if texts is not None or ids is None:
            raise InputRefused("ids must be a list of token ids, or a list of such lists")
        self._rows = ids

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        self.check(endpoint)
        skip = flag(self._body, "skip_special_tokens", default=True)
        return Lookup(lambda processor: processor.text_of(self._rows, skip_special_tokens=skip))

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace, outputs: Any) -> bytes:
        """See ``Call.render``."""
        del endpoint, trace, outputs
        return dumps(answer)


class RootCall(Call):
    """``POST /tei/NAME``: the route of the endpoint's task, as ``POST /`` of Text Embeddings Inference.

    ``InferenceClient(model=URL)`` calls it.
    """

    form = TeiCall.form

    def __init__(self, body: object, path: str) -> None:
        self.path = path
        self._given = body
        self._call: TeiCall | None = None

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        compares = isinstance(self._given, dict) and isinstance(self._given.get("inputs"), dict)
        kind = _OF_TASK.get(endpoint.task)
        if kind is None:
            raise WrongModel("model has no task of Text Embeddings Inference", hint="POST /serve/NAME")
        self._call = (SimilarityCall if compares else kind)(self._given, self.path)
        return self._call.question(endpoint)

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace, outputs: Any) -> bytes:
        """See ``Call.render``."""
        assert self._call is not None  # noqa: S101 - `question` has set it
        found: bytes = self._call.render(answer, endpoint, trace, outputs)
        return found


_OF_TASK: Final[Mapping[str, type[TeiCall]]] = {
    EMBEDDINGS: EmbedCall, FEATURES: EmbedAllCall, CLASSIFICATION: PredictCall, RANKING: RerankCall,
}  # fmt: skip

ROUTES: Final[Mapping[str, type[TeiCall]]] = {
    "/embed": EmbedCall, "/embed_all": EmbedAllCall, "/predict": PredictCall, "/rerank": RerankCall,
    "/similarity": SimilarityCall, "/tokenize": TokenizeCall, "/decode": DecodeCall,
}  # fmt: skip
"""The path behind an endpoint's name → its call."""


def only(snapshot: Snapshot, route: str) -> str:
    """Return the path of the only endpoint that is served.

    Raises ``EndpointNotFound`` if there are several or none, and ``Unavailable`` if none can answer yet.

    The versions of an endpoint count as one if its bare name has a recorded default or a canary.
    """
    left = {url for url in snapshot.endpoints if not any(url in c.urls for c in snapshot.canaries.values())}
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
    chosen = {name: value for name, value in parameters_of(body).items() if value is not None}
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
