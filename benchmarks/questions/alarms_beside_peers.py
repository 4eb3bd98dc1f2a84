"""After how many texts do drift alarms of this gateway and of other libraries find a change, with few false ones?

The same artificial traffic of ten texts a minute goes through the gateway's code and through alibi-detect (columns, and
embeddings), Evidently's method for texts and NannyML, each installed from PyPI in its own environment. Detectors that
read columns get everything that a gateway counts of a text and its answer, except the risen words. Embeddings are
latent semantic analysis, because no model is downloaded. The peers look at windows
(``peers/programs/drift_detectors.py``), the gateway at every text. Each peer is measured with its own threshold, and
with one that it did not exceed in thirty days without a change.
"""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.peers.programs import drift_detectors
from benchmarks.shared import environments
from benchmarks.shared.command import STATE, narrator, parser, tell
from benchmarks.shared.results import DOCS, put, save, saved, table
from benchmarks.shared.speech import Endpoint, Seen, Speech, captured, mixed, nonsense
from gateway.metrics import drift, variables
from gateway.metrics.drift import ALARM_DAYS, Bins

TAKES = "half an hour, and 5 GB to install the first time"
SAVES = "results/drift-peers.json"
RATE: Final = 10
"""Texts a minute."""
_SIZE: Final = 20_000
_MOST: Final = 5_000
"""Texts after which a run stops."""
_DAYS: Final = 30
_PEERS: Final = {
    "tabular": ("alibi", "alibi-detect, columns: KS and χ²"),
    "embeddings_ks": ("alibi", "alibi-detect, embeddings: KS"),
    "embeddings_mmd": ("alibi", "alibi-detect, embeddings: MMD"),
    "evidently": ("evidently", "Evidently, texts"),
    "nannyml": ("nannyml", "NannyML, columns: Jensen–Shannon"),
}
"""Each peer's environment and title."""
_SCALARS: Final = (variables.TOKENS, variables.UNKNOWN, variables.SCORE)
_OURS: Final = "triton-gateway"

Columns = dict[str, list[Any]]


class Traffic:
    """Draws rows: texts, and a model's answers to them."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        english, german = Speech("en", 1, rng), Speech("de", 2, rng)
        self._draws = {
            "10 % of the texts in German": mixed(english, rng, 0.1, lambda _: german(1)[0]),
            "texts 1.3 times as long": Speech("en", 1, rng, longer=1.3),
            "5 % of the words nonsense": mixed(english, rng, 1.0, nonsense(rng)),
            "5 % of the texts in capitals": mixed(english, rng, 0.05, str.upper),
            "a new word in 1 % of the texts": mixed(english, rng, 0.01, lambda text: f"{text} flimmer"),
        }
        self.texts = english

    def rows(self, number: int, change: str = "") -> Columns:
        """Return rows by column, without the values that the gateway's code finds in texts."""
        rng = self.rng
        texts = self._draws.get(change, self.texts)(number)
        positive = {"a label from 50 to 60 %": 0.6, "a label from 50 to 90 %": 0.9}.get(change, 0.5)
        unknown = 0.2 if change == "twice as many texts with unknown tokens" else 0.1
        return {
            "text": texts,
            variables.TOKENS: [float(text.count(" ") + 3) for text in texts],
            variables.UNKNOWN: np.where(
                rng.random(number) < unknown, rng.choice([0.04, 0.08, 0.15, 0.3], number, p=[0.4, 0.3, 0.2, 0.1]), 0.0
            ).tolist(),
            variables.LABEL: np.where(rng.random(number) < positive, "POSITIVE", "NEGATIVE").tolist(),
            variables.SCORE: rng.uniform(0.5, 1.0, number).round(4).tolist(),
        }  # fmt: skip


CHANGES: Final = (
    "a label from 50 to 60 %", "a label from 50 to 90 %", "10 % of the texts in German", "texts 1.3 times as long",
    "twice as many texts with unknown tokens", "5 % of the words nonsense", "5 % of the texts in capitals",
    "a new word in 1 % of the texts",
)  # fmt: skip


def looked(columns: Columns, seen: Seen) -> Columns:
    """Return rows with the values that the gateway's code finds in their texts."""
    return {**columns, **{name: list(values) for name, values in seen.see(columns["text"]).items()}}


class Gateway:
    """A reference, and endpoints that are compared with it."""

    def __init__(self, traffic: Traffic) -> None:
        bins, self.words = captured(traffic.texts)
        self.reference = looked(traffic.rows(_SIZE), Seen(self.words))
        self.bins: dict[str, Bins] = {
            **bins,
            **{name: drift.scalar_bins(self.reference[name]) for name in _SCALARS},
            variables.LABEL: drift.enum_bins(Counter(self.reference[variables.LABEL])),
        }  # fmt: skip

    def endpoint(self, seed: int) -> Endpoint:
        return Endpoint(self.bins, RATE, np.random.default_rng(seed))

    def alarms_after(self, traffic: Traffic, change: str, seed: int) -> int | None:
        """Return after how many texts an endpoint alarms, None if it does not."""
        seen, endpoint = Seen(self.words), self.endpoint(seed)
        seen.see(traffic.texts(2_000))
        endpoint.wait()
        step = endpoint.texts_a_look
        for came in range(0, _MOST, 250):
            found = looked(traffic.rows(250, change), seen)
            for start in range(0, 250, step):
                if endpoint.look({name: found[name][start : start + step] for name in self.bins}) >= ALARM_DAYS:
                    return came + start + step
        return None

    def false_alarms(self, rows: Columns, seed: int) -> int:
        """Return the number of alarms in thirty days of traffic drawn from ``rows``."""
        rng, endpoint = np.random.default_rng(seed), self.endpoint(seed)
        columns = {name: np.array(rows[name]) for name in self.bins}
        alarms, was_on = 0, False
        for _ in range(_DAYS * 1440 * RATE // endpoint.texts_a_look):
            drawn = rng.integers(0, len(rows["text"]), endpoint.texts_a_look)
            is_on = endpoint.look({name: values[drawn].tolist() for name, values in columns.items()}) >= ALARM_DAYS
            alarms, was_on = alarms + (is_on and not was_on), is_on
        return alarms


def written(folder: Path, parts: Mapping[str, Columns], runs: int) -> None:
    """Write the input of the peers."""
    names = [name for name in parts["reference"] if name != variables.RISEN]
    ranges, end = {}, 0
    for part, rows in parts.items():
        ranges[part] = (end, end := end + len(rows["text"]))
    (folder / "rows.json").write_text(json.dumps({
        "columns": {name: [value for rows in parts.values() for value in rows[name]] for name in names},
        "ranges": ranges, "runs": runs, "most": _MOST, "stationary": _DAYS * 1440 * RATE,
    }))  # fmt: skip


def asked(peer: str, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the result of a peer."""
    python = environments.python(STATE / "environments", _PEERS[peer][0], say)
    program = Path(drift_detectors.__file__)
    done = subprocess.run([str(python), str(program), peer, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return {"versions": environments.versions(python), **json.loads(done.stdout)}


def _needed(runs: Sequence[int | None]) -> str:
    after = sorted(math.inf if one is None else one for one in runs)
    most = after[math.ceil(0.95 * len(after)) - 1]
    if math.isfinite(most):
        return f"{most:,.0f}"
    return f"{sum(map(math.isfinite, after)) / len(after):.0%} of runs".replace("%", " %")


def shown(found: Mapping[str, Any]) -> str:
    """Return the table: a row for each detector and threshold, a column for each change."""
    detectors = [(_OURS, found[_OURS], "own")]
    for peer, (_, name) in _PEERS.items():
        if peer in found:
            detectors += [(name, found[peer], "own"), (f"{name}, same budget", found[peer], "budget")]
    rows = [["", "texts per window", "runs", "false alarms in 30 days", *CHANGES]]
    for name, one, of in detectors:
        after = [one["changes"][change][of] for change in CHANGES]
        alarms = str(one["alarms"]) if of == "own" else "0"
        rows.append([name, str(one["window"]), str(len(after[0])), alarms, *map(_needed, after)])
    return table(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line per detector, then the table."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--runs", type=int, default=40)
    arguments.add_argument(
        "--only", nargs="+", choices=[_OURS, *_PEERS], metavar="WHO", help=f"{_OURS}, {', '.join(_PEERS)}"
    )
    options = arguments.parse_args(argv)
    say, traffic = narrator(), Traffic(11)
    wanted = options.only or [_OURS, *_PEERS]
    found: dict[str, Any] = {}
    gateway = Gateway(traffic)
    parts = {"reference": gateway.reference, "stationary": looked(traffic.rows(40_000), Seen(gateway.words))}
    for change in CHANGES:
        parts[change] = looked(traffic.rows(10_000, change), Seen(gateway.words))
    say("drawn")
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), parts, options.runs)
        for one in wanted:
            if one == _OURS:
                after = {
                    change: [gateway.alarms_after(traffic, change, run) for run in range(options.runs)]
                    for change in CHANGES
                }
                found[one] = {
                    "window": gateway.endpoint(0).texts_a_look, "alarms": gateway.false_alarms(parts["stationary"], 1),
                    "changes": {change: {"own": runs} for change, runs in after.items()},
                }  # fmt: skip
            else:
                found[one] = asked(one, Path(folder), say)
            say(one)
            tell({one: found[one]})
    if options.only:
        found = {**(saved("drift-peers") or {}), **found}
    text = shown(found)
    print(text)
    if options.save:
        save("drift-peers", found)
        put(DOCS / "drift.md", "peers", text)
    return 0
