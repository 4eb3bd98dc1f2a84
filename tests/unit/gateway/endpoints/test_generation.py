"""Text generation over a fake decoupled model: whole answers, events, errors in the middle, clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.call import InternalCall
from gateway.dataplane.inflight import InFlight
from gateway.errors import ModelFailed
from tests.unit.gateway.story import counting


async def post(stack: Any, **body: Any) -> Any:
    """One request's response."""
    return await stack.client.post("/serve/story", json=body)


def events(response: Any) -> list[Any]:
    """The JSON of each event, and ``error`` events as a pair."""
    found = []
    for block in response.text.split("\n\n"):
        lines = block.splitlines()
        data = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        found += [("error", d) if "event: error" in lines else d for d in data]
    return found


async def test_answer_is_whole_with_its_counts(story: Any) -> None:
    """For one text and for a list; the model's own end is no text."""
    answer = (await post(story, text="one two")).json()
    assert answer == {
        "text": " three four five </s>", "generated_tokens": 4, "finish_reason": "eos", "tokens": 2,
    }  # fmt: skip
    several = (await post(story, text=["one", "five"], parameters={"max_new_tokens": 2})).json()
    assert ["length", "eos"] == [result["finish_reason"] for result in several["results"]]
    assert ([1, 1], 2) == (several["tokens"], several["results"][0]["generated_tokens"])


async def test_events_come_with_text_tokens_and_a_last_one(story: Any) -> None:
    """The same text in pieces."""
    response = await post(story, text="one two", stream=True, parameters={"max_new_tokens": 2})
    assert "text/event-stream; charset=utf-8" == response.headers["content-type"]
    assert ("story", "no-cache") == (response.headers["x-served-by"], response.headers["cache-control"])
    assert events(response) == [
        {"text": " three", "token_ids": [4]},
        {"text": " four", "token_ids": [5], "finish_reason": "length", "generated_tokens": 2, "tokens": 2},
    ]


async def test_a_stop_string_ends_the_models_work(story: Any) -> None:
    """The text ends in front of it, and the call to the backend is given up."""
    response = await post(story, text="one", parameters={"stop": ["four"]})
    assert (" two three ", "stop") == (response.json()["text"], response.json()["finish_reason"])
    assert story.backend.ended


async def test_what_is_refused_is_an_ordinary_answer(story: Any) -> None:
    """Also of a stream, as long as nothing has been sent."""
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


async def test_an_error_in_the_middle_is_an_event(story: Any) -> None:
    """With the JSON its answer would have had; the request counts as failed."""

    def breaks(inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        yield next(counting(inputs))
        story.backend.fail_with = ModelFailed("the model failed: gone")
        yield {}

    story.backend.streams[story.triton_name("story")] = breaks
    response = await post(story, text="one", stream=True)
    assert 200 == response.status_code
    first, (kind, problem) = events(response)
    assert (" two", "error", "model_failed") == (first["text"], kind, problem["code"])


async def test_a_long_prompt_loses_its_beginning(story: Any) -> None:
    """What was asked for has room; the answer says that something was cut."""
    answer = (await post(story, text="one " * 20 + "two", parameters={"max_new_tokens": 3})).json()
    assert (True, 13, " three four five") == (answer["truncated"], answer["tokens"], answer["text"])


async def test_a_closed_stream_gives_everything_back(story: Any) -> None:
    """The lease and the backend's call, within a few turns of the loop."""
    gateway = story.gateway
    endpoint = gateway.table.current.endpoints["story"]
    call = InternalCall("story", {"text": "one"})
    call.streams = True
    begun = asyncio.Event()

    async def stall(_flight: object, _event: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    ends: list[InFlight] = []
    flight = gateway.plane.submit(call, ends.append, send=stall)
    await begun.wait()
    assert 1 == endpoint._leases
    flight.cancel()
    assert (0, [flight]) == (endpoint._leases, ends)
    for _ in range(5):
        await asyncio.sleep(0)
    assert 1 == len(story.backend.ended)
