"""``python -m deploy.laptop.demo.traffic URL [--rate N] [--seconds N]``: send requests so that the boards show data.

This is not a benchmark (see ``benchmarks/``). It sends a steady open stream of texts as long as reviews. A few requests
are wrong on purpose (an empty text, an unknown endpoint), as in real systems. Prints a line of counts every ten
seconds.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

TOO_MANY = 256
"""Most requests in flight. Beyond it, requests are counted as dropped, to limit the memory of an open stream."""


def bodies(rng: random.Random) -> tuple[str, Any]:
    """Return one random request: its path below /serve/ and its body."""
    draw = rng.random()
    if draw < 0.01:
        return "nowhere", {"text": "hello"}
    if draw < 0.02:
        return "demo", {"text": ""}
    words = _words()
    longest = 200 if draw > 0.99 else 17  # some are longer than the model's limit
    texts = [" ".join(rng.choices(words, k=rng.randint(2, longest))) for _ in range(rng.choice((1, 1, 1, 1, 4)))]
    texts[0] = texts[0] if rng.random() < 0.9 else "what a wonderful film"  # and some are repeated
    path = "demo" if draw < 0.9 else rng.choice(("demo/1", "demo/2"))
    return path, {"text": texts if len(texts) > 1 else texts[0]}


def _words(found: list[str] = []) -> list[str]:  # noqa: B006 - read once
    if not found:
        vocabulary = json.loads((Path(__file__).parent / "words_model" / "tokenizer.json").read_text())["model"][
            "vocab"
        ]
        found += [word for word in vocabulary if not word.startswith("[")] + ["zebra", "quartz"]
    return found


async def post(host: str, port: int, path: str, body: Any, timeout: float = 10.0) -> str:
    """Send one request over a new connection, and return its status, or the name of the error."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
                line = await reader.readline()
                await reader.read()
            finally:
                writer.close()
            return line.split(b" ", 2)[1].decode() if line else "closed"
    except (OSError, TimeoutError, IndexError) as error:
        return type(error).__name__


async def run(address: str, *, rate: float, seconds: float, seed: int = 0) -> Counter[str]:
    """Send ``rate`` requests a second at even intervals for ``seconds`` (0: without end). Return counts by status."""
    parts = urlsplit(address)
    host, port, prefix = parts.hostname or "127.0.0.1", parts.port or 80, parts.path.rstrip("/")
    rng, counts, running = random.Random(seed), Counter[str](), set[asyncio.Task[None]]()  # noqa: S311 - texts, no secret

    async def one() -> None:
        path, body = bodies(rng)
        counts[await post(host, port, f"{prefix}/{path}", body)] += 1

    loop = asyncio.get_running_loop()
    began = told = loop.time()
    sent = 0
    while not seconds or loop.time() - began < seconds:
        if len(running) < TOO_MANY:
            task = asyncio.create_task(one())
            running.add(task)
            task.add_done_callback(running.discard)
        else:
            counts["dropped"] += 1
        sent += 1
        if loop.time() - told >= 10:
            told = loop.time()
            click.echo(json.dumps(dict(sorted(counts.items()))))
        await asyncio.sleep(max(0.0, began + sent / rate - loop.time()))
    await asyncio.gather(*running)
    return counts


@click.command()
@click.argument("address", metavar="URL")
@click.option("--rate", default=20.0, show_default=True, help="Requests per second.")
@click.option("--seconds", default=0.0, show_default=True, help="How long; 0: for ever.")
def main(address: str, rate: float, seconds: float) -> None:
    """Send requests to the gateway that serves at URL, e.g. http://127.0.0.1:8080/serve, and print the counts.

    The exit code is 1 when nothing was answered with 200.
    """
    counts = asyncio.run(run(address, rate=rate, seconds=seconds))
    click.echo(json.dumps(dict(sorted(counts.items()))))
    sys.exit(0 if counts["200"] else 1)


if __name__ == "__main__":
    main()
