"""Text generation on the real Triton: tokens are those of transformers, streamed, and read to their end."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from transformers import TextGenerationPipeline
from transformers.generation.logits_process import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from deploy.sync.runtime.generate_model import Settings as Sampling
from deploy.sync.runtime.generate_model import choose, probabilities, scores_of
from gateway.app import Gateway
from gateway.errors import ModelFailed, ModelNotReady
from gateway.settings import Settings
from gateway.spec import decode, triton_model_name
from gateway.triton.backend import TritonBackend
from gateway.triton.port import Backend
from tests.core_client import listening
from tests.fakes import FakeBackend, FakeRegistry
from tests.waiting import LIMIT_S, soon

from .conftest import Generator, make_generator

pytestmark = [pytest.mark.integration, pytest.mark.texts]

PROMPTS = [
    "The quick brown fox",
    "a",
    "Straße, naïve façade and e\u0301",
    "😀 👨‍👩‍👧 你好 שלום",
    "NUL \x00 and  spaces\n",
]


@dataclass
class Served:
    """One text-generation endpoint, and what Triton calls its model."""

    url: str
    model: Any
    tokenizer: Any
    gateway: Gateway
    backend: TritonBackend
    triton_name: str


@pytest.fixture(scope="module", params=["gpt2", pytest.param("llama", marks=pytest.mark.long)])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator:
    """One of each kind."""
    if request.param == "gpt2":
        return request.getfixturevalue("generator")  # type: ignore[no-any-return]
    return make_generator(tmp_path_factory.mktemp("generator") / request.param, request.param)


@pytest.fixture
async def served(made: Generator, tmp_path: Path, embedded_triton: Any) -> AsyncIterator[Served]:
    """It as a user has it: a registered bundle and no code."""
    kind = made.folder.name
    registry = FakeRegistry()
    registry.add_model(kind, Path(shutil.make_archive(str(tmp_path / kind), "zip", made.folder)), is_package=True)
    registry.add_endpoint(kind, kind)
    spec = decode(registry.task()).endpoints[kind]
    name = embedded_triton.serve(made.folder, name=triton_model_name(spec, registry.model(kind)), endpoint=spec)
    backend = TritonBackend(embedded_triton.grpc)
    settings = Settings(
        state_dir=tmp_path / "state", poll_frequency="50ms", ready_timeout=LIMIT_S, request_timeout=LIMIT_S,
        triton_grpc="x:1",
    )  # fmt: skip
    gateway = Gateway(settings, registry=registry, make_backend=lambda *_: backend)
    try:
        async with gateway.running(), listening(gateway) as port:
            await soon(lambda: kind in gateway.table.current.endpoints)
            yield Served(f"http://127.0.0.1:{port}/serve/{kind}", made.model, made.tokenizer, gateway, backend, name)
    finally:
        embedded_triton.withdraw(name)


def continued(served: Served, prompt: str, tokens: int) -> str:
    """What the pipeline continues a prompt with, the best token each time."""
    pipeline = TextGenerationPipeline(model=served.model, tokenizer=served.tokenizer, device="cpu")
    (answer,) = pipeline(prompt, max_new_tokens=tokens, do_sample=False, return_full_text=False)
    return str(answer["generated_text"])


async def events_of(client: httpx.AsyncClient, url: str, body: Any) -> list[dict[str, Any]]:
    """All events of a stream."""
    async with client.stream("POST", url, json=body) as response:
        assert (200, "text/event-stream; charset=utf-8") == (response.status_code, response.headers["content-type"])
        assert url.endswith(response.headers["x-served-by"])
        return [json.loads(line[6:]) async for line in response.aiter_lines() if line.startswith("data: ")]


async def test_generated_text_is_the_pipelines_whole_and_streamed(served: Served) -> None:
    """Greedy, over hard prompts, alone and in a list; events join to the same text and tell the same counts; seeds make
    draws repeatable.
    """
    parameters = {"max_new_tokens": 24}
    async with httpx.AsyncClient() as client:

        async def ask(text: Any, **more: Any) -> Any:
            return (await client.post(served.url, json={"text": text, "parameters": parameters | more})).json()

        answer = await ask(PROMPTS)
        for i, prompt in enumerate(PROMPTS):
            theirs = continued(served, prompt, 24)
            ours = answer["results"][i]
            assert theirs == ours["text"]
            assert len(served.tokenizer(prompt)["input_ids"]) == answer["tokens"][i]
            events = await events_of(client, served.url, {"text": prompt, "stream": True, "parameters": parameters})
            assert theirs == "".join(event["text"] for event in events)
            for name in ("finish_reason", "generated_tokens"):
                assert ours[name] == events[-1][name]
            assert ours["generated_tokens"] == sum(len(event["token_ids"]) for event in events)
            assert all("finish_reason" not in event for event in events[:-1])
        assert PROMPTS[0] + answer["results"][0]["text"] == (await ask(PROMPTS[0], return_full_text=True))["text"]
        drawn = [(await ask("The", temperature=1.5, top_p=0.9, seed=seed))["text"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


async def test_texts_that_nobody_reads_are_written_to_their_end(served: Served, embedded_triton: Any) -> None:
    """After a stop string, for a client that has closed its connection, and after a deadline. Triton, which can crash
    over a cancelled stream, has answered all of them well, and until then they count as in flight.
    """
    pid = embedded_triton.server.pid
    before = ended(embedded_triton, served.triton_name)
    permits = served.gateway.permits
    count = 60
    async with httpx.AsyncClient() as client:
        body = {"text": "The quick", "parameters": {"max_new_tokens": 30}}
        whole = (await client.post(served.url, json=body)).json()

        async def stop_early() -> None:
            stopped = {**body, "parameters": {**body["parameters"], "stop": [whole["text"][4:6]]}}
            assert "stop" == (await client.post(served.url, json=stopped)).json()["finish_reason"]

        async def leave() -> None:
            async with client.stream("POST", served.url, json={**body, "stream": True}) as response:
                assert (await anext(response.aiter_lines())).startswith("data: ")

        async def be_late() -> None:
            response = await client.post(served.url, json=body, headers={"x-request-timeout-ms": "30"})
            assert response.status_code in (200, 504)

        await asyncio.gather(*(one() for _ in range(count // 3) for one in (stop_early, leave, be_late)))
        async with asyncio.timeout(LIMIT_S):
            while permits.in_flight or served.backend.all[0].in_flight:
                await asyncio.sleep(0.01)
        assert whole == (await client.post(served.url, json=body)).json()
    # It counts a request after it has answered it.
    least = before[0] + count * 2 // 3 + 2
    await soon(lambda: ended(embedded_triton, served.triton_name)[0] >= least, pause=0.2)
    assert (before[1], pid) == (ended(embedded_triton, served.triton_name)[1], embedded_triton.server.pid)


def ended(embedded_triton: Any, name: str) -> tuple[int, int]:
    """How many requests of a model Triton has done with, well and not."""
    with triton.InferenceServerClient(embedded_triton.grpc) as client:
        statistics = client.get_inference_statistics(name).model_stats[0].inference_stats
    return int(statistics.success.count), int(statistics.fail.count)


async def test_closed_stream_and_faulty_requests(served: Served) -> None:
    """The backend's contract of streams, by the real Triton."""
    await streams_as_agreed(served.backend, served.triton_name)


async def test_the_fake_streams_by_the_same_contract() -> None:
    """What unit tests stand on behaves as Triton does."""
    fake = FakeBackend()
    fake.add("m", {"input_ids": "int64", "parameters": "bytes"}, {"token_ids": "int64"}, lambda inputs: inputs)
    fake.streams["m"] = counted_on
    await streams_as_agreed(fake, "m")
    assert ["m"] == fake.ended[:1]
    await fake.close()


def counted_on(inputs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A model that refuses what the real program refuses, and else answers with as many tokens as asked for."""
    settings, ids = json.loads(inputs["parameters"][0]), inputs["input_ids"].tolist()
    if settings.keys() - {"max_new_tokens"} or not ids or max(ids) >= 10**6:
        raise ModelFailed("refused")
    for number in range(settings.get("max_new_tokens", 1)):
        yield {"token_ids": np.array([number]), "finish_reason": np.array([b""], object)}


async def streams_as_agreed(backend: Backend, name: str) -> None:
    """One response after another; a closed stream is over; refusals arrive; an unknown model is not ready."""

    def inputs(ids: list[int], **settings: Any) -> dict[str, Any]:
        return {"input_ids": np.array(ids), "parameters": np.array([json.dumps(settings)], object)}

    got = [one async for one in backend.stream(name, inputs([5], max_new_tokens=3), ("token_ids",), timeout=LIMIT_S)]
    assert 1 <= len(got) <= 4
    assert {"token_ids"} == set(got[0])
    stream = backend.stream(name, inputs([5], max_new_tokens=100), (), timeout=LIMIT_S)
    async with aclosing(stream):
        first = await anext(stream)
    assert first["token_ids"].shape == (1,)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    for bad in (inputs([5], temperature=0), inputs([5], unknown=1), inputs([10**6]), inputs([])):
        with pytest.raises(ModelFailed):
            async for _ in backend.stream(name, bad, (), timeout=LIMIT_S):
                pass
    with pytest.raises(ModelNotReady):
        async for _ in backend.stream("nobody", inputs([5]), (), timeout=LIMIT_S):
            pass


@pytest.mark.parametrize(
    "settings", [{"top_p": 0.8}, {"top_k": 20, "top_p": 0.5, "repetition_penalty": 1.3, "temperature": 0.5}], ids=str
)
def test_probabilities_are_those_of_transformers(settings: dict[str, Any]) -> None:
    """Penalty, temperature, top k and top p in their order, over random logits; draws follow them."""
    rng = np.random.default_rng(0)
    sampling = Sampling(do_sample=True, **settings)
    processors = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    processors.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    processors.append(TopPLogitsWarper(sampling.top_p))
    for _ in range(50):
        logits = (rng.normal(size=300) * 4).astype(np.float32)
        seen = rng.integers(0, 300, size=20).tolist()
        theirs = torch.softmax(processors(torch.tensor([seen]), torch.from_numpy(logits)[None]), -1)[0].numpy()
        scores = scores_of(logits, seen, sampling)
        np.testing.assert_allclose(theirs, probabilities(scores), atol=1e-6)
    drawn = np.bincount([choose(scores, sampling, rng) for _ in range(4000)], minlength=300) / 4000
    np.testing.assert_allclose(theirs, drawn, atol=0.05)
