"""Earlier rungs of the ladder: FastAPI around a ``transformers`` pipeline, with limited threads or dynamic int8.

``BENCH_FOLDER``, ``BENCH_THREADS`` (0: torch's own choice) and ``BENCH_INT8`` choose the variant.
"""

import os
import warnings

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline


class Question(BaseModel):
    text: str


def create_app() -> FastAPI:
    """Return the app; uvicorn's factory."""
    threads = int(os.environ["BENCH_THREADS"])
    if threads:
        torch.set_num_threads(threads)
    classify = pipeline("text-classification", model=os.environ["BENCH_FOLDER"], device="cpu")
    if os.environ.get("BENCH_INT8"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            classify.model = torch.ao.quantization.quantize_dynamic(classify.model, {torch.nn.Linear}, torch.qint8)
    app = FastAPI()

    @app.post("/classify")
    def answer(question: Question) -> dict[str, object]:
        found: dict[str, object] = classify(question.text)[0]
        return found

    return app
