"""``--aux-config`` in the forms users type it and clearml-serving stores it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.sync.model_folder.aux_config import parse_pairs, parse_pbtxt, unquote
from gateway.errors import SpecFault

WORDS = st.text(alphabet="abcxyz_0123456789 .-/", min_size=1, max_size=20).map(str.strip).filter(bool)


@given(WORDS, st.sampled_from(["{}", '"{}"', "'{}'", '\\"{}\\"', "\\'{}\\'", "\\{}\\", '"\\"{}\\""', "'\"{}\"'"]))
def test_every_way_of_quoting_means_the_bare_value(word, form):
    """Shells, HOCON and clearml-serving wrap values in layers of quotes; none of them is part of the value."""
    assert word == unquote(form.format(word)) == parse_pairs({"platform": form.format(word)}).platform


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        *(
            ({"dynamic_batching": {"preferred_batch_size": value}}, "dynamic_batching { preferred_batch_size: [4, 8] }")
            for value in ([4, 8], "[4,8]", "[4, 8]", '"[4,8]"', "4,8", {"0": 4, "1": 8}, {'"0"': "4", "1": "8"})
        ),
        *(({"dynamic_batching": value}, "dynamic_batching {}") for value in ({}, [], "", "{}", "true", True)),
        (
            {
                "max_batch_size": "16",
                "instance_group": {"0": {"kind": "KIND_CPU", "count": 2}, "1": {"kind": '"KIND_GPU"', "gpus": "[0]"}},
                "model_transaction_policy": {"decoupled": "true"},
                "parameters": {"threads": 3, "mode": {"string_value": '"a b"'}},
                "metric_tags": {"team": "search"},
            },
            """max_batch_size: 16
            instance_group [{ kind: KIND_CPU count: 2 }, { kind: KIND_GPU gpus: [0] }]
            model_transaction_policy { decoupled: true }
            parameters { key: "threads" value { string_value: "3" } }
            parameters { key: "mode" value { string_value: "a b" } }
            metric_tags { key: "team" value: "search" }""",
        ),
    ],
    ids=range(14),
)  # fmt: skip
def test_pairs_mean_what_a_configuration_says(pairs, text):
    """Lists in every form, groups that are switched on, numbered elements, enums, bools and maps."""
    assert parse_pbtxt(text) == parse_pairs(pairs)


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({"max_batchsize": 4}, r"has no field named \"max_batchsize\""),
        ({"dynamic_batching": {"prefered_batch_size": [1]}}, r"DynamicBatching.*prefered_batch_size"),
        ({"instance_group": [{"kind": "KIND_CUP"}]}, r"--aux-config.*Kind\" has no value named KIND_CUP"),
        ({"max_batch_size": "many"}, "max_batch_size: many.*Couldn't parse integer"),
        ({"model_transaction_policy": {"decoupled": "maybe"}}, 'decoupled: maybe.*Expected "true" or "false"'),
        ({"instance_group": "KIND_CPU"}, r"instance_group: KIND_CPU"),
    ],
)
def test_what_is_not_a_configuration_is_refused_with_what_was_said(pairs, said):
    """At every depth; nothing a user types ends in a Python traceback."""
    with pytest.raises(SpecFault, match=said):
        parse_pairs(pairs)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
            st.sampled_from(["input", "0", "1", "kind", "parameters", "x", "platform"]), inner, max_size=3),
        max_leaves=8,
    )
)  # fmt: skip
def test_any_value_is_applied_or_refused_never_worse(value):
    """Total: whatever was stored in the Task, the answer is a config or a SpecFault."""
    with contextlib.suppress(SpecFault):
        parse_pairs({"instance_group": value, "parameters": value, "dynamic_batching": value})


@pytest.mark.parametrize("text", ['platform: "x"\ninstance_group [{ knd: KIND_CPU }]', "./nosuch.pbtxt"])
def test_a_broken_pbtxt_is_told_with_its_line(text):
    """A mistyped field, or a mistyped path."""
    with pytest.raises(SpecFault, match=r"config\.pbtxt cannot be parsed: \d:"):
        parse_pbtxt(text)
