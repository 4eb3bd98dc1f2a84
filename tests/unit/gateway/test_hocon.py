"""Sections are read as the clearml SDK reads them, within limits; what it does not write is refused."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from typing import Any

import pytest
from clearml.utilities.config import config_dict_to_text, text_to_config_dict
from clearml.utilities.pyhocon import ConfigFactory
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import hocon

# As a real ClearML server answered them (clearml-serving 1.3.5), shortened.
RECORDED = '''test_onnx/1 {
  engine_type = "triton"
  serving_url = "test_onnx"
  model_id = "bd81fa0bd3234dc2ac52dfde748723cb"
  version = "1"
  preprocess_artifact = "py_code_test_onnx_1"
  input_size = [[1, 28, 28]]
  output_size = [[-1, 10]]
  auxiliary_cfg {
    platform = "\\"onnxruntime_onnx\\""
    dynamic_batching {
      preferred_batch_size = [4, 8]
    }
  }
}
test_multi {
  version = ""
  input_size = [[1, 3, 4], [1, 3]]
  auxiliary_cfg = """platform: "onnxruntime_onnx"
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
}
"my.model.v1" {
  serving_url = "my.model.v1"
  auxiliary_cfg {
    platform = "\\\\onnxruntime_onnx\\\\"
    enable = true
  }
}'''

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
SCALARS = st.one_of(
    st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none(), TEXTS,
    st.sampled_from(['platform: "x"\nmax: 4\n', '"""', 'a"', "\t", "\r\n", "# x", "// x", "${x}", "C:\\new", "5 s"]),
)  # fmt: skip
KEYS = st.one_of(
    st.text(st.sampled_from("abcxyz019_/-. :=#$+@éß{}[],\"'"), min_size=1, max_size=8),
    st.sampled_from(["include", "include x", "true", "a.b", "e/1", "5", "a b"]),
)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYS, v, max_size=3), max_leaves=6
)  # fmt: skip
SCRAPS = st.lists(
    st.sampled_from(
        ["a", "b/1", '"q"', '"a.b"', '""', '"""m\nn"""', '""""q""""', "1", "-2.5", "1e3", "007", "5", "s", "true",
         "null", "include", "{", "}", "{", "}", "[", "]", "=", " = ", ":", " ", "\n", "\n", ",", "#", "//", "\t",
         "\r\n", "\\", "$", "+=", '"\\u00e9\\n\\/"'],
    ),
    max_size=14,
).map("".join)  # fmt: skip


def ours(text: str) -> Any:
    """Return what the gateway reads; None if it refuses the text."""
    try:
        return hocon.parse(text)
    except hocon.Unreadable:
        return None


def same(text: str) -> bool:
    """Whether what the gateway reads, if anything, has the SDK's values in its order; the SDK may refuse the text."""
    found = ours(text)
    try:
        return found is None or json.dumps(found) == json.dumps(text_to_config_dict(text), default=lambda _: None)
    except ValueError:
        return True


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('a = ["", "b"]', ["b"]), ('a = "x\\ny\\q"', "x\ny\\q"), ("a = -inf", "-inf"), ("a = 1e-07", 1e-7),
        ('a = """x "y"\n"""', 'x "y"\n'), ("a { b/c d = 1 }", {"b/c d": 1}), ("a = null", None),
        ('a = "q\\"\\\\ \\n{}=é"', 'q"\\ \n{}=é'),
        ("a { include b { c = 1 } }", {"include b": {"c": 1}}),
        ('a {\n  w = [0.1, 0.9]\n  l = []\n  "t/*" {\n    b = null\n  }\n}',
         {"w": [0.1, 0.9], "l": [], "t/*": {"b": None}}),
    ],
)  # fmt: skip
def test_peculiar_values_are_read_as_by_the_sdk(text: str, value: object) -> None:
    assert ours(text) == {"a": value}
    assert same(text)
    assert ["test_onnx/1", "test_multi", "my.model.v1"] == list(ours(RECORDED))
    assert same(RECORDED)


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=3))
def test_what_the_sdk_writes_is_read_as_it_reads_it_or_refused(section: dict[str, Any]) -> None:
    for write in (config_dict_to_text, json.dumps):
        with suppress(ValueError):
            text = write(section)
            assert same(text)


@settings(max_examples=600, deadline=None)
@given(SCRAPS)
def test_any_text_that_is_read_means_the_same_to_the_sdk(text: str) -> None:
    assert same(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = b # comment", "line 1: write it as JSON"), ("a { b = 1 }\nc = unquoted text", "line 2: write it as JSON"),
        ("a = 1\na = 2", "line 2: a is there twice"), ("a += 1\n", "line 1"), ("a = [1\n", "line 2"),
        ('b//c = "q"', "line 1"),
        ("// x", "line 1"), ("a = ${HOME}", "line 1"), ("a = x ${?HOME}", "line 1"),
        ("a = 5 seconds", "line 1"), ("[1, 2]", "line 1"),
        *((include, "line") for include in (
            'include "/etc/passwd"', 'a { include required(file("/etc/passwd")) }', 'include url("http://127.0.0.1/x")',
            'a = [include url("http://127.0.0.1/x")]', 'INCLUDE "/x"', 'include package("os:path")',
            'x = 1\n\n  include "/x"',
        )),
        ("a = 1\n" * (hocon.MAX_CHARS // 6 + 1), "characters"),
        ("".join(f"a{i} = 1\n" for i in range(10_001)), "more than 10,000 entries"),
        *((f"a = {left * 3000}{right * 3000}", "")
          for left, right in ("[]", "{}", ("{a", "}"), ("a{", "}"), ("a=[{b=", "}]"))),
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_what_the_sdk_does_not_write_is_refused_with_its_line(text: str, message: str) -> None:
    """Nothing is read from files, addresses or the environment; depth and size have limits."""
    with pytest.raises(hocon.Unreadable) as refused:
        hocon.parse(text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("typed", "read"), [("30m", "1800s"), ("2s", "2s"), ("1d", "86400s"), ("1500 seconds", "1500s"), ("90m", "5400s")]
)
def test_a_duration_from_the_stock_cli_is_read(typed: str, read: str) -> None:
    """`--aux-config gateway.unload_after=30m`: the CLI makes it an object, whose name the clearml SDK writes."""
    after = ConfigFactory.parse_string(f"after = {typed}")["after"]
    text = config_dict_to_text({"e": {"auxiliary_cfg": {"gateway": {"unload_after": after}}, "kept": repr(after)}})
    expected = {"auxiliary_cfg": {"gateway": {"unload_after": read}}, "kept": repr(after)}
    assert {"e": expected} == hocon.read(text)
