"""``POST /serve/{endpoint}``: a body in the endpoint's own form or in Hugging Face's.

``POST /predict`` is the same for a gateway that serves only one endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from gateway.handlers.endpoint import Endpoint, Event
from gateway.path.call import Call, Reply
from gateway.protocols import huggingface
from gateway.protocols.json_body import decode, rendered
from gateway.trace import Trace


def own_piece(event: Event) -> bytes:
    """Return a streamed event in the endpoint's own form: ``text`` and ``token_ids``.

    The last event also has the other fields of a whole answer.
    """
    content: dict[str, object] = {"text": event.text, "token_ids": event.token_ids}
    if event.finish_reason is not None:
        content |= {
            "finish_reason": event.finish_reason,
            "generated_tokens": event.generated_tokens,
            "tokens": event.tokens,
            **({"truncated": True} if event.truncated else {}),
        }
    return b"data: " + orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n\n"


class ServeCall(Call):
    """A body for the endpoint at ``path``.

    ``task``: the task that the address asks for, by Hugging Face's name.
    """

    _convert: huggingface.Convert | None = None
    _piece: Callable[[Event], bytes] = staticmethod(own_piece)

    def __init__(self, path: str, raw: bytes, headers: Mapping[bytes, bytes], *, task: str = "") -> None:
        self.path = path
        self._task = task
        self._raw = raw
        self._content_type = headers.get(b"content-type", b"")

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        if self._task:
            huggingface.expect_task(endpoint.task, self._task)
        body = decode(self._raw, self._content_type, takes_bytes=endpoint.takes_bytes)
        if type(body) is dict:
            if "inputs" in body and endpoint.task and huggingface.is_huggingface_body(body):
                body, self._convert = huggingface.read(endpoint.task, body)
            else:
                self._convert = None
            if "stream" in body:
                self.streams = body["stream"] is True
                self._piece = own_piece if self._convert is None else huggingface.GenerationEvents()
        return body

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace) -> bytes | Reply:
        """See ``Call.render``."""
        del endpoint, trace
        if self._convert is not None:
            answer = self._convert(answer)
        return rendered(answer)

    def piece(self, event: Event) -> bytes:
        """See ``Call.piece``."""
        return self._piece(event)
