"""The usual first service: FastAPI and a ``transformers`` model in the same process, PyTorch on the CPU, no Triton."""

import os

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline


class Question(BaseModel):
    text: str


def create_app() -> FastAPI:
    """Return the app; uvicorn's factory."""
    torch.set_num_threads(1)
    embed = pipeline("feature-extraction", model=os.environ["BENCH_FOLDER"], device="cpu")
    app = FastAPI()

    @app.post("/embed")
    def answer(question: Question) -> dict[str, list[float]]:
        with torch.inference_mode():
            tokens = embed(question.text, return_tensors=True, truncation=True)[0]
        pooled = tokens.mean(dim=0)
        return {"embedding": torch.nn.functional.normalize(pooled, dim=0).tolist()}

    return app
