"""Which rows and batches are judged, and what is said of those that are wrong."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from deploy.bundles.judge import probes
from deploy.bundles.judge.probes import ROWS, Probes, judge, lengths
from deploy.bundles.sentences import SENTENCES
from preprocessing.config import TaskConfig
from preprocessing.processor import TextProcessor
from preprocessing.types import Encoded


def test_lengths_are_every_one_up_to_128_and_those_around_every_bucket_above():
    """And the longest. Of long models some between powers of two: every one would take hours."""
    assert [1, 2, 3] == lengths(3)
    found = lengths(300)
    assert list(range(1, 129)) == found[:128]
    assert {129, 143, 144, 145, 159, 160, 287, 288, 289, 299, 300} <= set(found)
    assert (False, 300) == (150 in found, found[-1])
    found = [n for n in lengths(8192) if n >= 512]
    assert {512, 513, 1024, 2048, 4096, 8191, 8192} <= set(found)
    assert all(b < 1.2 * a if a < 2048 else b < 1.34 * a for a, b in pairwise(found))
    assert ({0, 1, 63} <= {n % 64 for n in found}, len(found) < 32) == (True, True)


class Processor:
    """Adds nothing: a row is its tokens."""

    config = TaskConfig(task="text-classification", max_length=24)

    def collate_rows(self, rows):
        longest = max(row.n_tokens for row in rows)
        ids = np.zeros((len(rows), longest), np.int64)
        for i, row in enumerate(rows):
            ids[i, : row.n_tokens] = row.ids
        return {"input_ids": ids}


@pytest.fixture
def probed():
    """Rows of 1 to 24 tokens and 64 short ones, with the right answers."""
    sizes = [*range(1, 25), *(3 + i % 4 for i in range(ROWS))]
    rows = tuple(Encoded(np.arange(1, n + 1)) for n in sizes)
    truths = tuple({"logits": np.array([[n * (n + 1) / 2, n]], np.float32)} for n in sizes)
    return Probes(rows, truths, tuple(probes._calls(rows, ROWS, Processor.config)), 3)


def verdict(probed, spoil, difference=1e-4):
    """What is found of an engine that answers each row with the sum of its tokens and their number, then spoilt."""

    def answer(feeds):
        ids = feeds["input_ids"]
        return {"logits": spoil(np.stack([ids.sum(1), (ids > 0).sum(1)], 1).astype(np.float32), *ids.shape)}

    return judge(probed, Processor(), SimpleNamespace(answer=answer), difference, str)


def test_the_right_answers_pass_in_every_batch(probed):
    """Batches of every size up to the largest, rows alone, short ones beside long ones."""
    found = verdict(probed, lambda answer, rows, longest: answer)
    assert ((), ()) == (found.faults, found.excesses)
    assert set(range(1, ROWS + 1)) <= {len(call) for call in probed.calls}
    assert {i for call in probed.calls if len(call) > 1 for i in call} == set(range(len(probed.rows)))


@pytest.fixture(scope="module", params=[0, 1], ids=lambda more: f"{more} more rows")
def long(request):
    """Rows of up to 2048 tokens, with the right answers. More rows change the order of the calls."""
    more = (12, 16, 24, 32, 48, 64, 96, 128, 256, 512)[: request.param]
    sizes = [*lengths(2048), *more, *(3 + i % 4 for i in range(ROWS))]
    rows = tuple(Encoded(np.ones(n, np.int64)) for n in sizes)
    truths = tuple({"logits": np.array([[n, n]], np.float32)} for n in sizes)
    return Probes(rows, truths, tuple(probes._calls(rows, ROWS, replace(Processor.config, max_length=2048))), 3)


@pytest.mark.parametrize(("tokens", "longest_row"), [
    *((tokens, 0) for tokens in (4000, 8000, 12_000, 15_900)), *((0, row) for row in (600, 900, 1500, 2048)),
])  # fmt: skip
def test_a_graph_that_is_wrong_in_large_calls_or_with_long_rows_is_refused(long, tokens, longest_row):
    """As large as the gateway sends them: calls of which only the shorter rows are kept, or short rows, never show it.

    One call shows what happens if Triton joins several.
    """

    def spoil(answer, rows, longest):
        return -answer if rows > bool(tokens) + 1 and rows * longest > tokens and longest >= longest_row else answer

    assert "each of which is right alone" in verdict(long, spoil).faults[0]
    sizes = sorted(len(call) * max(long.rows[i].n_tokens for i in call) for call in long.calls if len(call) > 1)
    assert ROWS * 512 == sizes[-1]
    assert 16_384 >= sizes[-2]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda a, rows, longest: -a if longest == 24 else a, "rows of 24 tokens"),
        (lambda a, rows, longest: -a if longest > 6 else a, "rows of 7, 8, 9, 10 … 24 tokens"),
        (lambda a, rows, longest: -a if rows > 8 else a, "… 64 rows, each of which is right alone"),
        (lambda a, rows, longest: -a if rows == 29 else a, "batches of 29 rows"),
        (lambda a, rows, longest: a * np.nan if longest == 1 else a, "rows of 1 tokens: the answer is not a number"),
        (lambda a, rows, longest: a[:, :1], "the output logits has shape [1, 1] instead of [1, 2]"),
    ],
)
def test_a_wrong_answer_is_never_accepted_and_says_where(probed, spoil, says):
    """In fp32 as in a reduced precision."""
    for difference in (1e-4, float("inf")):
        (fault,) = verdict(probed, spoil, difference).faults
        assert says in fault


def test_a_row_that_is_padded_though_it_is_alone_is_judged(probed):
    """Somebody may think that one row has no padding: a caller who pads it, or Triton's program, shows it."""
    wrong = replace(probed, padded=tuple((n - 1, 23) for n in range(4, 20)))

    def spoil(answer, rows, longest):
        return -answer if rows == 1 and longest > answer[0, 1] else answer

    assert () == verdict(probed, spoil).faults, "no other probe shows it"
    for difference in (1e-4, float("inf")):
        (fault,) = verdict(wrong, spoil, difference).faults
        assert fault.startswith("alone but padded, rows of 4, 5, 6, 7 … 19 tokens")


@pytest.mark.parametrize(
    ("spoil", "difference", "says"),
    [
        (lambda answer, rows, longest: answer * 1.01, 1e-4, "… 24 tokens"),
        (lambda answer, rows, longest: answer * 1.01, float("inf"), ""),
        (lambda answer, rows, longest: answer * (1.35 if 8 <= longest < 16 else 1.01), float("inf"),
         "rows of 8, 9, 10, 11 … 15 tokens"),
        (lambda answer, rows, longest: np.where(answer[:, 1:] == 17, answer * 1.001, answer), 1e-4, ""),
        (lambda answer, rows, longest: answer * 1.001 if rows > 32 else answer, 1e-4,
         "batches of 33, 34, 35, 36 … 64 rows"),
    ],
    ids=["a little in fp32", "a little in bf16", "one length much less exact", "one row, alone too", "only in batches"],
)  # fmt: skip
def test_a_little_is_an_excess_unless_rounding_or_a_threshold_inside_the_model_explains_it(
    probed, spoil, difference, says
):
    """A person may accept it. What is usual for a reduced precision decides what is not; T5 rounds distances."""
    found = verdict(probed, spoil, difference)
    told = found.excesses if difference < 1 else (*found.faults, *found.excesses)
    assert says in (*told, "")[0]
    assert bool(says) == bool((*found.faults, *found.excesses))


KNOWN = dict.fromkeys(word for text in ("Rust 7 the box ?", *SENTENCES) for word in re.findall(r"\w+|[^\w\s]+", text))
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *list(KNOWN)[:200], *(f"rare{i}" for i in range(100))]


@pytest.fixture
def classifier(tmp_path):
    """The processor of a BERT classifier of 304 tokens that reads 130 of them."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"architectures": ["BertForSequenceClassification"], "max_position_embeddings": 130, "pad_token_id": 0,
              "type_vocab_size": 2, "vocab_size": len(WORDS)}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    return TextProcessor.from_folder(tmp_path)


def original(feeds):
    """A model that reads every token and every type."""
    ids, mask = feeds["input_ids"], feeds["attention_mask"]
    return {"logits": np.stack([ids.sum(1), mask.sum(1), (ids * feeds["token_type_ids"]).sum(1)], 1, dtype=np.float32)}


def judged(classifier, spoil, difference=1e-4):
    """What is found of a graph of the same model with spoilt answers."""

    def answer(feeds):
        return {"logits": spoil(original(feeds)["logits"], feeds, feeds["input_ids"].shape[1]).astype(np.float32)}

    return judge(probes.make(classifier, original, str), classifier, SimpleNamespace(answer=answer), difference, str)


def where(rows, wrong, right):
    """The ``wrong`` answers for some rows, the ``right`` ones for others."""
    return np.where(rows[:, None], wrong, right)


@pytest.mark.parametrize("step", [1, 3])
def test_every_token_of_the_vocabulary_is_in_a_row_of_its_own(classifier, monkeypatch, step):
    """Once, save those that frame a text and padding; rows are short. Of a large vocabulary every nth is tried."""
    monkeypatch.setattr(probes, "_MAX_VOCABULARY", {1: 1000, 3: 101}[step])
    made = probes.make(classifier, original, str)
    rows = made.rows[-made.vocabulary_rows :]
    held = [i for row in rows for i in row.ids.tolist() if i not in (0, 2, 3)]
    assert [1, *range(4, len(WORDS))][::step] == held
    assert max(row.n_tokens for row in rows) <= 128
    assert {(2, 3)} == {(row.ids[0], row.ids[-1]) for row in rows}


def token(number):
    """A graph that is wrong when one token is present."""
    return lambda right, feeds, longest: where((feeds["input_ids"] == number).any(1), -right, right)


def pads(number):
    """A graph that is wrong beside so many pads."""
    return lambda right, feeds, longest: where(longest - feeds["attention_mask"].sum(1) == number, -right, right)


BESIDE = "each of which is right alone"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        *((token(number), "the answer differs from PyTorch's") for number in (1, 4, 177)),
        (token(303), "1 of the 3 rows that together contain the whole vocabulary"),
        *((pads(number), BESIDE) for number in (1, 40, 63, 64, 65, 100, 126)),
        (lambda right, feeds, longest: right * [1, 1, 0], ""),
        (lambda right, feeds, longest: right, None),
    ],
    ids=["unknown", "first", "usual", "in no text", *(f"{n} pads" for n in (1, 40, 63, 64, 65, 100, 126)),
         "reads no types of pairs", "right"],
)  # fmt: skip
def test_a_graph_that_is_wrong_somewhere_is_refused(classifier, spoil, says):
    """At one token, also one that no text of the gate has; at one length of padding; at pairs alone.

    In a reduced precision, too, but for pads.
    """
    for difference in (1e-4, float("inf"))[: 1 if says == BESIDE else 2]:
        found = judged(classifier, spoil, difference)
        told = (*found.faults, *found.excesses)
        assert bool(told) == (says is not None)
        assert says is None or says in told[0]


def test_a_reduced_precision_may_answer_tokens_that_no_text_has_less_exactly(classifier):
    """They stand beside others that no text has; in fp32 it is beyond the tolerance."""

    def spoil(right, feeds, longest):
        return where((feeds["input_ids"] == 303).any(1), right * 1.4, right)

    found = judged(classifier, spoil, float("inf"))
    assert ((), ()) == (found.faults, found.excesses)
    assert judged(classifier, spoil).faults
