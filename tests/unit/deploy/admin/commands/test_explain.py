"""``triton-gateway drift explain`` on a log that the gateway's payload log wrote."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from deploy.admin.commands.drift import command
from deploy.tools.errors import DeployError
from gateway.payloads.files import Folder
from gateway.payloads.log import PayloadLog
from gateway.payloads.rules import Share, redaction
from gateway.trace import Trace
from tests.unit.deploy.admin.test_domain_classifier import texts

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """English before noon, a fifth German with addresses of mail after it; version 2 gets all of what came after."""
    now = [NOON - 3600]
    folder = Folder(tmp_path / "log", max_bytes=1 << 24, keep=1e9, free=lambda: 1 << 40, clock=lambda: now[0])
    kept = PayloadLog(
        folder, (Share("*", 1.0),), count=lambda _outcome, _records: None, redact=redaction("email"),
        clock=lambda: now[0],
    )  # fmt: skip
    later = [f"{text} me@example.org" if number % 5 == 0 else text
             for number, text in enumerate(texts(2, 400, german=0.2))]  # fmt: skip
    for at, version, some in ((NOON - 3600, "1", texts(1, 400)), (NOON + 60, "2", later)):
        now[0] = at
        for text in some:
            trace = Trace("id")
            trace.url, trace.endpoint, trace.version, trace.outcome = f"e/{version}", "e", version, "ok"
            trace.body, trace.answer = {"text": text}, {"label": "good"}
            kept.answered(trace)
        kept.write()
    folder.close()
    return tmp_path / "log"


def run(*arguments: object) -> Any:
    """Call the command; errors of ours come through."""
    return CliRunner().invoke(
        command, ["explain", *(str(one) for one in arguments)], catch_exceptions=False, standalone_mode=False
    )


def test_the_log_of_up_is_found_in_its_state_folder(log: Path, tmp_path: Path) -> None:
    """`--log` is not needed; a missing log is an error."""
    log.rename(tmp_path / "payloads")
    found = run("--endpoint", "e", "--since", "2026-11-20T12:00", "--state-dir", tmp_path)
    assert "400 texts compared with 400" in found.output
    with pytest.raises(DeployError, match="there is no payload log in"):
        run("--endpoint", "e", "--since", "2026-11-20T12:00", "--state-dir", tmp_path / "none")


def test_texts_since_a_time_are_held_against_those_before(log: Path) -> None:
    """The output has words, examples and the AUC; redacted texts stay redacted."""
    found = run("--endpoint", "e", "--since", "2026-11-20T12:00", "--log", log)
    assert 3 == found.return_value
    assert "400 texts compared with 400" in found.output
    assert "as if about" in found.output
    rose = next(line for line in found.output.splitlines() if line.startswith("words that rose"))
    assert "und " in rose
    assert "[email] 20.0% (was 0.0%)" in rose
    assert "example.org" not in found.output


def test_versions_and_data_sets_are_compared_alike(log: Path, tmp_path: Path) -> None:
    """The result is also available as JSON."""
    found = run("--endpoint", "e", "--version", "2", "--compare", "1", "--log", log, "--json")
    assert json.loads(found.output)["is_apart"]
    data = tmp_path / "train.csv"
    data.write_text("review\n" + "\n".join(texts(3, 300)) + "\n")
    alike = run("--endpoint", "e", "--to", "2026-11-20T12:00", "--log", log, "--against", data, "--text-column",
                "review")  # fmt: skip
    assert 0 == alike.return_value
    assert "no difference found" in alike.output


def test_at_most_so_many_texts_are_looked_at(log: Path) -> None:
    """The texts are a random sample."""
    found = run("--endpoint", "e", "--since", "2026-11-20T12:00", "--log", log, "--most", "100", "--json")
    assert (100, 100) == tuple(json.loads(found.output)[name] for name in ("before", "now"))


def test_too_few_texts_are_no_reason_to_guess(log: Path) -> None:
    """The message says how many texts there are, and which endpoints the log has."""
    with pytest.raises(DeployError, match="too few texts to compare: later texts of e: 0; 50 are needed"):
        run("--endpoint", "e", "--since", "2026-11-21", "--log", log)
    with pytest.raises(DeployError) as refused:
        run("--endpoint", "other", "--since", "2026-11-20T12:00", "--log", log)
    assert "has requests of e" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of --since"),
        (["--since", "2h", "--compare", "1"], "give one of --since"),
        (["--compare", "1"], "--compare needs --version"),
        (["--since", "yesterday"], "is not a time"),
        (["--since", "99999999w"], "is not a time"),
    ],
)
def test_what_is_not_meant_is_refused(log: Path, arguments: list[str], message: str) -> None:
    """The message says what to write."""
    with pytest.raises(click.UsageError, match=message):
        run("--endpoint", "e", "--log", log, *arguments)
