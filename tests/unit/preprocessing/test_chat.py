"""Chat templates, rendered as by transformers, in a sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompt_equals_that_of_transformers(tmp_path: Path, name: str) -> None:
    """Character for character."""
    from transformers.utils.chat_template_utils import render_jinja_template

    template = made(tmp_path, TEMPLATES[name], extra_special_tokens={"image_token": {"content": "<i>"}})
    assert template is not None
    (theirs,), _ = render_jinja_template(
        [MESSAGES], chat_template=TEMPLATES[name], add_generation_prompt=True, bos_token="<s>", eos_token="</s>",
        image_token="<i>",
    )  # fmt: skip
    assert theirs == template.render(MESSAGES)


def test_a_template_file_overrides_the_settings(tmp_path: Path) -> None:
    """transformers writes it since version 4.50. Of several named templates the default is used."""
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    template = made(tmp_path, named)
    assert template is not None
    assert "D" == template.render([])
    (tmp_path / "chat_template.jinja").write_text("F")
    again = ChatTemplate.from_folder(tmp_path)
    assert again is not None
    assert "F" == again.render([])


def test_model_without_a_template_has_none(tmp_path: Path) -> None:
    """No file, no template, or several without a default."""
    assert ChatTemplate.from_folder(tmp_path) is None
    assert made(tmp_path, [{"name": "rag", "template": "x"}]) is None


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% if %}", "cannot be compiled"),
        ("{% other %}", "cannot be compiled"),
        ("{{ messages | other }}", "cannot be compiled"),
        ("{% generation %}{{ 1 }}", "cannot be compiled"),
        ("{% for m in messages %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "cannot be compiled"),
        ("{{" + "(" * 5000 + ")" * 5000 + "}}", "cannot be compiled"),
        ("x" * 300_000, "has 300000 characters, at most 262144"),
    ],
    ids=range(7),
)
def test_template_that_cannot_be_compiled_is_the_bundles_fault(tmp_path: Path, source: str, reason: str) -> None:
    """It is found when the endpoint is built, not by its first caller."""
    with pytest.raises(InvalidBundle, match=reason):
        made(tmp_path, source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ range(10000000) | list }}",
        "{{ messages[0].content + 1 }}",
    ],
)
def test_a_template_error_or_sandbox_violation_is_an_error_of_the_request(tmp_path: Path, source: str) -> None:
    """The sandbox reports the reason without details of Python."""
    template = made(tmp_path, source)
    assert template is not None
    with pytest.raises(InvalidInput, match="chat template does not accept these messages"):
        template.render(MESSAGES)


def test_html_is_not_escaped(tmp_path: Path) -> None:
    """A prompt is not a web page: ``tojson`` keeps all characters."""
    template = made(tmp_path, "{{ messages[0].content | tojson }}{{ messages[0].content }}")
    assert template is not None
    text = MESSAGES[0]["content"]
    assert json.dumps(text) + text == template.render(MESSAGES)
