"""Makes references of a data set: through a running endpoint, or from the texts alone without a model.

Called by ``drift capture --from``. Through an endpoint, the gateway counts as it counts live requests, so the reference
has all of its variables. Without a model, the gateway's own functions count the texts here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from deploy.cli import drift_counts
from deploy.cli.data_rows import Text
from deploy.cli.terminal import Terminal
from deploy.tools import http_client
from deploy.tools.errors import DeployError

_TIMEOUT_S: Final = 120.0
_TRIES: Final = 10
"""Attempts per batch while the endpoint is overloaded (429, 503)."""
_PROGRESS: Final = 5000
"""Rows between two progress lines."""


def counted(rows: Iterable[Text], terminal: Terminal) -> Iterator[Text]:
    """Pass ``rows`` on, and show how many were read."""
    for number, row in enumerate(rows, 1):
        if number % _PROGRESS == 0:
            terminal.live(f"{number:,} texts read")
        yield row
    terminal.clear()


def references_of(found: Sequence[Text], terminal: Terminal) -> dict[str, drift_counts.Bins]:
    """Return references of the variables of texts, and of their labels if they have any. Nothing is sent."""
    return drift_counts.of_texts(
        (one.text for one in _shown(found, terminal)), [one.label for one in found if one.label]
    )


def _shown(found: Sequence[Text], terminal: Terminal) -> Iterator[Text]:
    for number, one in enumerate(found, 1):
        yield one
        if number % _PROGRESS == 0:
            terminal.live(f"{number:,} of {len(found):,} texts examined")
    terminal.clear()


def send(
    gateway: str, url: str, found: Sequence[Text], terminal: Terminal, *, rate: float, batch: int
) -> tuple[int, int]:
    """Send all texts to the endpoint version ``url``, at most ``rate`` a second.

    Returns the number of texts whose answered label equals that of their row, and the number of texts with both. Raises
    ``DeployError`` that names the refused rows and the reason.
    """
    agreed = labelled = done = 0
    began = time.monotonic()
    rows = iter(found)
    while some := [*islice(rows, batch)]:
        left = began + done / rate - time.monotonic()
        if left > 0:
            time.sleep(left)
        answer = _send_batch(gateway, url, some)
        done += len(some)
        for row, result in zip(some, _results(answer, len(some)), strict=False):
            if row.label and isinstance(result, Mapping) and "label" in result:
                labelled += 1
                agreed += str(result["label"]) == row.label
        to_go = (len(found) - done) / rate
        terminal.live(f"{done:,} of {len(found):,} texts answered, at least {to_go:.0f} s to go")
    terminal.clear()
    return agreed, labelled


def _send_batch(gateway: str, url: str, some: Sequence[Text]) -> Any:
    kind, _, first = some[0].where.partition(" ")
    where = some[0].where if len(some) == 1 else f"{kind}s {first} to {some[-1].where.partition(' ')[2]}"
    answer: http_client.Answer | None = None
    for _ in range(_TRIES):
        answer = http_client.call_gateway(
            f"{gateway}/serve/{url}", body={"text": [one.text for one in some]}, timeout=_TIMEOUT_S
        )
        if answer is None:
            raise DeployError(
                f"nothing answers at {gateway}", hint="check that the gateway runs, and that --url is its address"
            )
        if answer.status == 200:
            return answer.content
        if answer.status not in (429, 503):
            break
        time.sleep(min(float(answer.headers.get("retry-after", "1") or 1), 10.0))
    assert answer is not None  # noqa: S101 - as above
    said = answer.content if isinstance(answer.content, Mapping) else {}
    raise DeployError(
        f"{url} answered {answer.status} to {where}: {said.get('error', 'no reason given')}",
        hint=str(said.get("hint") or "--from needs an endpoint that takes texts; a lower --rate sends more slowly"),
    )


def _results(answer: Any, number: int) -> Sequence[Any]:
    found = answer.get("results", answer.get("predictions")) if isinstance(answer, Mapping) else answer
    return found if isinstance(found, list) else [answer] * (number == 1)
