"""Text generation over a fake decoupled model: whole answers, events, errors in a stream, callers that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.errors import ModelFailed
from gateway.path.call import UNADDRESSED, InternalCall
from gateway.path.serve import serve
from tests.unit.gateway.path.asks import Told
from tests.unit.gateway.story import counting
from tests.waiting import soon


async def post(stack: Any, **body: Any) -> Any:
    """Send one request and return the response."""
    return await stack.client.post("/serve/story", json=body)


def events(response: Any) -> list[Any]:
    """Return the JSON of each event."""
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]


async def test_a_whole_answer_has_its_token_counts(story: Any) -> None:
    """For one text and for a list. The model's end token is not part of the text. The tenant pays for all texts."""
    paid: list[int] = []
    story.gateway.plane.subscribe(lambda trace: paid.append(trace.generated_tokens))
    answer = (await post(story, text="one two")).json()
    assert answer == {
        "text": " three four five </s>", "generated_tokens": 4, "finish_reason": "eos", "tokens": 2,
    }  # fmt: skip
    several = (await post(story, text=["one", "five"], parameters={"max_new_tokens": 2})).json()
    assert ["length", "eos"] == [result["finish_reason"] for result in several["results"]]
    assert ([1, 1], 2) == (several["tokens"], several["results"][0]["generated_tokens"])
    assert [4, sum(result["generated_tokens"] for result in several["results"])] == paid


async def test_a_stream_has_events_with_text_and_a_last_one_with_counts(story: Any) -> None:
    """The pieces add up to the whole text."""
    response = await post(story, text="one two", stream=True, parameters={"max_new_tokens": 2})
    assert "text/event-stream; charset=utf-8" == response.headers["content-type"]
    assert ("story", "no-cache") == (response.headers["x-served-by"], response.headers["cache-control"])
    assert events(response) == [
        {"text": " three", "token_ids": [4]},
        {"text": " four", "token_ids": [5], "finish_reason": "length", "generated_tokens": 2, "tokens": 2},
    ]


async def test_a_text_keeps_its_place_until_its_model_has_ended(story: Any) -> None:
    """A stop string ends the text in front of it, although the model writes on. Each text of a list has a place: one
    of the process and one of the endpoint, so that its share of the process is limited. A request that left counts in
    the same way.
    """
    gateway, backend = story.gateway, story.backend
    endpoint = gateway.table.current.endpoints["story"]
    backend.hold = asyncio.Event()
    response = await post(story, text=["one", "two"], parameters={"stop": ["four"]})
    assert [(" two three ", "stop"), (" three ", "stop")] == [
        (result["text"], result["finish_reason"]) for result in response.json()["results"]
    ]
    assert backend.ended
    await soon(lambda: (2, 2) == (gateway.permits.in_flight, endpoint.leases))
    stream = await post(story, text="one", stream=True, parameters={"stop": ["four"]})
    assert "stop" == events(stream)[-1]["finish_reason"]
    await soon(lambda: (3, 3) == (gateway.permits.in_flight, endpoint.leases))
    backend.latency = 1000
    call = InternalCall("story", {"text": "one"})
    ask = Told(call)
    ask.run(serve(ask, UNADDRESSED, gateway.plane))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ask.leave()
    await soon(lambda: (4, 4) == (gateway.permits.in_flight, endpoint.leases))
    backend.hold.set()
    await soon(lambda: (0, 0) == (gateway.permits.in_flight, endpoint.leases))


async def test_the_model_learns_when_nobody_waits_any_more(story: Any) -> None:
    """It cannot be told that its caller has left, so it gets the request's own time, and a little more."""
    given: list[float] = []

    def noted(inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        given.append(json.loads(inputs["parameters"][0])["seconds"])
        return counting(inputs)

    story.backend.streams[story.triton_name("story")] = noted
    response = await story.client.post("/serve/story", json={"text": "one"}, headers={"x-request-timeout-ms": "20000"})
    assert 200 == response.status_code
    assert 19 < given[0] <= 21


async def test_a_refused_request_gets_an_ordinary_error_answer(story: Any) -> None:
    """Also if it asked for a stream, because nothing has been sent yet."""
    for body, status in (
        ({"text": ["a", "b"], "stream": True}, 422),
        ({"text": "a", "stream": "yes"}, 422),
        ({"text": "", "stream": True}, 422),
        ({"text": "one " * 30, "parameters": {"max_new_tokens": 16}}, 422),
    ):
        response = await post(story, **body)
        assert status == response.status_code, body
    story.backend.fail_with = ModelFailed("the model failed: gone")
    response = await post(story, text="one", stream=True)
    assert (502, "model_failed") == (response.status_code, response.json()["code"])


async def test_a_long_prompt_loses_its_beginning(story: Any) -> None:
    """The number of tokens that was asked for still fits, and the answer says that the prompt was cut."""
    answer = (await post(story, text="one " * 20 + "two", parameters={"max_new_tokens": 3})).json()
    assert (True, 13, " three four five") == (answer["truncated"], answer["tokens"], answer["text"])
