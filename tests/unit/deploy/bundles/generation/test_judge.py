"""The gate for generated text, with an engine in plain Python: what is a fault, what an excess."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from deploy.bundles.generation.judge import Truth, centred, judge
from deploy.bundles.generation.original import Continued
from deploy.bundles.model_files import kept_files
from deploy.tools.errors import ExportFailed

WORDS = ["<eos>", "one", "two", "three"]
PROMPT, TOKENS = (1, 2), (3, 1, 2)
LOGITS = np.array([[0.0, 1, 2, 9], [1, 9, 3, 0], [4, 0, 9, 1]])
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


class Engine:
    """Answers what it is given, with the cache and without."""

    def __init__(self, logits=LOGITS, at_once=LOGITS[-1]):
        self.logits, self.at_once = logits, at_once

    def follow(self, prompt, tokens):
        if prompt == PROMPT:
            assert tokens == TOKENS
            return self.logits
        assert ((*PROMPT, *TOKENS[:-1]), TOKENS[-1:]) == (prompt, tokens)
        return self.at_once[None]


@pytest.fixture
def bundle(tmp_path):
    """A folder with a tokenizer of four words and a chat template."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"architectures": ["GPT2LMHeadModel"], "n_positions": 64, "vocab_size": 4, "eos_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return tmp_path


@pytest.fixture
def truth(bundle):
    """What the original is said to answer."""
    continued = [Continued(PROMPT, TOKENS, LOGITS)]
    return Truth(["one two"], [[1, 2]], continued, frozenset([0]), kept_files(bundle))


def verdict(bundle, truth, engine):
    """Judge one engine."""
    return judge("it", bundle, truth, lambda: engine)


def test_the_same_logits_and_tokens_are_within(bundle, truth):
    """Also where all logits are higher by the same: no text changes by that."""
    for shift in (0.0, 50.0):
        found = verdict(bundle, truth, Engine(LOGITS + shift, LOGITS[-1] + shift))
        assert found.is_within, found
        assert found.decisions == 1.0


def test_a_constant_does_not_hide_a_difference(bundle, truth):
    """All logits near −100 have cosines of 1 whatever they say, unless their mean is taken off."""
    low = replace(truth, continued=[Continued(PROMPT, TOKENS, LOGITS - 1000)])
    wrong = LOGITS[:, ::-1] - 1000
    assert verdict(bundle, low, Engine(wrong, wrong[-1])).mean_cosine < 0.5


def test_a_step_with_the_cache_must_be_the_text_read_in_one_go(bundle, truth):
    """Which of the two is right does not matter."""
    found = verdict(bundle, truth, Engine(at_once=LOGITS[0]))
    assert any("uses its key/value cache wrongly" in fault for fault in found.faults)


def test_one_other_token_in_three_is_an_excess(bundle, truth):
    """Steps are compared behind PyTorch's tokens."""
    changed = LOGITS.copy()
    changed[1] = [1, 3, 9, 0]
    found = verdict(bundle, truth, Engine(changed))
    assert not found.faults
    assert found.decisions == pytest.approx(2 / 3)
    assert any("33.3% of the next tokens changed" in line for line in found.excesses)


def test_logits_that_are_not_finite_or_of_another_vocabulary_are_faults(bundle, truth):
    """Nothing is computed from them."""
    assert ("logits are not finite",) == verdict(bundle, truth, Engine(LOGITS * np.nan)).faults
    assert ("logits cover 3 tokens instead of 4",) == verdict(bundle, truth, Engine(LOGITS[:, :3])).faults


def test_a_graph_that_cannot_be_run_is_a_fault_in_its_own_words(bundle, truth):
    """Whether at loading or at a step."""

    def fail():
        raise ExportFailed("it is broken")

    assert ("it is broken",) == judge("it", bundle, truth, fail).faults


def test_other_tokens_and_ends_are_faults(bundle, truth):
    """The bundle's files decide as much as its graph."""
    other = replace(truth, tokens=[[1, 3]], eos_ids=frozenset([3]))
    faults = "\n".join(verdict(bundle, other, Engine()).faults)
    assert (
        'makes other tokens than the original\'s for 1 of 1 texts, for example for "one two": from token 1 on [2] '
        "instead of [3]" in faults
    )
    assert "ends texts at the tokens [0] instead of [3]" in faults


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja"]
)
def test_a_file_that_is_not_the_originals_is_a_fault(bundle, truth, name):
    """Also if no prompt shows it: a rare word, a sampling default, the longest text, a chat."""
    text = (bundle / name).read_text() if (bundle / name).exists() else "{}"
    (bundle / name).write_text(text + "\n")
    faults = verdict(bundle, truth, Engine()).faults
    assert f"the bundle's {name} differs from the original's" in faults


def test_small_helpers():
    """Each step about its own mean."""
    assert [0.0, 0.0] == [float(step.mean()) for step in centred([np.array([[1.0, 3], [5, 5]])])]
