"""The program that generates inside Triton: ends and refusals; with a graph in plain Python."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from deploy.sync.runtime import generate_model
from deploy.sync.runtime.generate_model import Graph, Refused, Settings, TritonPythonModel, choose, scores_of
from tests.waiting import until


class Sender:
    """What Triton gives a decoupled model to answer with."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.reason = ""
        self.error = ""
        self.is_over = False
        self.cancelled_after = 10**6

    def is_cancelled(self) -> bool:
        return len(self.tokens) >= self.cancelled_after

    def send(self, response: Any = None, flags: int = 0) -> None:
        assert not self.is_over
        if response is not None and response.error is not None:
            self.error = response.error.text
        elif response is not None:
            self.tokens.append(int(response.tensors["token_ids"][0]))
            self.reason = response.tensors["finish_reason"][0].decode()
        self.is_over = bool(flags)


class Backend:
    """The stub's module, as far as the program uses it."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1

    class TritonError:
        INVALID_ARG, INTERNAL, UNAVAILABLE = 1, 2, 3

        def __init__(self, text: str, code: int) -> None:
            self.text, self.code = text, code

    @staticmethod
    def Tensor(name: str, value: Any) -> tuple[str, Any]:
        return name, value

    @staticmethod
    def InferenceResponse(output_tensors: Any = (), error: Any = None) -> Any:
        return SimpleNamespace(tensors=dict(output_tensors), error=error)

    @staticmethod
    def get_input_tensor_by_name(request: Any, name: str) -> Any:
        return SimpleNamespace(as_numpy=lambda: request.inputs[name])


class Counting:
    """Continues n with n + 1; fails on 99."""

    def __init__(self) -> None:
        self.held: dict[int, Sender] = {}
        """First token of a text → whose end it waits for."""

    def next_logits(self, text: Any) -> Any:
        if text.ids[0] in self.held:
            over(self.held[text.ids[0]])
        last = text.ids[-1]
        if last == 99:
            raise RuntimeError("no such token\nand more")
        logits = np.zeros(200, np.float32)
        logits[last + 1] = 9
        return logits


@pytest.fixture
def program() -> Any:
    """The program with the counting graph."""
    made = TritonPythonModel()
    made._backend, made._graph = Backend, Counting()
    made._begin()
    yield made
    made.finalize()


def ask(program: Any, ids: list[int], sender: Sender | None = None, **settings: Any) -> Sender:
    """Send one request."""
    sender = sender or Sender()
    text = json.dumps(settings).encode()
    inputs = {"input_ids": np.array(ids, np.int64), "parameters": np.array([text], object)}
    program.execute([SimpleNamespace(inputs=inputs, get_response_sender=lambda: sender)])
    return sender


def over(*senders: Sender) -> None:
    """Wait for the ends."""
    until(lambda: all(sender.is_over for sender in senders), pause=0.001)


def test_a_text_ends_at_its_length_or_its_end(program: Any) -> None:
    """The last token says why; the end's token is sent, too."""
    long, ended = ask(program, [5], max_new_tokens=3), ask(program, [5], max_new_tokens=9, eos_token_ids=[7])
    over(long, ended)
    assert ([6, 7, 8], "length") == (long.tokens, long.reason)
    assert ([6, 7], "eos") == (ended.tokens, ended.reason)


def test_a_short_text_does_not_wait_for_a_long_ones_end(program: Any) -> None:
    """The long one holds its place until the short one has ended."""
    over_first = Sender()
    program._graph.held = {1: over_first}
    long, short = ask(program, [1], max_new_tokens=90), ask(program, [100], over_first, max_new_tokens=2)
    over(long, short)
    assert ([101, 102], 90) == (short.tokens, len(long.tokens))


def test_a_cancelled_text_is_not_continued(program: Any) -> None:
    """It ends without a reason: nobody reads it."""
    sender = Sender()
    sender.cancelled_after = 2
    ask(program, [1], sender, max_new_tokens=90)
    over(sender)
    assert ([2, 3], "") == (sender.tokens, sender.error)


def test_a_text_is_given_up_when_its_time_is_over(program: Any) -> None:
    """Also one that still waits for its place. It ends as a cancelled one does."""
    late = [ask(program, [1], max_new_tokens=90, seconds=0.0) for _ in range(2 * generate_model.MAX_ACTIVE)]
    other = ask(program, [100], max_new_tokens=2, seconds=3600)
    over(*late, other)
    assert {(0, "", "")} == {(len(sender.tokens), sender.reason, sender.error) for sender in late}
    assert ([101, 102], "length") == (other.tokens, other.reason)


def test_a_failure_is_its_own_texts_alone(program: Any) -> None:
    """One line of the reason; others go on."""
    bad, good = ask(program, [98], max_new_tokens=5), ask(program, [1], max_new_tokens=5)
    over(bad, good)
    assert ("no such token", [99]) == (bad.error, bad.tokens)
    assert ("", 5) == (good.error, len(good.tokens))


@pytest.mark.parametrize(
    "settings",
    [{"max_new_tokens": 0}, {"temperature": 0}, {"repetition_penalty": -1}, {"unknown": 1}, {"max_new_tokens": "x"},
     {"eos_token_ids": 5}],
    ids=str,
)  # fmt: skip
def test_unusable_parameters_are_refused(program: Any, settings: dict[str, Any]) -> None:
    """With the reason, before anything runs."""
    sender = ask(program, [1], **settings)
    assert sender.is_over
    assert "parameters are" in sender.error


def test_unloading_ends_what_runs(program: Any) -> None:
    """Senders are told, once; what is asked later is not begun."""
    program._graph.next_logits = lambda text: np.zeros(200, np.float32)
    sender = ask(program, [1], max_new_tokens=10**9)
    until(lambda: sender.tokens)
    program.finalize()
    assert (True, "the model is being unloaded") == (sender.is_over, sender.error)


def graph_of(inputs: list[str], outputs: list[str]) -> Graph:
    """A graph with these names."""
    named = [SimpleNamespace(name=name, shape=["b", 2, "p", 4], type="tensor(float)") for name in inputs]
    session = SimpleNamespace(get_inputs=lambda: named, get_outputs=lambda: [SimpleNamespace(name=n) for n in outputs])
    return Graph(session, SimpleNamespace(OrtValue=SimpleNamespace(ortvalue_from_numpy=lambda value: value)))


@pytest.mark.parametrize(
    ("inputs", "outputs", "reason"),
    [
        (["tokens"], ["logits"], "must have input_ids"),
        (["input_ids"], ["scores"], "must have input_ids and logits"),
        (["input_ids", "past_key_values.0.key"], ["logits"], "does not return present.0.key"),
        (["input_ids", "pixel_values"], ["logits"], "takes pixel_values"),
    ],
)
def test_graphs_that_cannot_generate_are_refused(inputs: list[str], outputs: list[str], reason: str) -> None:
    """When they are loaded, with what is missing."""
    with pytest.raises(Refused, match=reason):
        graph_of(inputs, outputs)


def test_draws_stay_within_what_is_allowed() -> None:
    """`top_k` 1 is the best token, whatever the temperature; a seed repeats a draw."""
    logits = np.random.default_rng(0).normal(size=50).astype(np.float32)
    settings = Settings(do_sample=True, temperature=50.0, top_k=1)
    assert {int(logits.argmax())} == {
        choose(scores_of(logits, [1], settings), settings, np.random.default_rng(seed)) for seed in range(20)
    }
    wide = Settings(do_sample=True, temperature=5.0)
    draws = [choose(scores_of(logits, [1], wide), wide, np.random.default_rng(seed)) for seed in (1, 1, 2, 3, 4)]
    assert draws[0] == draws[1]
    assert len(set(draws)) > 1
