"""``triton-gateway drift``: references made of counts, and what the controller has found."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.commands.drift import command
from deploy.tools.errors import DeployError
from gateway.metrics import drift
from tests.sites import site
from tests.unit.deploy.cli.commands.on_store import invoke


def counted(variable: str, counts: dict[str, int], of: str = 'endpoint="e",version="1"') -> str:
    """The lines of a listed variable in a gateway's metrics."""
    name = "gateway_variable_enum_total"
    return "".join(f'{name}{{{of},variable="{variable}",value="{value}"}} {n}\n' for value, n in counts.items())


def number(variable: str, per_bin: int) -> str:
    """The lines of a number with 60 equal buckets from -2.9 to 3."""
    name = "gateway_variable_scalar_bucket"
    bounds = {**{(n - 30) / 10: n for n in range(1, 61)}, "+Inf": 60}
    return "".join(
        f'{name}{{endpoint="e",version="1",variable="{variable}",le="{le}"}} {n * per_bin}\n'
        for le, n in bounds.items()
    )


Served = tuple[dict[str, Any], str]


@pytest.fixture
def served() -> Iterator[Served]:
    """What a gateway answers by path, and its address."""
    answers: dict[str, Any] = {}
    with site(lambda asked: (200, answers[asked.path]) if asked.path in answers else (404, None)) as address:
        yield answers, address


run = functools.partial(invoke, command)


def test_a_reference_is_what_was_counted(served: Served, tmp_path: Path) -> None:
    """In about ten of the variable's own buckets; a listed value that never came is part of `other`.

    Of unusual words and embeddings only with the words and the mean that they were counted with.
    """
    answers, url = served
    page = number("x", 50) + counted("few", {"cat": 900})
    for name in ("a", "unusual_word_ratio", "embedding_cosine"):
        page += counted(name, {"cat": 3000, "dog": 0})
    answers["/metrics"] = page.encode()
    path = tmp_path / "reference.json"
    for learned in (None, {"words": ["a", "b"], "mean": [1.0, 0.5]}):
        if learned:
            answers["/v1/endpoints/e/1/learned"] = learned
        done = run("capture", "--url", url, "--endpoint", "e/1", "--output", path)
        found = drift.decode(path.read_text())
        more = {"unusual_word_ratio", "embedding_cosine"} if learned else set()
        assert (0, {"a", "x", *more}) == (done.return_value, set(found.bins))
    assert (("a", "b"), (1.0, 0.5)) == (tuple(found.words), tuple(found.mean))
    assert {"cat": 3000, "other": 0, "missing": 0} == found.bins["a"]
    assert (3000, True) == (sum(found.bins["x"].values()), 10 <= len(found.bins["x"]) <= 12)
    assert "a: 3000 values in 3 bins\n" in done.output
    assert "2 usual words" in done.output


@pytest.mark.parametrize(
    ("page", "named", "says"),
    [
        ('gateway_requests_total{endpoint="e",version="1"} 7\n', "e/1", "no variable of e/1 has been counted; "),
        (counted("a", {"cat": 10}), "e/1", "no variable of e/1 has more than 10 values; 1000 are needed"),
        (counted("a", {"cat": 10}), "e/7", "nothing was counted for e/7; counted: e/1; name one with --endpoint"),
        (counted("a", {"cat": 10}) + counted("a", {"cat": 9}, 'endpoint="e",version="2"'), "e",
         "e has several versions: e/1, e/2"),
    ],
    ids=["no variables", "too few", "another version", "several versions"],
)  # fmt: skip
def test_what_cannot_be_captured_is_told(served: Served, page: str, named: str, says: str) -> None:
    """A version without variables apart from one with few: more traffic would not help it."""
    served[0]["/metrics"] = page.encode()
    with pytest.raises(DeployError) as refused:
        run("capture", "--url", served[1], "--endpoint", named)
    assert refused.value.line().startswith(says)


def test_a_captured_reference_stays_in_its_folder(served: Served, tmp_path: Path) -> None:
    """Whatever a gateway calls its endpoint."""
    answers, url = served
    answers["/metrics"] = counted("a", {"cat": 600}, 'endpoint="../../../e",version="1"').encode()
    done = run(
        "capture", "--url", url, "--endpoint", "../../../e/1", "--least", "1",
        TRITON_GATEWAY_STATE_DIR=str(tmp_path / "deep" / "state"),
    )  # fmt: skip
    assert 0 == done.return_value, done.output
    (written,) = tmp_path.rglob("*.json")
    assert written.is_relative_to(tmp_path / "deep" / "state" / "references")


def row(**more: Any) -> dict[str, Any]:
    """A variable as `/v1/status` has it."""
    return {
        "endpoint": "e", "version": "1", "variable": "a", "n": 200.0, "days": 1234.5, "visible": 0.051,
        "bins": ["cat", "dog", "eel", "owl", "other"], "counts": [20, 120, 40, 20, 0],
        "reference": [0.6, 0.3, 0.05, 0.05, 0], "state": "steady", **more,
    }  # fmt: skip


def test_report_shows_what_the_controller_has_found(served: Served) -> None:
    """Of one endpoint if it is named; an endpoint that is not judged is an error, not "no drift"."""
    answers, url = served
    answers["/v1/status"] = {"drift": []}
    assert "nothing is judged" in run("report", "--url", url).stderr
    other = row(endpoint="f", version="", n=0, counts=[0] * 5, state="too few")
    answers["/v1/status"] = {"drift": [row(), other]}
    for named in ("e", "e/1", "/e/1/"):
        done = run("report", "--url", url, "--endpoint", named)
        assert 0 == done.return_value
        assert ["e", "1", "a", "200", "1,234.5", "5.1%", "cat", "-50.0%,", "dog", "+30.0%,", "eel", "+15.0%",
                "steady"] == done.stdout.splitlines()[-1].split()  # fmt: skip
    assert ["f", "-", "a", "0", "1,234.5", "5.1%", "-", "too", "few"] == run("report", "--url", url).stdout.split()[-9:]
    with pytest.raises(DeployError, match="no variable of other is judged") as caught:
        run("report", "--url", url, "--endpoint", "other")
    assert "variables of e/1, f are" == caught.value.hint


def test_a_program_learns_of_drift_by_the_exit_code(served: Served) -> None:
    """3, and the rows as the gateway has them."""
    answers, url = served
    answers["/v1/status"] = {"drift": [row(state="moved"), row(variable="x", state="drift")]}
    done = run("report", "--url", url, "--json")
    assert (3, answers["/v1/status"]["drift"]) == (done.return_value, json.loads(done.stdout))
    answers["/v1/status"]["drift"].pop()
    assert 0 == run("report", "--url", url).return_value
