"""A classifier exported with its mean hidden state: the same answers, and drift of subjects that labels do not show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from deploy.bundles.export.original import Original
from deploy.bundles.judge import parity, samples
from deploy.bundles.pack import reference
from deploy.tools.errors import ExportFailed
from deploy.tools.sentences import SENTENCES
from gateway.metrics import drift, languages, variables
from gateway.metrics.evidence import Judged
from gateway.metrics.judge import Judge
from gateway.metrics.observer import Observer
from gateway.metrics.served import Served
from gateway.trace import Trace
from preprocessing.config import TaskConfig
from preprocessing.processor import TextProcessor
from preprocessing.types import MEAN_HIDDEN_STATE, Prepared

from . import tiny
from .conftest import Case

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@dataclass
class Exported:
    """A tiny classifier, exported without and with the output."""

    folder: Path
    original: Original
    processor: TextProcessor
    plain: Path
    watched: Path

    def feeds(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the inputs of one batch."""
        return self.processor.collate_rows(self.processor.prepare({"text": list(texts)}).rows)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Export it twice."""
    here = tmp_path_factory.mktemp("hidden")
    folder = tiny.make("DistilBert", here / "model")
    config = TaskConfig.from_folder(folder)
    original = Original(folder, config)
    processor = TextProcessor.from_folder(folder, output_names=(*original.output_names, MEAN_HIDDEN_STATE))
    made = Exported(folder, original, processor, here / "plain.onnx", here / "watched.onnx")
    example = made.feeds(["short text", "a text that is much longer"])
    original.export(made.plain, example)
    original.add_hidden_state([made.feeds([text]) for text in SENTENCES[:40]])
    original.export(made.watched, example)
    return made


def test_answers_are_bit_equal_with_and_without(exported: Exported) -> None:
    """Whether it is asked for or not, alone and in a padded batch; and the vectors are PyTorch's."""
    plain, watched = (onnxruntime.InferenceSession(str(path)) for path in (exported.plain, exported.watched))
    assert ["logits"] == [one.name for one in plain.get_outputs()]
    for texts in (*([text] for text in SENTENCES[:20]), SENTENCES[:9]):
        feeds = exported.feeds(texts)
        [true] = plain.run(["logits"], feeds)
        [unasked] = watched.run(["logits"], feeds)
        asked, vectors = watched.run(["logits", MEAN_HIDDEN_STATE], feeds)
        assert true.tobytes() == unasked.tobytes() == asked.tobytes()
        assert np.float32 == vectors.dtype
        assert (len(texts), 32) == vectors.shape
        assert np.allclose(vectors, exported.original.hidden_state(feeds), atol=1e-4)


def test_the_gate_judges_such_a_graph_by_its_answers(
    exported: Exported, tmp_path: Path, make_bundle: Callable[[Case, Path], Path]
) -> None:
    """As it does without the output."""
    original = Original(exported.folder, exported.original.config)
    bodies = samples.built_in(exported.processor)[::6]
    truth = parity.find_truth(exported.folder, exported.processor, bodies, original.run, str)
    case = Case(exported.folder, original, exported.processor, truth)
    found = case.judge(make_bundle(case, exported.watched))
    assert found.is_within, found


def test_models_that_cannot_have_it_are_refused(tmp_path: Path) -> None:
    """With the tasks for which it is."""
    folder = tiny.make("Bert", tmp_path / "model", task="")
    original = Original(folder, TaskConfig.from_folder(folder, {"task": "sentence-embeddings"}))
    with pytest.raises(ExportFailed, match="--watch-embedding is not for"):
        original.add_hidden_state([])


FUNCTION_WORDS = frozenset(
    word for of in languages.FUNCTION_WORDS.values() for words in of.values() for word in words.split()
)


class Traffic:
    """Texts on two subjects with the same labels, scores and lengths."""

    def __init__(self, exported: Exported) -> None:
        rng = np.random.default_rng(3)
        self.processor = exported.processor
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the same answers in every run
        self._session = onnxruntime.InferenceSession(str(exported.watched), options)
        pairs = [a + b for a in ascii_lowercase for b in ascii_lowercase if a + b not in FUNCTION_WORDS]
        encoded = self.processor.tokenizer.encode_batch(pairs)
        words = [pair for pair, row in zip(pairs, encoded, strict=True) if row.n_tokens == encoded[0].n_tokens]
        # A subject is words that are near each other for the model: in order of their first principal component.
        vectors = np.concatenate([one for _, one, _ in self.answers(words)])
        order = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)[0][:, 0].argsort()
        words = [words[i] for i in order]
        half = len(words) // 2
        first, second = (
            [" ".join(rng.choice(some, 9)) for _ in range(number)]
            for some, number in ((words[:half], 3000), (words[half:], 15_000))
        )
        mine, theirs = (np.concatenate([one for _, _, one in self.answers(texts)]) for texts in (first, second))
        # For some texts of the first subject, the one of the second with the nearest scores, each of them once.
        nearest: list[str] = []
        for one in mine[:1500]:
            i = int(np.square(theirs - one).sum(axis=1).argmin())
            nearest.append(second[i])
            theirs[i] = np.inf
        self.subjects = first, nearest

    def answers(self, texts: Sequence[str]) -> Iterator[tuple[Prepared, NDArray[Any], NDArray[Any]]]:
        """Yield groups of texts as prepared request, vectors, and logits."""
        for start in range(0, len(texts), 50):
            prepared = self.processor.prepare({"text": texts[start : start + 50]})
            feeds = self.processor.collate_rows(prepared.rows)
            logits, vectors = self._session.run(["logits", MEAN_HIDDEN_STATE], feeds)
            yield prepared, vectors, logits

    def results(self, prepared: Prepared, logits: NDArray[Any]) -> list[Any]:
        """Return the answer's results."""
        answer: Any = self.processor.finish({"logits": logits}, prepared)
        return list(answer["results"])

    def reference(self, texts: Sequence[str]) -> dict[str, drift.Bins]:
        """Return the reference that ``optimize`` writes for these texts."""
        groups = list(self.answers(texts))
        every = [result for prepared, _, logits in groups for result in self.results(prepared, logits)]
        vectors = np.concatenate([vectors for _, vectors, _ in groups])
        return reference.distributions([p for p, _, _ in groups], every, 3) | reference.of_vectors(vectors)


def test_another_subject_is_noticed_by_the_hidden_state_alone(exported: Exported) -> None:
    """Labels, scores, lengths and all other variables of the texts stay as they are."""
    traffic = Traffic(exported)
    same, other = traffic.subjects
    now = 0.0
    observer = Observer(later=lambda drain, _: None, clock=lambda: now, chance=np.random.default_rng(0).random)
    labels = tuple(traffic.processor.config.labels)
    served = Served("e", "1", is_text=True, labels=labels, reference=traffic.reference(same[:2000]))
    observer.watch.configure({"e/1": served}, {}, 1.0)
    judge = Judge()

    def look(texts: Sequence[str]) -> dict[str, float]:
        nonlocal now
        found: Mapping[Any, Judged] | None = judge.look(now, observer.snapshot())
        for prepared, vectors, logits in traffic.answers(texts):
            now += 60.0
            trace = Trace("id")
            trace.endpoint, trace.version, trace.url = "e", "1", "e/1"
            trace.rows, trace.encoded, trace.prepared, trace.vectors = 50, prepared.rows, prepared, vectors
            trace.answer = {"results": traffic.results(prepared, logits)}
            observer.started()
            observer.finished(trace)
            found = judge.look(now, observer.snapshot())
        return {key[2]: one.days for key, one in (found or {}).items()}

    before = look(same[2000:])
    assert set(variables.EMBEDDING) < before.keys()
    assert {variables.LABEL, variables.SCORE, variables.ENTROPY, variables.TOKENS} < before.keys()
    assert max(before.values()) < drift.ALARM_DAYS
    after = look(other)
    assert max(after[name] for name in variables.EMBEDDING) > drift.ALARM_DAYS
    others = {name: days for name, days in after.items() if name not in variables.EMBEDDING}
    assert max(others.values()) < drift.ALARM_DAYS, others
    assert sum(after.values()) / len(after) > drift.ALARM_DAYS, "the endpoint's alarm"
