"""A fake decoupled model that tells a story: it continues with the next words in order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from gateway.errors import ModelFailed
from gateway.triton.port import ModelInfo, TensorInfo

STORY = ["<unk>", "</s>", "one", "two", "three", "four", "five"]
WORDS = [*STORY, "user:", "assistant:"]
_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"


def counting(inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Continue with the next words in order, as many as requested."""
    settings = json.loads(inputs["parameters"][0])
    token = int(inputs["input_ids"][-1])
    for i in range(settings["max_new_tokens"]):
        token = token + 1 if token + 1 < len(STORY) else 1
        reason = b"eos" if token in settings["eos_token_ids"] else b""
        if not reason and i + 1 == settings["max_new_tokens"]:
            reason = b"length"
        yield {"token_ids": np.array([token]), "finish_reason": np.array([reason], object)}
        if reason:
            return


def failing(inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Send two tokens, then fail."""
    responses = counting(inputs)
    yield next(responses)
    yield next(responses)
    raise ModelFailed("it broke")


async def serve(stack: Any) -> None:
    """Let a stack serve the model as ``story``, with a chat template."""
    deploy(stack, "story", "m")
    await stack.served("story")


def deploy(stack: Any, url: str, model_id: str, *, template: str = _TEMPLATE, **files: Any) -> None:
    """Register, configure and load the model; ``files``: more files of its bundle, by name without ``.json``."""
    folder = stack.folder / "bundle"
    folder.mkdir()
    for file, content in files.items():
        (folder / f"{file}.json").write_text(json.dumps(content))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"architectures": ["XForCausalLM"], "max_position_embeddings": 16, "eos_token_id": 1}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (folder / "model.onnx").write_bytes(b"not read by the gateway")
    stack.add_package(model_id, folder)
    stack.registry.add_endpoint(url, model_id)
    name = stack.triton_name(url)
    info = ModelInfo(
        name,
        (TensorInfo("input_ids", "int64", (-1,)), TensorInfo("parameters", "object", (1,))),
        (TensorInfo("token_ids", "int64", (-1,)), TensorInfo("finish_reason", "object", (1,))),
        0,
    )
    stack.backend.models[name] = (info, lambda _: {})
    stack.backend.streams[name] = counting
