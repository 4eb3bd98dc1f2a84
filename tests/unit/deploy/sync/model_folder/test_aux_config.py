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
    assert word == unquote(form.format(word))


@given(WORDS, st.sampled_from(["{}", '"{}"', "'{}'", '\\"{}\\"', "\\'{}\\'", "\\{}\\"]))
def test_a_string_field_is_the_same_in_every_quoting(word, form):
    """The same platform comes out however it was quoted."""
    assert word == parse_pairs({"platform": form.format(word)}).platform


@pytest.mark.parametrize(
    "value", [[4, 8], "[4,8]", "[4, 8]", '"[4,8]"', "4,8", {"0": 4, "1": 8}, {'"0"': "4", "1": "8"}]
)
def test_lists_may_be_written_in_every_form(value):
    """A list, a text that looks like one, or numbered elements."""
    assert [4, 8] == list(
        parse_pairs({"dynamic_batching": {"preferred_batch_size": value}}).dynamic_batching.preferred_batch_size
    )


@pytest.mark.parametrize("value", [{}, [], "", "{}", "true", True])
def test_an_empty_group_switches_it_on(value):
    """``dynamic_batching={}`` and its look-alikes say: batch dynamically, with Triton's defaults."""
    assert parse_pairs({"dynamic_batching": value}).WhichOneof("scheduling_choice") == "dynamic_batching"


def test_numbered_elements_enums_bools_and_maps_are_understood():
    """Every kind of protobuf field can be set from nested pairs."""
    message = parse_pairs(
        {
            "max_batch_size": "16",
            "instance_group": {"0": {"kind": "KIND_CPU", "count": 2}, "1": {"kind": '"KIND_GPU"', "gpus": "[0, 1]"}},
            "model_transaction_policy": {"decoupled": "true"},
            "parameters": {"threads": 3, "mode": {"string_value": '"a b"'}},
            "metric_tags": {"team": "search"},
        }
    )
    assert (16, True, "search") == (
        message.max_batch_size,
        message.model_transaction_policy.decoupled,
        message.metric_tags["team"],
    )
    assert [(2, 2), (0, 1)] == [(g.count, g.kind) for g in message.instance_group]
    assert {"threads": "3", "mode": "a b"} == {k: v.string_value for k, v in message.parameters.items()}


def test_an_unknown_field_is_named_with_the_nearest_known_one():
    """A typing error is told where it is made, at every depth."""
    with pytest.raises(SpecFault, match=r"has no field 'max_batchsize'; did you mean max_batch_size\?"):
        parse_pairs({"max_batchsize": 4})
    with pytest.raises(SpecFault, match=r"DynamicBatching.*prefered_batch_size.*did you mean preferred_batch_size\?"):
        parse_pairs({"dynamic_batching": {"prefered_batch_size": [1]}})
    with pytest.raises(SpecFault, match=r"--aux-config.*Kind\" has no value named KIND_CUP"):
        parse_pairs({"instance_group": [{"kind": "KIND_CUP"}]})


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({"max_batch_size": "many"}, "max_batch_size: many.*Couldn't parse integer"),
        ({"max_batch_size": [1]}, r"max_batch_size: \[1\].*Couldn't parse integer"),
        ({"dynamic_batching": 5}, "dynamic_batching: 5"),
        ({"model_transaction_policy": {"decoupled": "maybe"}}, 'decoupled: maybe.*Expected "true" or "false"'),
        ({"instance_group": "KIND_CPU"}, r"instance_group: KIND_CPU"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_what_was_said(pairs, message):
    """Nothing a user types ends in a Python traceback."""
    with pytest.raises(SpecFault, match=message):
        parse_pairs(pairs)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["input", "0", "1", "kind", "parameters", "x", "dynamic_batching", "platform"]),
                inner,
                max_size=3,
            )
        ),
        max_leaves=8,
    )
)
def test_any_value_is_applied_or_refused_never_worse(value):
    """Total: whatever was stored in the Task, the answer is a config or a SpecFault."""
    with contextlib.suppress(SpecFault):
        parse_pairs({"instance_group": value, "parameters": value, "dynamic_batching": value})


def test_a_pbtxt_with_an_unknown_field_names_field_place_and_suggestion():
    """The message says where in the file, and what was probably meant."""
    with pytest.raises(
        SpecFault, match=r"ModelInstanceGroup has no field 'knd' \(line:column 2:\d+\); did you mean kind"
    ):
        parse_pbtxt('platform: "x"\ninstance_group [{ knd: KIND_CPU }]')


def test_a_broken_pbtxt_is_told_with_its_line():
    """Text that is not pbtxt at all, such as a mistyped path, gives one clear line."""
    with pytest.raises(SpecFault, match=r"config\.pbtxt cannot be parsed: 1:"):
        parse_pbtxt("./nosuch.pbtxt")
