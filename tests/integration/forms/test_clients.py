"""The clients people have, unmodified, against the gateway in front of the real Triton."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.texts]


def text_tensor(module: Any, *texts: str) -> Any:
    """A BYTES input of texts, as either of Triton's clients has it."""
    tensor = module.InferInput("text", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[t.encode()] for t in texts], dtype=object))
    return tensor


class TestTritonClient:
    """``tritonclient``, over HTTP and gRPC alike."""

    @pytest.fixture(params=["http", "grpc"])
    def triton(self, request: pytest.FixtureRequest, stack: Any) -> Any:
        """The module and a client of it."""
        if request.param == "http":
            import tritonclient.http as module

            client: Any = module.InferenceServerClient(stack.http)
        else:
            import tritonclient.grpc as module  # type: ignore[no-redef]

            client = module.InferenceServerClient(stack.grpc)
        yield module, client
        client.close()

    def test_what_there_is_of_a_text_endpoint(self, triton: Any) -> None:
        """What both protocols tell of any model, asked as bytes: test_conformance.py."""
        module, client = triton
        as_json = {"as_json": True} if "grpc" in module.__name__ else {}
        assert client.is_server_ready()
        assert client.is_model_ready("sentiment", "1")
        metadata = client.get_model_metadata("sentiment", "1", **as_json)
        assert ("sentiment", ["1"], ["text"]) == (
            metadata["name"], metadata["versions"], [t["name"] for t in metadata["inputs"]],
        )  # fmt: skip
        config = client.get_model_config("vectors", **as_json)
        assert "TYPE_STRING" == config.get("config", config)["input"][0]["data_type"]
        index = client.get_model_repository_index(**as_json)
        index = index["models"] if isinstance(index, dict) else index
        assert {"sentiment", "vectors", "tokens", "team/identity"} <= {m["name"] for m in index}
        assert client.get_inference_statistics("tokens", **as_json)["model_stats"]
        assert client.get_server_metadata(**as_json)["name"] == "triton-gateway"

    def test_text_is_tokenized_and_answered_as_tensors(self, triton: Any) -> None:
        module, client = triton
        answer = client.infer("sentiment", [text_tensor(module, "good film", "bad bad")], model_version="2",
                              request_id="abc")  # fmt: skip
        assert [[b"GOOD"], [b"BAD"]] == answer.as_numpy("label").tolist()
        logits, probabilities = answer.as_numpy("logits"), answer.as_numpy("probabilities")
        assert [[0, 1], [2, 0]] == logits.tolist()
        np.testing.assert_allclose(np.exp(logits) / np.exp(logits).sum(1, keepdims=True), probabilities, rtol=1e-6)
        response = answer.get_response()
        assert "abc" == (response["id"] if isinstance(response, dict) else response.id)
        wanted = [module.InferRequestedOutput("label")]
        assert client.infer("live", [text_tensor(module, "good")], outputs=wanted).as_numpy("logits") is None

    def test_tensors_pass_through_a_plain_model_and_a_text_endpoint(self, triton: Any) -> None:
        module, client = triton
        inputs = []
        for name in ("input_ids", "attention_mask"):
            inputs.append(module.InferInput(name, [1, 3], "INT64"))
            inputs[-1].set_data_from_numpy(np.array([[5, 6, 7]] if name == "input_ids" else [[1, 1, 1]], np.int64))
        assert [[18.0]] == client.infer("tokens", inputs).as_numpy("logits").tolist()
        assert [[1.0, 1.0]] == client.infer("sentiment", inputs, model_version="1").as_numpy("logits").tolist()

    @pytest.mark.parametrize(
        ("model", "inputs", "expected"),
        [
            ("ner", {"text": ["hello"]}, lambda r: r["entities"][0]["word"] == "hello"),
            ("qa", {"question": ["hello ?"], "context": ["up good film"]}, lambda r: r["answer"] == "good film"),
            ("mask", {"text": ["a [MASK]"]}, lambda r: r["predictions"][0]["token_str"] == "film"),
            ("rank", {"query": ["hello"], "documents": ["bad", "film"]}, lambda r: r["results"][0]["index"] == 1),
        ],
    )
    def test_other_tasks_answer_their_json(self, triton: Any, model: str, inputs: Any, expected: Any) -> None:
        """Their body's fields as BYTES tensors in, `result` out."""
        module, client = triton
        tensors = []
        for name, items in inputs.items():
            tensors.append(module.InferInput(name, [len(items), 1], "BYTES"))
            tensors[-1].set_data_from_numpy(np.array([[item.encode()] for item in items], dtype=object))
        (result,) = client.infer(model, tensors).as_numpy("result").ravel()
        assert expected(json.loads(result)), result


class TestHuggingFaceClient:
    """``huggingface_hub.InferenceClient(model=URL)``."""

    @pytest.fixture
    def client(self, stack: Any) -> Any:
        """A client maker by endpoint."""
        from huggingface_hub import InferenceClient

        return lambda endpoint: InferenceClient(model=f"{stack.url}/serve/{endpoint}", timeout=60)

    @pytest.mark.parametrize(
        ("ask", "expected"),
        [
            (lambda client: [e.label for e in client("live").text_classification("good good film")], ["GOOD", "BAD"]),
            (lambda client: [e.label for e in client("sentiment/1").text_classification("good", top_k=1)], ["GOOD"]),
            (lambda client: len(client("vectors").feature_extraction("good film", normalize=True)), 8),
            (lambda client: client("vectors").sentence_similarity("good film", other_sentences=["good film"]),
             [pytest.approx(1, abs=1e-5)]),
            (lambda client: [(e.entity_group, e.word, e.start, e.end) for e in client("ner").token_classification(
                "bad hello world film", aggregation_strategy="simple")], [("PER", "hello world", 4, 15)]),
            (lambda client: client("qa").question_answering(question="hello ?", context="up warm good film").answer,
             "good film"),
            (lambda client: [e.sequence for e in client("mask").fill_mask("hello [MASK]", top_k=2)],
             ["hello film", "hello world"]),
            (lambda client: [e.label for e in client("zero").zero_shot_classification(
                "film", candidate_labels=["bad", "good"], multi_label=False)], ["good", "bad"]),
            (lambda client: [score > 0.5 for score in client("rank").sentence_similarity(
                "hello", other_sentences=["film", "bad"])], [True, False]),
        ],
    )  # fmt: skip
    def test_its_methods_read_the_answers(self, client: Any, ask: Any, expected: Any) -> None:
        assert expected == ask(client)

    def test_text_generation_at_once_and_streamed(self, client: Any, stack: Any) -> None:
        """The client's stream joins to what our own form answers."""
        body = {"text": "The quick", "parameters": {"max_new_tokens": 12}}
        ours = httpx.post(f"{stack.url}/serve/story", json=body).json()
        story = client("story")
        assert ours["text"] == story.text_generation("The quick", max_new_tokens=12)
        details = story.text_generation("The quick", max_new_tokens=12, details=True)
        assert (ours["text"], ours["generated_tokens"]) == (details.generated_text, details.details.generated_tokens)
        assert ours["text"] == "".join(story.text_generation("The quick", max_new_tokens=12, stream=True))

    def test_chat_through_the_openai_path(self, stack: Any) -> None:
        from huggingface_hub import InferenceClient

        messages = [{"role": "user", "content": "Hello"}]
        client = InferenceClient(base_url=f"{stack.url}/v1", timeout=30)
        answer = client.chat_completion(messages, model="story", max_tokens=4)
        assert answer.choices[0].message.content
        own = InferenceClient(model=f"{stack.url}/serve/story", timeout=30).chat_completion(messages, max_tokens=4)
        assert answer.choices[0].message.content == own.choices[0].message.content


class TestOpenAIClient:
    """The ``openai`` package."""

    @pytest.fixture
    def client(self, stack: Any) -> Any:
        """A client that does not retry."""
        import openai

        with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
            yield client

    @pytest.mark.parametrize("encoding", ["float", "base64"])
    def test_embeddings(self, client: Any, stack: Any, encoding: str) -> None:
        """The client asks for base64 by itself and decodes it; asked for floats it gets them."""
        texts = ["good film", "hello world"]
        ours = httpx.post(f"{stack.url}/serve/vectors", json={"text": texts}).json()
        extra = {} if encoding == "base64" else {"encoding_format": "float"}
        answer = client.embeddings.create(model="vectors", input=texts, **extra)
        np.testing.assert_allclose(ours["embeddings"], [d.embedding for d in answer.data], rtol=1e-6)
        assert sum(ours["tokens"]) == answer.usage.prompt_tokens == answer.usage.total_tokens
        assert [0, 1] == [d.index for d in answer.data]

    def test_completions(self, client: Any, stack: Any) -> None:
        """Text, several texts, token ids, echo; sixteen tokens where nothing is said, as OpenAI does."""
        body = {"text": ["The quick", "a"], "parameters": {"max_new_tokens": 8}}
        ours = httpx.post(f"{stack.url}/serve/story", json=body).json()
        answer = client.completions.create(model="story", prompt=["The quick", "a"], max_tokens=8)
        assert [r["text"] for r in ours["results"]] == [choice.text for choice in answer.choices]
        assert (sum(ours["tokens"]), sum(r["generated_tokens"] for r in ours["results"])) == (
            answer.usage.prompt_tokens, answer.usage.completion_tokens,
        )  # fmt: skip
        echoed = client.completions.create(model="story", prompt="a", max_tokens=8, echo=True).choices[0].text
        assert "a" + answer.choices[1].text == echoed
        short = client.completions.create(model="story", prompt=[5, 6, 9])
        assert (3, True) == (short.usage.prompt_tokens, short.usage.completion_tokens <= 16)

    def test_chat_uses_the_models_own_template(self, client: Any, stack: Any) -> None:
        """What the template renders, continued; whole and streamed."""
        messages = [{"role": "system", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "text", "text": "Hello"}]}]  # fmt: skip
        body = {"text": "<system>Be brief.\n<user>Hello\n<assistant>", "parameters": {"max_new_tokens": 10}}
        ours = httpx.post(f"{stack.url}/serve/story", json=body).json()
        answer = client.chat.completions.create(model="story", messages=messages, max_completion_tokens=10)
        assert ("assistant", ours["text"]) == (answer.choices[0].message.role, answer.choices[0].message.content)
        assert ours["tokens"] == answer.usage.prompt_tokens
        parts = list(client.chat.completions.create(model="story", messages=messages, max_tokens=10, stream=True))
        assert "assistant" == parts[0].choices[0].delta.role
        assert ours["text"] == "".join(part.choices[0].delta.content or "" for part in parts)
        assert answer.choices[0].finish_reason == parts[-1].choices[0].finish_reason

    def test_models_are_listed_and_retrieved(self, client: Any) -> None:
        assert {"live", "vectors", "sentiment/1", "team/identity"} <= {m.id for m in client.models.list()}
        assert "vectors" == client.models.retrieve("vectors").id

    def test_errors_are_openais(self, client: Any) -> None:
        import openai

        with pytest.raises(openai.NotFoundError) as missing:
            client.embeddings.create(model="nobody", input="x")
        assert "model_not_found" == missing.value.code
        with pytest.raises(openai.BadRequestError, match="text-classification, not embeddings"):
            client.embeddings.create(model="live", input="x")
        with pytest.raises(openai.BadRequestError, match="own tokenizer"):
            client.embeddings.create(model="vectors", input=[[99999]])
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="live", messages=[{"role": "user", "content": "x"}])
