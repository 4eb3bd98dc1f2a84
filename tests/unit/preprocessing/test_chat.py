"""Chat templates, rendered as by transformers, in a sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from preprocessing import chat_sandbox
from preprocessing.chat import ChatTemplate
from preprocessing.errors import InvalidBundle, InvalidInput

TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
        "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "llama": (
        "{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}{% continue %}{% endif %}\n"
        "  {%- if loop.index0 > 3 %}{% break %}{% endif %}[{{ message.role | upper }}] {{ message.content | trim }}"
        "{{ eos_token }}{% endfor %}"
    ),
    "generation": (
        "{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}\n"
        "{% set end = eos_token %}{{ message.content }}{{ end }}{%- endgeneration -%}\n {{ end }}"
        "{% else %}{{ message.role }}: {{ message.content }}{% endif %}{% endfor %}"
    ),
    "json": (
        "{{ messages | tojson(separators=(',', ':'), sort_keys=true) }}{{ messages[0] | tojson(indent=2) }}"
        "{{ messages[1].content | tojson(ensure_ascii=true) }}{{ messages | tojson(sort_keys=True, indent=1) }}"
    ),
    "tokens of its own": "{{ bos_token }}{{ image_token }}{{ messages[0].role }}{{ dict(a=1) }}",
}
MESSAGES = [
    {"role": "system", "content": "Be <b>brief</b> & 'kind'."},
    {"role": "user", "content": " Grüße 😀\n"},
    {"role": "assistant", "content": "你好"},
    {"role": "user", "content": "\"quoted\""},
]  # fmt: skip


def made(folder: Path, template: Any, **fields: Any) -> ChatTemplate | None:
    """Return the template of a model folder."""
    settings = {"chat_template": template, "bos_token": {"content": "<s>"}, "eos_token": "</s>", **fields}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return ChatTemplate.from_folder(folder)


LONG_TALK = [
    {"role": ("user", "assistant")[i % 2], "content": f"{i}: <think>a</think> Grüße 😀\n" * 20} for i in range(1000)
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompt_equals_that_of_transformers(tmp_path: Path, name: str) -> None:
    """Character for character, also of a thousand messages."""
    from transformers.utils.chat_template_utils import render_jinja_template

    template = made(tmp_path, TEMPLATES[name], extra_special_tokens={"image_token": {"content": "<i>"}})
    talks, tokens = [MESSAGES, LONG_TALK], {"bos_token": "<s>", "eos_token": "</s>", "image_token": "<i>"}
    theirs, _ = render_jinja_template(talks, chat_template=TEMPLATES[name], add_generation_prompt=True, **tokens)
    assert theirs == [template.render(talk) for talk in talks]


def test_where_a_template_is_read(tmp_path: Path) -> None:
    """A file of its own, which transformers writes since 4.50, before the settings; of several the default one."""
    assert ChatTemplate.from_folder(tmp_path) is None
    assert made(tmp_path, [{"name": "rag", "template": "x"}]) is None
    named = made(tmp_path, [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}])
    (tmp_path / "chat_template.jinja").write_text("F")
    own = ChatTemplate.from_folder(tmp_path)
    assert named is not None
    assert own is not None
    assert ("D", "F") == (named.render([]), own.render([]))


UNUSABLE = [
    "{% if %}", "{% other %}", "{{ messages | other }}", "{% generation %}{{ 1 }}",
    "{% for m in messages %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    "{{" + "(" * 5000 + ")" * 5000 + "}}", "x" * 300_000,
]  # fmt: skip


@pytest.mark.parametrize("source", UNUSABLE, ids=range(len(UNUSABLE)))
def test_template_that_cannot_be_compiled_is_the_bundles_fault(tmp_path: Path, source: str) -> None:
    """It is found when the endpoint is built, not by its first caller; so is one that is too long."""
    with pytest.raises(InvalidBundle, match=r"cannot be compiled|has 300000 characters, at most 262144"):
        made(tmp_path, source)


VIOLATIONS = [
    "{{ raise_exception('roles must alternate') }}", "{{ messages.__class__.__mro__ }}",
    "{{ ''.__class__.__base__.__subclasses__() }}", "{{ messages.append(1) }}", "{{ range(10000000) | list }}",
    "{{ messages[0].content + 1 }}",
]  # fmt: skip


@pytest.mark.parametrize("source", VIOLATIONS)
def test_a_template_error_or_sandbox_violation_is_an_error_of_the_request(source: str) -> None:
    """The sandbox reports the reason without details of Python."""
    with pytest.raises(InvalidInput, match="chat template does not accept these messages"):
        ChatTemplate(source, {}).render(MESSAGES)


_TURNS = "range(100000)"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in RANGE %}{% for b in RANGE %}{% endfor %}{% endfor %}",
        "{% for a in RANGE %}{% for b in RANGE %}{% continue %}{% endfor %}{% endfor %}",
        "{% for a in RANGE %}{% for b in RANGE if false %}{% endfor %}{% endfor %}",
        "{% set check_time = 1 %}{% for a in RANGE %}{% for b in RANGE %}{{ check_time }}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% macro m(n) %}{% if n %}{{ caller() }}{{ caller() }}{% endif %}{% endmacro %}"
        "{% for a in RANGE %}{% for b in RANGE %}{% call m(1) %}{% endcall %}{% endfor %}{% endfor %}",
        "{% for a in RANGE recursive %}{{ loop(RANGE) if loop.depth < 9 }}{% endfor %}",
        "{% generation %}{% for a in RANGE %}{% for b in RANGE %}{% endfor %}{% endfor %}{% endgeneration %}",
        "{% filter upper %}{% for a in RANGE %}{% for b in RANGE %}{% endfor %}{% endfor %}{% endfilter %}",
    ],
)
def test_a_template_that_does_not_end_is_an_error_of_the_request(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would run for hours, in a thread that nothing can stop."""
    monkeypatch.setattr(chat_sandbox, "MAX_S", 0.05)
    template = ChatTemplate(source.replace("RANGE", _TURNS), {})
    with pytest.raises(InvalidInput, match=r"it did not end within 0\.05 s"):
        template.render(MESSAGES)


LONG = "{% set long = 'a' * 10**6 %}{{ MADE }}"
DOUBLED = "{% set ns = namespace(s=FIRST) %}{% for i in range(60) %}{% set ns.s = STEP %}{% endfor %}{{ ns.s }}"
TOO_LARGE = [
    *(LONG.replace("MADE", made) for made in (
        "'a' * 10**9", "10**9 * 'a'", "[0] * 10**9", "10**(10**9)", "(-2)**(30**9)", "'a' | center(10**9)",
        "'a'.ljust(10**9)", "'a' | indent(10**9)", "long.replace('a', long)", "long | replace('a', long)",
        "long.join(long)", "(long * 4) ~ (long * 4)", "long * 4 + long * 4", "[long] * 4 * 10**7",
    )),
    *(DOUBLED.replace("FIRST", first).replace("STEP", step) for first, step in (
        ("'ab'", "ns.s + ns.s"), ("'ab'", "ns.s ~ ns.s"), ("'ab'", "ns.s * 2"), ("['ab']", "ns.s + ns.s"),
        ("'ab'", "'%s%s' | format(ns.s, ns.s)"), ("'ab'", "ns.s.replace('a', ns.s)"), ("3", "ns.s * ns.s"),
    )),
    "{% for i in range(100000) %}{{ messages }}{% endfor %}",
]  # fmt: skip
"""One operation that could take gigabytes, or minutes that no clock interrupts; a value that is doubled for ever; a
prompt of a hundred thousand copies.
"""


@pytest.mark.parametrize("source", TOO_LARGE, ids=range(len(TOO_LARGE)))
def test_a_template_cannot_make_a_value_of_any_size(source: str) -> None:
    """By one operation, by a loop, or as the prompt itself."""
    with pytest.raises(InvalidInput, match="too large"):
        ChatTemplate(source, {}).render(MESSAGES)
