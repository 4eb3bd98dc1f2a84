"""Text generation in other APIs' forms, over a fake decoupled model: OpenAI, Hugging Face, gRPC streams, failures."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.unit.gateway.grpc.test_server import channel_to
from tests.unit.gateway.story import counting, deploy, failing
from tests.waiting import LIMIT_S, soon


def chunks(reply: Any) -> list[Any]:
    """Return the JSON of each event; events that are not JSON as text."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = []
    for line in reply.text.splitlines():
        if line.startswith("data:"):
            data = line.removeprefix("data:").strip()
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


async def test_a_completion_and_its_stream_have_the_same_text(story: Any) -> None:
    """Both have OpenAI's finish reasons and usage; the stream has an end mark."""
    body = {"model": "story", "prompt": "one two", "max_tokens": 2}
    whole = (await story.client.post("/v1/completions", json=body)).json()
    assert ("text_completion", " three four", "length") == (
        whole["object"], whole["choices"][0]["text"], whole["choices"][0]["finish_reason"],
    )  # fmt: skip
    assert {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4} == whole["usage"]
    streamed = chunks(await story.client.post(
        "/v1/completions", json={**body, "stream": True, "stream_options": {"include_usage": True}}
    ))  # fmt: skip
    assert "[DONE]" == streamed[-1]
    assert ([], whole["usage"]) == (streamed[-2]["choices"], streamed[-2]["usage"])
    assert " three four" == "".join(chunk["choices"][0]["text"] for chunk in streamed[:-2])
    assert 1 == len({chunk["id"] for chunk in streamed[:-1]})


async def test_chat_is_rendered_by_the_models_template(story: Any) -> None:
    """The prompt is the rendered template. The first chunk of a stream contains the role. A chat can be sent to the
    endpoint's address, as huggingface_hub does; an unknown endpoint is a 404 in OpenAI's form.
    """
    messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    body = {"model": "story", "messages": messages, "max_tokens": 1}
    whole = (await story.client.post("/v1/chat/completions", json=body)).json()
    assert (4, " three") == (whole["usage"]["prompt_tokens"], whole["choices"][0]["message"]["content"])
    first, *middle, last, done = chunks(await story.client.post("/v1/chat/completions", json={**body, "stream": True}))
    assert {"role": "assistant", "content": ""} == first["choices"][0]["delta"]
    assert " three" == "".join(chunk["choices"][0]["delta"]["content"] for chunk in middle)
    assert ({}, "length", "[DONE]") == (last["choices"][0]["delta"], last["choices"][0]["finish_reason"], done)
    there = (await story.client.post("/serve/story/v1/chat/completions", json={**body, "model": "dummy"})).json()
    assert ("story", whole["choices"]) == (there["model"], there["choices"])
    missing = await story.client.post("/serve/nobody/v1/chat/completions", json={"messages": messages})
    assert (404, "model_not_found") == (missing.status_code, missing.json()["error"]["code"])


async def test_hugging_face_form_streams_as_text_generation_inference_does(story: Any) -> None:
    """At the endpoint's path and at ``/predict``. The last event has the whole text."""
    for path in ("/serve/story", "/predict"):
        body = {"inputs": "one", "parameters": {"max_new_tokens": 3}}
        (whole,) = (await story.client.post(path, json=body)).json()
        streamed = chunks(await story.client.post(path, json={**body, "stream": True}))
        assert whole["generated_text"] == "".join(event["token"]["text"] for event in streamed)
        assert [None, None, whole["generated_text"]] == [event["generated_text"] for event in streamed]
        assert "length" == streamed[-1]["details"]["finish_reason"]


@pytest.mark.parametrize("path", ["/v1/completions", "/serve/story"])
async def test_failure_in_the_middle_is_an_event_and_is_counted(story: Any, path: str) -> None:
    """It has the JSON of an error answer; OpenAI's client raises an error for it. It is counted once, as failed."""
    story.backend.streams[story.triton_name("story")] = failing
    body = {"text": "one"} if "serve" in path else {"model": "story", "prompt": "one"}
    reply = await story.client.post(path, json={**body, "stream": True})
    assert (200, True) == (reply.status_code, "event: error" in reply.text)
    assert "model_failed" in reply.text
    assert "[DONE]" not in reply.text
    metrics = (await story.client.get("/metrics")).text
    failed = [li for li in metrics.splitlines() if li.startswith("gateway_requests_total") and "model_failed" in li]
    assert ["1.0"] == [line.rsplit(" ", 1)[1] for line in failed]


async def test_rpc_stream_answers_in_pieces_and_goes_on_after_an_error(story: Any) -> None:
    """A refused request does not end the stream. A caller that leaves stops the model's work."""

    def request(*texts: str, **parameters: int) -> Any:
        made = pb.ModelInferRequest(model_name="story", id="s")
        tensor = made.inputs.add(name="text", datatype="BYTES", shape=[len(texts), 1])
        tensor.contents.bytes_contents.extend(text.encode() for text in texts)
        made.parameters["triton_enable_empty_final_response"].bool_param = True
        for name, value in parameters.items():
            made.parameters[name].int64_param = value
        return made

    async with channel_to(story) as channel:
        stream = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer", pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )  # fmt: skip
        call = stream(iter([request("one", "two"), request("one", max_new_tokens=2)]), timeout=LIMIT_S)
        refused, *pieces = [response async for response in call]
        assert "a stream has one text" in refused.error_message
        texts = [piece.infer_response.raw_output_contents[0][4:].decode() for piece in pieces]
        last = [piece.infer_response.parameters["triton_final_response"].bool_param for piece in pieces]
        assert ([" two", " three"], [False, True]) == (texts, last)

        def endless(inputs: Any) -> Any:
            piece = next(counting(inputs))
            while True:
                yield piece

        story.backend.streams[story.triton_name("story")] = endless
        story.backend.latency = 0.05
        story.backend.ended.clear()
        leaving = stream(iter([request("one", max_new_tokens=10)]), timeout=LIMIT_S)
        await leaving.read()
        leaving.cancel()
        await soon(lambda: story.backend.ended)


ONE = {"messages": [{"role": "user", "content": "one"}]}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "one", "n": 2}, "n is not offered"), ({"prompt": []}, "prompt must be"),
    ({"prompt": [["one"]]}, "prompt must be"), ({"prompt": [[1], "one"]}, "prompt must be"),
    ({"prompt": "one", "presence_penalty": 1}, "presence_penalty"), ({"messages": []}, "messages must be"),
    ({"messages": [IMAGE]}, "only parts of type text"), ({"messages": [{"role": "user"}]}, "content must be a text"),
    ({"messages": [{"content": "a"}]}, "role and content"), ({"prompt": [99]}, "own tokenizer"),
    ({"prompt": ["one", "two"], "stream": True}, "one prompt"), ({"prompt": "one", "stream": "yes"}, "stream must"),
    ({"prompt": "one", "stream_options": 3}, "stream_options must"), ({}, "the field prompt is missing"),
    # Not by the endpoint's own name, max_new_tokens, which means nothing to the caller.
    *(
        ({**body, name: value}, f"{name} must be a whole number of at least 1")
        for body, name in (({"prompt": "one"}, "max_tokens"), (ONE, "max_tokens"), (ONE, "max_completion_tokens"))
        for value in (0, 100_000, "many")
    ),
]  # fmt: skip
"""A body, and what is said of it."""


async def test_invalid_and_unsupported_fields_are_400_in_openais_form(story: Any) -> None:
    """No unsupported field is ignored silently."""
    for body, said in REFUSED:
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        reply = await story.client.post(path, json={"model": "story", **body})
        error = reply.json()["error"]
        assert (400, "invalid_request_error") == (reply.status_code, error["type"]), (body, reply.text)
        assert said in error["message"], (body, reply.text)


CHAT = {"model": "story", **ONE, "max_tokens": 1}
COMPLETION = {"model": "story", "prompt": "one", "max_tokens": 1}
UNKNOWN: dict[str, object] = {
    "guided_json": {"type": "object"}, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False},
    "store": True, "reasoning_effort": "high", "n": True, "maxtokens": 5, "truncate_prompt_tokens": 3, "é": 1,
}  # fmt: skip


async def test_a_field_that_would_be_ignored_is_refused_by_name(story: Any) -> None:
    """As at ``/serve``. It was answered with 200, as if it had been followed."""
    for field, value in UNKNOWN.items():
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)):
            reply = await story.client.post(path, json={**body, field: value})
            assert 400 == reply.status_code, reply.text
            assert ascii(field)[1:-1] in reply.json()["error"]["message"]
            assert 200 == (await story.client.post(path, json={**body, field: None})).status_code
        stream = {**CHAT, "stream": True, "stream_options": {field: value}}
        assert 400 == (await story.client.post("/v1/chat/completions", json=stream)).status_code


LONG = [{"role": "user", "content": "one two three four five one"}, {"role": "assistant", "content": "one " * 6}]
"""A chat of 14 tokens, for a model that reads 16."""


ASKED = "the prompt has 14 tokens and 3 new ones are asked for"
TOO_LONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": LONG, "max_tokens": 3}, ASKED),
    ({"messages": [*LONG, *LONG]}, "the prompt has more than 16 tokens"),
    ({"prompt": "one " * 14, "max_tokens": 3}, ASKED),
    ({"prompt": "one " * 17}, "is longer than the 16 tokens"),
    ({"prompt": [3] * 14, "max_tokens": 3}, ASKED),
    ({"prompt": [3] * 17, "max_tokens": 1}, "the prompt has more than 16 tokens"),
]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_prompt_that_is_too_long_is_cut_only_on_request(story: Any, streams: bool) -> None:
    """As at OpenAI and vLLM. It lost its beginning with 200 and no sign."""
    for asked, said in TOO_LONG:
        path = "/v1/chat/completions" if "messages" in asked else "/v1/completions"
        body = {"model": "story", "stream": streams, **asked}
        reply = await story.client.post(path, json=body)
        error = reply.json()["error"]
        assert (400, "context_length_exceeded", "invalid_request_error") == (
            reply.status_code, error["code"], error["type"],
        )  # fmt: skip
        assert said in error["message"]
        assert 200 == (await story.client.post(path, json={**body, "truncate_prompt_tokens": -1})).status_code
        fits = {**body, "messages": LONG} if "messages" in body else {**body, "prompt": "one " * 14}
        assert 200 == (await story.client.post(path, json={**fits, "max_tokens": 2})).status_code


async def test_a_default_that_does_not_fit_is_no_reason_to_refuse_a_prompt(story: Any) -> None:
    """OpenAI's default of 16 new tokens was not asked for: as many follow as the model has positions left."""
    usage = {"prompt_tokens": 13, "completion_tokens": 3, "total_tokens": 16}
    for prompt in ("one " * 13, [3] * 13):
        reply = await story.client.post("/v1/completions", json={"model": "story", "prompt": prompt})
        assert (200, usage) == (reply.status_code, reply.json().get("usage"))


async def test_a_faulty_chat_template_costs_only_chats(stack: Any) -> None:
    """Completions need no template. The refusal of a chat says what is wrong with it."""
    deploy(stack, "story", "m", template="{% if messages %}")
    await stack.served("story")
    reply = await stack.client.post("/v1/completions", json=COMPLETION)
    assert (200, " two") == (reply.status_code, reply.json()["choices"][0]["text"])
    chat = await stack.client.post("/v1/chat/completions", json=CHAT)
    assert 400 == chat.status_code
    assert "the chat template cannot be compiled" in chat.json()["error"]["message"]


async def test_fields_that_clients_send_by_themselves_are_accepted(story: Any) -> None:
    """What says who asks, and what asks for nothing."""
    usual = {
        "user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "service_tier": "auto", "request_id": "r",
        "prompt_cache_key": "k", "n": 1, "frequency_penalty": 0.0, "presence_penalty": 0, "logprobs": False, "seed": 1,
        "temperature": 0.0, "top_p": 1.0, "stop": ["x"], "store": False, "min_p": 0.0, "logit_bias": None, "tools": [],
        "stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False},
    }  # fmt: skip
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)):
        reply = await story.client.post(path, json={**body, **usual})
        assert (200, "[DONE]") == (reply.status_code, chunks(reply)[-1]), reply.text
