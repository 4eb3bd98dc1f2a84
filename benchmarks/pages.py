"""``python -m benchmarks pages``: writes the documentation's parts that show saved results."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from benchmarks.peers.report import PLOTS, markdown
from benchmarks.questions import (
    ladder_of_comet,
    lengths_of_hf_infinity,
    signals_of_autoscaling,
    steps_of_hundred_times_faster,
)
from benchmarks.shared.results import DOCS, IMAGES, saved

MODELS = DOCS / "benchmarks-models.md"
PEERS = DOCS / "benchmarks.md"

_HEAD = """# Benchmarks: three published tables, measured here

This page repeats three published benchmarks with triton-gateway: HF Infinity's lengths, Comet's ladder, and the steps
of "100 times faster". `python -m benchmarks pages` writes it from these
commands' saved results; do not edit it.

```console
$ python -m benchmarks lengths-of-hf-infinity --save      # resumable: run it again to go on
$ python -m benchmarks ladder-of-comet --save
$ python -m benchmarks steps-of-hundred-times-faster --save
$ python -m benchmarks pages
```

- **Weights** are random, of the real size. They cost what trained ones cost and say nothing about accuracy, which the
  gate of [`triton-gateway optimize`](optimize.md) checks.
- **Texts** are made of words of one token each, a different text per request.
- **The client** runs on the same cores as everything else.
"""


_NO_INFINITY = """## HF Infinity's lengths: DistilBERT, sequence classification

No run is saved. `python -m benchmarks lengths-of-hf-infinity --save` measures a model that passes the gate of
`optimize` in turn with a pipeline that gets single texts and lists."""


def models() -> str:
    """Return the page of the three published tables."""
    parts = [_HEAD.rstrip()]
    if saved("infinity") is None:
        parts.append(_NO_INFINITY)
    for name, question in (
        ("infinity", lengths_of_hf_infinity), ("comet", ladder_of_comet), ("hundred", steps_of_hundred_times_faster),
    ):  # fmt: skip
        if (found := saved(name)) is not None:
            parts.append(question.section(found))
    return "\n\n".join(parts) + "\n"


def peers() -> str:
    """Return the page of the run that it names. Raises ``ValueError`` if that run is not saved."""
    named = re.search(r"`benchmarks/results/(.+)\.json`", PEERS.read_text())
    if named is None or (run := saved(named[1])) is None:
        raise ValueError(f"{PEERS} names no saved run")
    images = [name for name in PLOTS if (IMAGES / f"benchmark-{name}.png").exists()]
    return markdown(run, name=named[1], images=images)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages."""
    del argv
    MODELS.write_text(models())
    PEERS.write_text(peers())
    for name in signals_of_autoscaling.TABLES:
        if (found := saved(name)) is not None:
            signals_of_autoscaling.write(name, found)
    sys.stdout.write(f"{MODELS}\n{PEERS}\n{signals_of_autoscaling.PAGE}\n")
    return 0
