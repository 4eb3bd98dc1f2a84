"""The program that generates inside Triton: ends and refusals; with a graph in plain Python."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from deploy.sync.runtime import generate_model
from deploy.sync.runtime.generate_model import Graph, Refused, TritonPythonModel
from tests.waiting import until


class Sender:
    """What Triton gives a decoupled model to answer with; ``cancelled_after`` so many tokens nobody reads on."""

    def __init__(self, cancelled_after: int = 10**6) -> None:
        self.tokens: list[int] = []
        self.reason = self.error = ""
        self.is_over = False
        self.is_cancelled = lambda: len(self.tokens) >= cancelled_after

    def send(self, response: Any = None, flags: int = 0) -> None:
        assert not self.is_over
        if response is not None and response.error is not None:
            (self.error, _) = response.error.args
        elif response is not None:
            self.tokens.append(int(response.tensors["token_ids"][0]))
            self.reason = response.tensors["finish_reason"][0].decode()
        self.is_over = bool(flags)


class TritonError(Exception):
    """The stub's, of a text and a code."""

    INVALID_ARG, INTERNAL, UNAVAILABLE = 1, 2, 3


BACKEND = SimpleNamespace(
    TRITONSERVER_RESPONSE_COMPLETE_FINAL=1, TritonError=TritonError, Tensor=lambda name, value: (name, value),
    InferenceResponse=lambda output_tensors, error=None: SimpleNamespace(tensors=dict(output_tensors), error=error),
    get_input_tensor_by_name=lambda request, name: SimpleNamespace(as_numpy=lambda: request.inputs[name]),
)  # fmt: skip
"""The stub's module, as far as the program uses it."""


def count_on(text: Any) -> Any:
    """Continue n with n + 1; fail on 99."""
    if text.ids[-1] == 99:
        raise RuntimeError("no such token\nand more")
    return np.eye(200, dtype=np.float32)[text.ids[-1] + 1]


@pytest.fixture
def program() -> Any:
    """The program with a graph that counts."""
    made = TritonPythonModel()
    made._backend, made._graph = BACKEND, SimpleNamespace(next_logits=count_on)
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


ENDS: dict[str, tuple[list[int], dict[str, Any], list[int], str, str]] = {
    "its length": ([5], {"max_new_tokens": 3}, [6, 7, 8], "length", ""),
    "its end's token, which is sent, too": ([5], {"max_new_tokens": 9, "eos_token_ids": [7]}, [6, 7], "eos", ""),
    "a failure, of which one line is told": ([98], {"max_new_tokens": 5}, [99], "", "no such token"),
    "nobody who reads it": ([10], {"max_new_tokens": 90}, [11, 12], "", ""),
    **{f"refused: {given}": ([1], given, [], "", "parameters are") for given in (
        {"max_new_tokens": 0}, {"temperature": 0}, {"repetition_penalty": -1}, {"unknown": 1}, {"max_new_tokens": "x"},
        {"eos_token_ids": 5},
    )},
}  # fmt: skip
"""What ends a text: its tokens and parameters → what is sent, why that was the last, and the error."""


@pytest.mark.parametrize("end", ENDS)
def test_a_text_ends_and_others_go_on(program: Any, end: str) -> None:
    """Refusals come before anything runs."""
    ids, settings, tokens, reason, error = ENDS[end]
    sender = Sender(cancelled_after=2) if ids == [10] else Sender()
    over(ask(program, ids, sender, **settings), other := ask(program, [1], max_new_tokens=5))
    assert (tokens, reason, error) == (sender.tokens, sender.reason, sender.error[: len(error) or None])
    assert ([2, 3, 4, 5, 6], "length") == (other.tokens, other.reason)


def test_a_text_is_given_up_when_its_time_is_over(program: Any) -> None:
    """Also one that still waits for its place. It ends as a cancelled one does."""
    late = [ask(program, [1], max_new_tokens=90, seconds=0.0) for _ in range(2 * generate_model.MAX_ACTIVE)]
    other = ask(program, [100], max_new_tokens=2, seconds=3600)
    over(*late, other)
    assert {(0, "", "")} == {(len(sender.tokens), sender.reason, sender.error) for sender in late}
    assert ([101, 102], "length") == (other.tokens, other.reason)


def test_unloading_ends_what_runs_and_what_is_short_does_not_wait_for_it(program: Any) -> None:
    """Senders are told, once; what is asked later is not begun."""
    program._graph.next_logits = lambda _: np.zeros(200, np.float32)
    sender = ask(program, [1], max_new_tokens=10**9)
    over(ask(program, [1], max_new_tokens=2))
    until(lambda: sender.tokens)
    program.finalize()
    assert (True, "the model is being unloaded") == (sender.is_over, sender.error)


GRAPHS = [
    (["tokens"], ["logits"], "must have input_ids"), (["input_ids"], ["scores"], "must have input_ids and logits"),
    (["input_ids", "past_key_values.0.key"], ["logits"], "does not return present.0.key"),
    (["input_ids", "pixel_values"], ["logits"], "takes pixel_values"),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "outputs", "reason"), GRAPHS)
def test_graphs_that_cannot_generate_are_refused(inputs: list[str], outputs: list[str], reason: str) -> None:
    """When they are loaded, with what is missing."""
    given, returned = ([SimpleNamespace(name=name) for name in names] for names in (inputs, outputs))
    session = SimpleNamespace(get_inputs=lambda: given, get_outputs=lambda: returned)
    with pytest.raises(Refused, match=reason):
        Graph(session, SimpleNamespace(OrtValue=SimpleNamespace(ortvalue_from_numpy=None)))
