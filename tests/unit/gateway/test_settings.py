"""Settings: our names, clearml-serving's names, and their precedence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.settings import Settings, grpc_options, parse_duration, variables_of

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def documented_defaults() -> dict[str, str]:
    """Return setting → the default in its row of the docs; empty for none."""
    rows = re.findall(r"^\| `TRITON_GATEWAY_(\w+)`.*? \| (`([^`]*)`|–) \|", PAGE.read_text(), re.M)
    return {name.lower(): value for name, _, value in rows}


@pytest.mark.parametrize("name", Settings.model_fields)
def test_the_defaults_are_the_documented_ones(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """After validation: a validator once turned the poll interval of 5 s into 5 minutes."""
    for variable in variables_of(name):
        monkeypatch.delenv(variable, raising=False)
    value = getattr(Settings(), name)
    shown = documented_defaults()[name]
    assert shown == (f"{value} s" if shown.endswith(" s") else str(value))


def test_durations_are_read_with_their_unit() -> None:
    """A bare number is seconds unless said otherwise. A refusal shows the form of a duration."""
    texts = {"5s": 5, "500ms": 0.5, "2m": 120, "1h": 3600, "7": 7, " 1.5 s": 1.5}
    assert texts == {text: parse_duration(text) for text in texts}
    for text in ("", "soon", "5 parsecs", "-1s", "1s2"):
        with pytest.raises(ValueError, match="write 5s"):
            parse_duration(text)


def test_clearmls_variables_are_read_and_ours_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a clearml-serving container works unchanged: its poll frequency is in minutes."""
    monkeypatch.setenv("CLEARML_SERVING_TASK_ID", "abc")
    monkeypatch.setenv("CLEARML_SERVING_PORT", "9090")
    monkeypatch.setenv("CLEARML_DEFAULT_TRITON_GRPC_ADDR", "triton:8001")
    monkeypatch.setenv("TRITON_GATEWAY_PORT", "7070")
    settings = Settings()
    assert ("abc", 7070, "triton:8001") == (settings.serving_task_id, settings.port, settings.triton_grpc)
    for value, seconds in (("1", 60), ("0.5", 30), ("5s", 5), ("1.0", 60)):
        monkeypatch.setenv("CLEARML_SERVING_POLL_FREQ", value)
        assert seconds == Settings().poll_frequency


def test_a_variable_without_our_prefix_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conda sets ``HOST``, platforms set ``PORT``."""
    ours = {variable for name in Settings.model_fields for variable in variables_of(name)}
    for name in Settings.model_fields:
        for variable in {name, name.upper()} - ours:
            monkeypatch.setenv(variable, "unusable")
    Settings()


@pytest.mark.parametrize(
    ("name", "values"),
    [("PORT", ["99999"]), ("TRITON_HTTP", ["triton:8000", ""]), ("ROUTING_KEY", ["", "x:", "x-account user.id"]),
     ("REPLICAS", ["-1", "2.5", "", "two gateways", "http://gateways"])],
)  # fmt: skip
def test_an_invalid_value_is_refused_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, values: list[str]
) -> None:
    """Before anything listens."""
    for value in values:
        monkeypatch.setenv(f"TRITON_GATEWAY_{name}", value)
        with pytest.raises(ValidationError, match=f"(?i){name}"):
            Settings()


def test_values_with_parts_are_taken_apart() -> None:
    """CLEARML_GRPC_* become channel options, numbers converted; addresses of files are rewritten by prefix."""
    environ = {"CLEARML_GRPC_MAX_SEND_MESSAGE_LENGTH": "5", "CLEARML_GRPC_X": "a", "OTHER": "1"}
    assert (("grpc.max_send_message_length", 5), ("grpc.x", "a")) == grpc_options(environ)
    settings = Settings(files_rewrite="http://a:8081=http://b:8081, http://c=http://d")
    assert {"http://a:8081": "http://b:8081", "http://c": "http://d"} == settings.files_rewrites()
