"""The floor: a bare ASGI app that reads JSON, encodes the text with ``tokenizers`` and answers, and nothing else.

With ``BENCH_GRPC`` it also sends the tensors to Triton, one ``grpc.aio`` ModelInfer per request. Runs under uvicorn
with uvloop and httptools. It has no routing, errors, limits or metrics, so it shows the cost of the work itself.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import orjson
from tokenizers import Tokenizer

_HEADERS = [(b"content-type", b"application/json")]


class Floor:
    """Answers ``{"label", "score", "tokens"}``. The label is constant if no model is called."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.from_file(os.environ["BENCH_TOKENIZER"])
        self._tokenizer.enable_truncation(512)
        self._tokenizer.no_padding()
        self._address = os.environ.get("BENCH_GRPC", "")
        self._model = os.environ.get("BENCH_MODEL", "")
        self._infer: Any = None

    async def answer(self, receive: Any, send: Any) -> None:
        """Serve any POST."""
        message = await receive()
        raw = message["body"]
        while message.get("more_body"):
            message = await receive()
            raw += message["body"]
        ids = self._tokenizer.encode(orjson.loads(raw)["text"]).ids
        score = await self._score(ids) if self._address else 0.95
        content = orjson.dumps({"label": "POSITIVE", "score": score, "tokens": len(ids)})
        await send({
            "type": "http.response.start", "status": 200,
            "headers": [*_HEADERS, (b"content-length", str(len(content)).encode())],
        })  # fmt: skip
        await send({"type": "http.response.body", "body": content})

    async def _score(self, ids: list[int]) -> float:
        from tritonclient.grpc import service_pb2 as pb

        if self._infer is None:
            import grpc

            channel = grpc.aio.insecure_channel(self._address)
            self._infer = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelInferResponse.FromString,
            )
        request = pb.ModelInferRequest(model_name=self._model)
        row = np.array([ids], dtype=np.int64)
        for name, array in (("input_ids", row), ("attention_mask", np.ones_like(row))):
            tensor = request.inputs.add()
            tensor.name, tensor.datatype = name, "INT64"
            tensor.shape.extend(array.shape)
            request.raw_input_contents.append(array.tobytes())
        response = await self._infer(request, timeout=60)
        logits = np.frombuffer(response.raw_output_contents[0], dtype=np.float32)
        return float(1 / (1 + np.exp(logits[0] - logits[1])))


class App:
    """Makes the app in the worker, and answers uvicorn's start and stop."""

    def __init__(self) -> None:
        self._floor = Floor()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self._floor.answer(receive, send)
            return
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})


def create_app() -> App:
    """Return the app; uvicorn's factory."""
    return App()
