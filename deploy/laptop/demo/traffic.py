"""``python -m deploy.laptop.demo.traffic URL [--rate N] [--seconds N]``: send requests so that the boards show data.

This is not a benchmark (see ``benchmarks/``). It sends one text after the other, as long as reviews. A few requests are
wrong on purpose (an empty text, an unknown endpoint), as in real systems. Prints a line of counts every ten seconds.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from deploy.tools import http_client

VOCABULARY = Path(__file__).parent / "words_model" / "tokenizer.json"


def bodies(rng: random.Random, words: list[str]) -> tuple[str, Any]:
    """Return one random request: its path below /serve/ and its body."""
    draw = rng.random()
    if draw < 0.01:
        return "nowhere", {"text": "hello"}
    if draw < 0.02:
        return "demo", {"text": ""}
    longest = 200 if draw > 0.99 else 17  # some are longer than the model's limit
    texts = [" ".join(rng.choices(words, k=rng.randint(2, longest))) for _ in range(rng.choice((1, 1, 1, 1, 4)))]
    texts[0] = texts[0] if rng.random() < 0.9 else "what a wonderful film"  # and some are repeated
    path = "demo" if draw < 0.9 else rng.choice(("demo/1", "demo/2"))
    return path, {"text": texts if len(texts) > 1 else texts[0]}


@click.command()
@click.argument("address", metavar="URL")
@click.option("--rate", default=20.0, show_default=True, help="Most requests per second.")
@click.option("--seconds", default=0.0, show_default=True, help="How long; 0: for ever.")
def main(address: str, rate: float, seconds: float) -> None:
    """Send requests to the gateway that serves at URL, e.g. http://127.0.0.1:8080/serve, and print the counts.

    The exit code is 1 when nothing was answered with 200.
    """
    vocabulary = json.loads(VOCABULARY.read_text())["model"]["vocab"]
    words = [word for word in vocabulary if not word.startswith("[")] + ["zebra", "quartz"]
    rng, counts = random.Random(0), Counter[str]()  # noqa: S311 - texts, no secret
    began = told = time.monotonic()
    while not seconds or time.monotonic() - began < seconds:
        due = time.monotonic() + 1 / rate
        path, body = bodies(rng, words)
        answer = http_client.call(f"{address.rstrip('/')}/{path}", body=body, timeout=10)
        counts[str(answer.status) if answer else "no answer"] += 1
        if time.monotonic() - told >= 10:
            told = time.monotonic()
            click.echo(json.dumps(dict(sorted(counts.items()))))
        time.sleep(max(0.0, due - time.monotonic()))
    click.echo(json.dumps(dict(sorted(counts.items()))))
    sys.exit(0 if counts["200"] else 1)


if __name__ == "__main__":
    main()
