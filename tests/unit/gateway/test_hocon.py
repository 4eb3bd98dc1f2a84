"""Sections are read exactly as by pyhocon, within limits, and without access to other files."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyhocon
import pytest
from clearml.utilities.config import config_dict_to_text
from clearml.utilities.pyhocon import ConfigFactory
from hypothesis import given, settings
from hypothesis import strategies as st
from pyhocon.config_parser import ConfigParser

from gateway import hocon

# As a real ClearML server answered them (clearml-serving 1.3.5), shortened.
RECORDED = {
    "endpoints": '''test_onnx/1 {
  engine_type = "triton"
  serving_url = "test_onnx"
  model_id = "bd81fa0bd3234dc2ac52dfde748723cb"
  version = "1"
  preprocess_artifact = "py_code_test_onnx_1"
  input_size = [[1, 28, 28]]
  input_type = ["float32"]
  input_name = ["INPUT__0"]
  output_size = [[-1, 10]]
  auxiliary_cfg {
    platform = "\\"onnxruntime_onnx\\""
    dynamic_batching {
      preferred_batch_size = [4, 8]
      max_queue_delay_microseconds = 100
    }
    max_batch_size = 16
  }
}
test_multi {
  engine_type = "triton"
  version = ""
  input_size = [[1, 3, 4], [1, 3]]
  input_type = ["float32", "int64"]
  auxiliary_cfg = """platform: "onnxruntime_onnx"
max_batch_size: 16
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
}
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
}
"my.model.v1" {
  serving_url = "my.model.v1"
  auxiliary_cfg {
    platform = "\\\\onnxruntime_onnx\\\\"
    response_cache {
      enable = true
    }
  }
}''',
    "canary": """test_canary {
  endpoint = "test_canary"
  weights = [0.1, 0.9]
  load_endpoints = ["test_onnx/2", "test_onnx/1"]
}
test_canary_prefix {
  weights = [0.25, 0.75]
  load_endpoints = []
  load_endpoint_prefix = "test_onnx"
}""",
    "metric_logging": """test_onnx/1 {
  endpoint = "test_onnx/1"
  log_frequency = 0.5
  metrics {
    x0 {
      type = "scalar"
      buckets = [0.0, 0.1, 0.5, 1.0]
    }
    latency {
      type = "value"
      buckets = null
    }
  }
}
"test_multi/*" {
  endpoint = "test_multi/*"
}""",
}

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
    """Return the fast reader's value; None if it leaves the text to pyhocon."""
    try:
        return hocon._Reader(text.expandtabs()).read()
    except hocon._Unusual:
        return None


@pytest.fixture(autouse=True, scope="module")
def includes_are_refused_here_only() -> Iterator[None]:
    """What is read here is read in a process of its own elsewhere, which refuses includes until its end."""
    with pytest.MonkeyPatch.context() as patch:
        for place, name in (
            (pyhocon.ConfigFactory, "parse_file"), (pyhocon.ConfigFactory, "parse_URL"),
            (ConfigParser, "resolve_package_path"),
        ):  # fmt: skip
            patch.setattr(place, name, vars(place)[name])
        yield


def pyhocons(text: str) -> Any:
    """Return pyhocon's value; read here, because a process for each text takes long."""
    try:
        return json.loads(json.dumps(hocon._judge(text)))
    except hocon.Unreadable as error:
        return str(error)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_sections_are_read_by_the_fast_reader_as_by_pyhocon(name: str) -> None:
    assert ours(RECORDED[name]) == pyhocons(RECORDED[name]) is not None


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=3))
def test_what_the_sdk_writes_is_read_as_pyhocon_reads_it(section: dict[str, Any]) -> None:
    """By either reader: the fast one never returns another value than pyhocon."""
    for write in (config_dict_to_text, json.dumps):
        try:
            text = write(section)
        except ValueError:
            continue
        found = ours(text)
        assert found is None or json.dumps(found) == json.dumps(pyhocons(text))


@settings(max_examples=200, deadline=None)
@given(SCRAPS)
def test_any_text_that_the_fast_reader_takes_means_the_same_to_pyhocon(text: str) -> None:
    found = ours(text)
    assert found is None or json.dumps(found) == json.dumps(pyhocons(text))


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["e", "e/1", "a-b_c", "a.b/2", "A b"]),
        st.dictionaries(
            st.sampled_from(["engine_type", "aux", "size"]),
            st.one_of(
                st.text("abc\"\\ \n{}=", max_size=9).filter(lambda t: '"""' not in t and t[-1:] != '"'),
                st.lists(st.lists(st.integers())), st.booleans(), st.floats(-9, 9),
                st.dictionaries(st.just("k"), st.integers()),
            ),
        ),
    )
)  # fmt: skip
def test_the_sdks_form_is_read_without_pyhocon(section: dict[str, Any]) -> None:
    """pyhocon is slow for a large service."""
    assert ours(config_dict_to_text(section)) is not None


@pytest.mark.parametrize(
    "text",
    [
        "a = b # comment", "a = { b = 1 } { c = 2 }", "a = unquoted text\nb : 2", "a.b.c = 1", "a = 1\na = 2",
        "a { x = 1 }\na { y = 2 }", "// first\na = [1\n2]", "a = [1, 2,]\nb = [x, y]", "a += 1\n", "é { b = 1 }",
    ],
)  # fmt: skip
def test_hocon_written_by_hand_is_still_read(text: str) -> None:
    """Comments, merging, unquoted texts and paths are read by pyhocon in its process."""
    assert ours(text) is None or json.dumps(ours(text)) == json.dumps(pyhocons(text))
    if "+=" not in text and not text.startswith("é"):
        assert isinstance(hocon.parse(text), dict)


def test_includes_touch_neither_files_nor_addresses(tmp_path: Path) -> None:
    secret = tmp_path / "secret.conf"
    secret.write_text("stolen = yes")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/x"
        for include in (
            f'include "{secret}"', f'include file("{secret}")', f'a {{ include required(file("{secret}")) }}',
            f'include url("{address}")', f'include "{address}"', f'a = [include url("{address}")]',
            f'include url("{secret.as_uri()}")', f'INCLUDE "{secret}"', 'include package("os:path")',
            f'x = 1\n\n  include   "{secret}"',
        ):  # fmt: skip
            with pytest.raises(hocon.Dynamic, match="never followed"):
                hocon.parse(include)
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.mark.parametrize("text", ["a = ${HOME}", "a = x ${?HOME}", "a = 5 seconds", "a { b = ${a.c}, c = 1 }"])
def test_substitutions_and_units_are_refused(text: str) -> None:
    with pytest.raises(hocon.Dynamic):
        hocon.parse(text)


@pytest.mark.parametrize("before", ["", "x = unquoted\n"])
@pytest.mark.parametrize(("left", "right"), ["[]", "{}", ("{a", "}"), ("a{", "}"), ("a=[{b=", "}]")])
def test_three_thousand_brackets_are_refused_at_once(before: str, left: str, right: str) -> None:
    with pytest.raises(hocon.Unreadable):
        hocon.parse(f"{before}a = {left * 3000}{right * 3000}")


def test_texts_that_are_too_large_are_refused() -> None:
    with pytest.raises(hocon.Unreadable, match="characters"):
        hocon.parse("a = 1\n" * (hocon.MAX_CHARS // 6 + 1))
    with pytest.raises(hocon.Unreadable, match="more than 10,000 entries"):
        hocon.parse("".join(f"a{i} = 1\n" for i in range(10_001)))
    with pytest.raises(hocon.Unreadable, match=r"more than 10,000 entries|took more"):
        hocon.parse("".join(f"a{i} = 1\n" for i in range(10_001)) + "b = unquoted", seconds=2)


def test_pyhocon_is_killed_at_its_limit_and_the_next_text_is_read() -> None:
    slow = "\n".join(f"e{i} {{ a = unquoted, b = [1, 2, 3] }}" for i in range(9_000))
    with pytest.raises(hocon.Unreadable, match=r"took more than 1 s"):
        hocon.parse(slow, seconds=1)
    assert hocon.parse("a = b") == {"a": "b"}


def test_pyhocons_process_gets_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, program = tmp_path / "environment", tmp_path / "python"
    program.write_text(f'#!/bin/sh\nenv > {seen}\nexec {sys.executable} "$@"\n')
    program.chmod(0o700)
    monkeypatch.setenv("CLEARML_API_SECRET_KEY", "s3cret")
    monkeypatch.setattr(hocon.sys, "executable", str(program))
    assert hocon.parse("a = b") == {"a": "b"}
    assert "PATH=" in seen.read_text()
    assert "s3cret" not in seen.read_text()


def test_an_unchanged_text_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is readable or not."""
    parsed = Mock(wraps=hocon.parse)
    monkeypatch.setattr(hocon, "parse", parsed)
    good, bad = "a { unchanged = 1 }", "a = " + "[" * 100
    assert hocon.read(good) is hocon.read(good)
    for _ in range(2):
        with pytest.raises(hocon.Unreadable):
            hocon.read(bad)
    assert [call.args[0] for call in parsed.call_args_list] == [good, bad]


def test_a_text_that_failed_for_lack_of_memory_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later, so that a busy machine is not loaded more."""
    text, now = "a = not quoted b", time.monotonic()
    monkeypatch.setattr(hocon.sys, "executable", "/nowhere/python")
    with pytest.raises(hocon.Unsettled, match=r"pyhocon cannot be started: No such file"):
        hocon.read(text)
    monkeypatch.undo()
    with pytest.raises(hocon.Unsettled):
        hocon.read(text)
    monkeypatch.setattr(hocon.time, "monotonic", lambda: now + 400)
    assert hocon.read(text) == {"a": "not quoted b"}


@pytest.mark.parametrize(
    ("typed", "read"), [("30m", "1800s"), ("2s", "2s"), ("1d", "86400s"), ("1500 seconds", "1500s"), ("90m", "5400s")]
)
def test_a_duration_from_the_stock_cli_is_read(typed: str, read: str) -> None:
    """`--aux-config gateway.unload_after=30m`: pyhocon makes it an object, whose name the clearml SDK writes."""
    after = ConfigFactory.parse_string(f"after = {typed}")["after"]
    text = config_dict_to_text({"e": {"auxiliary_cfg": {"gateway": {"unload_after": after}}, "kept": repr(after)}})
    with pytest.raises(hocon.Unreadable):
        hocon.parse(text)
    expected = {"auxiliary_cfg": {"gateway": {"unload_after": read}}, "kept": repr(after)}
    assert {"e": expected} == hocon.read(text) == hocon.parse(hocon.mended(text))
