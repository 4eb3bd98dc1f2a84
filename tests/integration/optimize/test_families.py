"""Every text architecture of transformers, tiny, and models saved in every way: each becomes a bundle that answers as
its pipeline does, or is refused with the reason in one sentence. ``.ci/run long`` does a few of them, ``.ci/run
models`` the whole table.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from deploy.bundles.judge.engine import Engine
from deploy.bundles.options import Options
from deploy.bundles.run import optimize
from deploy.sync.model_folder import execution
from deploy.tools.errors import DeployError
from preprocessing.config import CLASSIFICATION
from preprocessing.processor import TextProcessor

from . import families, tiny

pytestmark = [pytest.mark.integration, pytest.mark.long]

TEXTS = (
    "The parcel arrived two days late and the box was torn open.",
    "ok",
    "½ cup of ﬁne flour, please…",
    "Der Zug nach München fällt heute wegen eines Sturms aus.",
    "Take one tablet twice a day with a glass of water. " * 8,
    "She laughed, closed the book and turned off the light. " * 40,
)
"""Short, odd, of several rows, cut."""

FEW = ("DeBERTa-v2 of transformers 4", "BART", "XLM-R, .bpe.model only", "Longformer", "BigBird, sparse", "ConvBERT",
       "BERT QA", "T5 encoder", "zero-shot")  # fmt: skip


@pytest.mark.parametrize("name", list(families.FOLDERS) if tiny.IS_ALL else FEW)
def test_a_family_is_deployed_or_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    """What is deployed was judged against PyTorch; a classifier's scores are the pipeline's."""
    folder = families.FOLDERS[name](tmp_path / "model")
    texts = tmp_path / "texts.txt"
    # where a mask is put behind a text, it must not be cut off with it
    texts.write_text("\n".join(text.strip() for text in (TEXTS[:4] if "mask" in name else TEXTS)))
    options = Options(
        str(folder), tmp_path / "out", target="gpu", candidate="gpu-fp32", samples=texts,
        trusts_code=name == families.OWN, task=families.TASKS.get(name, "auto"),
    )  # fmt: skip
    if name in families.REFUSED:
        with pytest.raises(DeployError) as caught:
            optimize(options, str, str)
        assert families.REFUSED[name] in caught.value.line()
        assert caught.value.hint
        return
    outcome = optimize(options, str, str)
    if TextProcessor.from_folder(outcome.bundle).config.task == CLASSIFICATION:
        answers = bundle_scores(outcome.bundle)
        for ours, theirs in zip(answers, pipeline_scores(folder, trusts=options.trusts_code), strict=True):
            assert ours == pytest.approx(theirs, abs=1e-3)


def bundle_scores(bundle: Path) -> list[dict[str, float]]:
    """Every text's scores by the bundle, all texts in padded batches, as Triton runs them."""
    processor = TextProcessor.from_folder(bundle)
    wanted = execution.Execution(engine="onnxruntime", precision="fp32")
    engine = Engine(bundle / "model.onnx", wanted, threads=1)
    prepared = [processor.prepare({"text": text}) for text in TEXTS]
    answers = [engine.answer(processor.collate_rows(p.rows)) for p in prepared]
    found: list[Any] = [
        processor.finish({n: np.asarray(v) for n, v in outputs.items()}, p)
        for outputs, p in zip(answers, prepared, strict=True)
    ]
    return [dict(one["scores"]) for one in found]


def pipeline_scores(folder: Path, *, trusts: bool) -> list[dict[str, float]]:
    """Every text's scores by transformers' own pipeline, one text at a time."""
    classify = transformers.pipeline(
        "text-classification", model=str(folder), device="cpu", top_k=None, dtype=torch.float32,
        trust_remote_code=trusts,
    )  # fmt: skip
    found = [classify(text, truncation=True, max_length=128) for text in TEXTS]
    return [{one["label"]: one["score"] for one in (rows[0] if isinstance(rows[0], list) else rows)} for rows in found]


def test_texts_of_one_token_are_no_example(tmp_path: Path) -> None:
    """A decoder that classifies adds no tokens of its own: with a user's texts of one token the built-in ones are
    exported with.
    """
    folder = families.make(families.FAMILIES["GPT-2"], tmp_path / "model")
    texts = tmp_path / "texts.txt"
    texts.write_text("a\nb\n")
    options = Options(str(folder), tmp_path / "out", target="gpu", candidate="gpu-fp32", samples=texts)
    assert (optimize(options, str, str).bundle / "model.onnx").is_file()


def test_the_file_is_taken_as_it_is_written_where_that_is_asked_for(tmp_path: Path) -> None:
    """transformers 5 leaves out DeBERTa's normalizer: by default the bundle does too and says so; with ``--tokenizer
    file`` it has the file's own, and that is what it is judged by.
    """
    family = families.FAMILIES["DeBERTa-v2 of transformers 4"]
    folder = families.make(family, tmp_path / "model")
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(text.strip() for text in TEXTS[:4]))
    said: list[str] = []
    bundles = {}
    for reads in ("transformers", "file"):
        options = Options(str(folder), tmp_path / reads, target="gpu", candidate="gpu-fp32", samples=texts, reads=reads)  # type: ignore[arg-type]
        bundles[reads] = optimize(options, said.append, str).bundle
    own = json.loads((folder / "tokenizer.json").read_text())
    normalizers = {
        reads: json.loads((bundle / "tokenizer.json").read_text())["normalizer"] for reads, bundle in bundles.items()
    }
    assert own["normalizer"] == normalizers["file"]
    assert "Precompiled" not in str(normalizers["transformers"])
    (told,) = [line for line in said if "does not follow this tokenizer.json" in line]
    assert "--tokenizer file" in told
    assert re.search(r'for example for "[^"]+": from token \d+ on \[', told)
    assert told in json.loads((bundles["transformers"] / "manifest.json").read_text())["notes"]
