"""Rows of every length and batches of every size; a candidate must answer each row as PyTorch answers it alone.

Texts have only some lengths. A graph may be wrong from 60 tokens on, at exactly the longest row, or in batches of more
than eight. So probes are made of the tokens of running text, between the special tokens of the task. Lengths: every one
up to 128; every multiple of 16 and its neighbours up to 512; eight between powers of two up to 2048, four above; the
longest row. Calls: each row alone, every batch size up to ``ROWS``, short rows next to long ones in every order, as
many long rows as a call to Triton may have, and rows that are padded although they are alone. A row's answer must be
PyTorch's in every call. Finally, rows that together contain every token of the vocabulary, since a graph may be wrong
for a single token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deploy.bundles.judge.engine import Engine
from deploy.bundles.judge.samples import bodies_of, judged_length
from deploy.bundles.sentences import SENTENCES
from deploy.sync.model_folder.execution import MAX_ROWS
from deploy.tools.errors import ExportFailed, first_line
from preprocessing.config import CLASSIFICATION, FEATURES, FILL_MASK, QUESTION_ANSWERING, TOKENS, TaskConfig
from preprocessing.processor import TextProcessor
from preprocessing.types import Encoded

Say = Callable[[str], None]

ROWS: Final = MAX_ROWS

_EVERY: Final = 128
"""Every length up to this one is tried."""
_BUCKET: Final = 16
_DENSE: Final = 512
_PADDED: Final = 12
"""Number of rows that are padded although they are alone."""
_SHORT: Final = 10
"""Number of different lengths among the rows of large batches."""
_MAX_TOKENS: Final = 16384
"""Most tokens in a call, padding included: as many as the gateway sends (``max_padded_tokens``)."""
_MAX_MERGED: Final = ROWS * _DENSE
"""The same for one call: Triton joins calls of several gateways."""
_MANY: Final = 2048
"""From this power of two on, fewer lengths are tried, since PyTorch takes seconds for each."""
_MAX_SCORES: Final = 1 << 26
_MAX_VOCABULARY: Final = 1 << 16
"""Most vocabulary tokens that are tried; of a larger vocabulary only every n-th, since all would take an hour."""
_PAIRS: Final = (12, 16, 24, 32, 48, 64, 96, 128, 256, 512)
"""Lengths of rows with two texts, for models that take one text as well as two."""
_MAX_KEPT: Final = 1 << 16
"""Most compared numbers of one output of one row; of a larger one every n-th column, with another n for each row."""

PER_TOKEN: Final = frozenset({TOKENS, QUESTION_ANSWERING, FILL_MASK, FEATURES})
"""Tasks whose outputs have a second axis of tokens."""

_WRONG: Final = 0.3
"""Relative difference from which an answer counts as wrong, not as less exact."""
_OTHER: Final = 0.9
"""The same for rows of tokens that never occur together, for which a reduced precision was never calibrated."""
_AT_A_THRESHOLD: Final = 20.0
"""T5 rounds logarithms of distances to whole buckets. If one lies between two, the last bit of a logarithm decides, and
it differs between programs. Rows with such a distance are off by about 0.001 of their size.
"""
_ROW_NOISE: Final = (8.0, _WRONG, 0.6)
"""What rounding of a reduced precision explains: multiple of its usual difference, least and most."""
_SHORTEST_TEXT: Final = 8
"""Rows shorter than this round differently from texts."""


@dataclass(frozen=True, slots=True)
class Probes:
    """Rows, PyTorch's answer to each alone (output → array, cut to what is compared), and the calls to make."""

    rows: tuple[Encoded, ...]
    truths: tuple[Mapping[str, NDArray[Any]], ...]
    calls: tuple[tuple[int, ...], ...]
    shortest: int
    """Tokens of the shortest row that a text can become. Shorter rows may be refused, but not answered wrongly."""
    padded: tuple[tuple[int, int], ...] = ()
    """Rows that are sent alone, each padded to the length of another."""
    vocabulary_rows: int = 0
    """Number of rows, at the end, that together contain the vocabulary."""

    def is_vocabulary(self, row: int) -> bool:
        """Return True if ``row`` is one of the vocabulary rows."""
        return row >= len(self.rows) - self.vocabulary_rows


@dataclass(frozen=True, slots=True)
class Finding:
    """What the probes showed: faults that are never accepted, and excesses that may be."""

    faults: tuple[str, ...]
    excesses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Answer:
    """One row's answer in one call, and its difference from PyTorch's, as a number and as a share."""

    row: int
    call: int
    difference: float
    share: float


def lengths(longest: int) -> list[int]:
    """Return the row lengths to judge for a model that reads ``longest`` tokens."""
    near = {n + d for n in range(_EVERY, _DENSE + 1, _BUCKET) for d in (-1, 0, 1)}
    far = set()
    for power in range(_DENSE.bit_length() - 1, longest.bit_length()):
        parts = 8 if 1 << power < _MANY else 4
        # not only multiples of large powers of two, for which kernels have code of their own
        far |= {(1 << power) + k * (1 << power) // parts + (0, 1, -1)[k % 3] for k in range(parts)}
    return sorted(n for n in {*range(1, _EVERY + 1), *near, *far, longest - 1, longest} if 1 <= n <= longest)


def make(processor: TextProcessor, run: Callable[[Mapping[str, Any]], Mapping[str, Any]], say: Say) -> Probes:
    """Build the probes for ``processor`` and ask PyTorch (``run``) each row alone.

    Rows that PyTorch itself cannot answer (some models need an end token, or more than one token) are left out.
    """
    config = processor.config
    build = RowBuilder(processor)
    longest = judged_length(processor)
    wanted = [build.row(n, start=n * 7) for n in lengths(longest)]
    if config.task == CLASSIFICATION and "token_type_ids" in processor.input_names:
        pairs = RowBuilder(processor, lambda text: {"text": SENTENCES[0], "text_pair": text})
        wanted += [pairs.row(n, start=n * 11) for n in _PAIRS if pairs.shortest <= n <= longest]
    wanted += [build.with_padding_inside(min(longest, 2 * build.shortest + 8), config.pad_id)]
    few = [min(build.shortest + i % _SHORT, config.max_length) for i in range(ROWS)]
    wanted += [build.row(n, start=1000 + 13 * i) for i, n in enumerate(few)]
    first_vocabulary = len(wanted)
    every = build.vocabulary(config.pad_id)
    every = every[:: -(-len(every) // _MAX_VOCABULARY) or 1]
    room = build.room(min(longest, _EVERY))
    wanted += [build.framed(every[start : start + room]) for start in range(0, len(every), room)]
    reason, short, vocabulary = "", 0, 0
    rows: list[Encoded] = []
    truths: list[Mapping[str, NDArray[Any]]] = []
    for number, row in enumerate(wanted):
        try:
            found = run(processor.collate_rows([row]))
        except Exception as error:  # noqa: BLE001 - torch and the models raise what they like
            reason = reason or first_line(error)
            continue
        if not all(np.isfinite(value).all() for value in found.values()):
            continue  # what PyTorch cannot answer cannot be compared
        truths.append({name: _kept(np.asarray(value), len(rows)) for name, value in found.items()})
        rows.append(row)
        vocabulary += number >= first_vocabulary
        short += first_vocabulary - len(few) <= number < first_vocabulary
        if number % 50 == 49:
            say(f"PyTorch: {number + 1} of {len(wanted)} rows of every length")
    if len(rows) - vocabulary < first_vocabulary // 2:
        raise ExportFailed(f"PyTorch cannot run the model on most lengths: {reason or 'its answers are not numbers'}")
    first = len(rows) - vocabulary
    calls = (*_calls(rows[:first], short, config), *((i,) for i in range(first, len(rows))))
    dense = sorted(range(first - short), key=lambda i: rows[i].n_tokens)
    dense = [i for i in dense if build.shortest <= rows[i].n_tokens <= _EVERY]
    padded = tuple((i, dense[-1 - n % 2]) for n, i in enumerate(dense[: -2 : max(1, len(dense) // _PADDED)]))
    return Probes(tuple(rows), tuple(truths), calls, build.shortest, padded, vocabulary)


def judge(probes: Probes, processor: TextProcessor, engine: Engine, difference: float, say: Say) -> Finding:
    """Let ``engine`` make every call.

    ``difference`` is the largest allowed difference, as in ``Tolerance``; infinite for a reduced precision, which is
    compared with its own usual difference instead.
    """
    answers: list[_Answer] = []
    usual_size = float(np.median([_size(true) for true in probes.truths])) or 1.0
    for number, call in enumerate(probes.calls):
        longest = max(probes.rows[i].n_tokens for i in call)
        try:
            found = engine.answer(processor.collate_rows([probes.rows[i] for i in call]))
        except ExportFailed as error:
            if min(probes.rows[i].n_tokens for i in call) < probes.shortest:
                continue  # no text can become such a row
            fault = f"{len(call)} row(s) of up to {longest} tokens: {error.message}"
            return Finding((fault,))
        for position, i in enumerate(call):
            true, own = probes.truths[i], _cut(found, position, i, probes, processor, longest)
            shapes = [f"{n} has shape {list(own[n].shape)} instead of {list(true[n].shape)}"
                      for n in true if n not in own or own[n].shape != true[n].shape]  # fmt: skip
            if shapes:
                fault = f"for {len(call)} row(s) of {probes.rows[i].n_tokens} tokens the output {shapes[0]}"
                return Finding((fault,))
            answers.append(_compared(i, number, true, own, usual_size))
        if number % 50 == 49:
            say(f"{number + 1} of {len(probes.calls)} batches of every size and length")
    alone = {call: number for number, call in enumerate(probes.calls) if len(call) == 1}
    padded: list[_Answer] = []
    for i, longer in probes.padded:
        both = processor.collate_rows([probes.rows[i], probes.rows[longer]])
        try:
            found_alone = engine.answer({name: value[:1] for name, value in both.items()})
        except ExportFailed as error:
            return Finding((f"a row of {probes.rows[i].n_tokens} tokens that is padded: {error.message}",))
        own = _cut(found_alone, 0, i, probes, processor, probes.rows[longer].n_tokens)
        padded.append(_compared(i, alone[i,], probes.truths[i], own, usual_size))
    faults, excesses = _verdict(probes, answers, difference)
    for said, more in zip((faults, excesses), _verdict(probes, padded, difference), strict=True):
        said += [f"alone but padded, {text}" for text in more]
    return Finding(tuple(faults), tuple(excesses))


class RowBuilder:
    """Builds rows of any length from the tokens of running text."""

    def __init__(self, processor: TextProcessor, make_body: Callable[[str], Mapping[str, Any]] | None = None) -> None:
        make_body, tokenizer = make_body or bodies_of(processor), processor.tokenizer
        self._ids = range(tokenizer.vocab_size)
        limit = processor.config.max_length

        def encode(text: str) -> Encoded:
            return tokenizer.encode_batch(processor.head.parse(make_body(text)).texts)[0]

        one, other = encode("Rust 7"), encode("the box?")
        before = _common(_cells(one), _cells(other))
        after = _common(_cells(one)[::-1], _cells(other)[::-1])
        after = min(after, min(one.n_tokens, other.n_tokens) - before)
        text = ""
        for round_ in range(1 + limit // 200):
            text += " ".join((*SENTENCES[round_ % 7 :], *SENTENCES[: round_ % 7])) + " "
        long = encode(text)
        self._before = _part(one, 0, before)
        self._after = _part(one, one.n_tokens - after, one.n_tokens)
        start = min(before, long.n_tokens - 1)  # a tokenizer that knows no word may turn all texts into the same tokens
        self._content = _part(long, start, max(long.n_tokens - after, start + 1))
        self.shortest = min(before + after + 1, limit)

    def row(self, tokens: int, *, start: int) -> Encoded:
        """Return a row of ``tokens``; empty if it is too short for the special tokens."""
        room = tokens - len(self._before[0]) - len(self._after[0])
        size = len(self._content[0])
        places = [(start + i) % size for i in range(room if room > 0 else tokens)]
        ids, types = ([part[i] for i in places] for part in self._content)
        if room > 0:
            ids, types = [*self._before[0], *ids, *self._after[0]], [*self._before[1], *types, *self._after[1]]
        return Encoded(np.array(ids), np.array(types) if any(types) else None)

    def with_padding_inside(self, tokens: int, pad_id: int) -> Encoded:
        """Return a row with the padding token in its middle as a word: `[PAD]` in a text, which the model must read."""
        row = self.row(tokens, start=0)
        ids = row.ids.copy()
        ids[tokens // 2] = pad_id
        return Encoded(ids, row.type_ids)

    def vocabulary(self, pad_id: int) -> list[int]:
        """Return every token, save padding and those that frame a text: some models use them to find a text's end."""
        framing = {pad_id, *self._before[0], *self._after[0]}
        return [i for i in self._ids if i not in framing]

    def room(self, tokens: int) -> int:
        """Return how many tokens of a text fit into a row of ``tokens``."""
        return max(1, tokens - len(self._before[0]) - len(self._after[0]))

    def framed(self, ids: Sequence[int]) -> Encoded:
        """Return the row of a text of these tokens."""
        types = [*self._before[1], *[self._content[1][0]] * len(ids), *self._after[1]]
        row = np.array([*self._before[0], *ids, *self._after[0]])
        return Encoded(row, np.array(types) if any(types) else None)


def _calls(rows: Sequence[Encoded], few: int, config: TaskConfig) -> Iterator[tuple[int, ...]]:
    """Return the calls: every row alone, every batch size, short next to long in every order, many long rows."""
    count = len(rows)
    yield from ((i,) for i in range(count))
    short = list(range(count - few, count))
    for size in range(2, ROWS + 1 if few else 0):
        yield tuple(short[(size * 5 + i) % few] for i in range(size))
    by_length = sorted(range(count - few), key=lambda i: rows[i].n_tokens)
    dense = [i for i in by_length if rows[i].n_tokens <= _DENSE]
    most = _MAX_SCORES // config.vocab_size if config.task == FILL_MASK and config.vocab_size else _MAX_TOKENS
    mixed: list[list[int]] = []
    long = [i for i in by_length if rows[i].n_tokens > _DENSE]
    for low, high, size in ((0, 32, 8), (32, _EVERY, 8), (_EVERY, _DENSE, 4)):
        own = [i for i in dense if low < rows[i].n_tokens <= high]
        step = max(1, -(-len(own) // size))
        mixed += [own[start::step] for start in range(step)]
    if len(dense) > 8:
        mixed += [[dense[-1], *dense[:4], dense[-1], dense[4]], [*dense[:3], dense[-1]], dense[-16:], dense[-ROWS:]]
        # every number of padding tokens up to 126: rows of 65 to 128 tokens, and of 2 to 64 next to one of 128
        one_of = {rows[i].n_tokens: i for i in reversed(dense)}
        mixed += [[i for n, i in sorted(one_of.items()) if _EVERY - ROWS < n <= _EVERY]]
        mixed += [[*(i for n, i in sorted(one_of.items()) if 2 <= n <= ROWS), one_of.get(_EVERY, dense[-1])][-ROWS:]]
        mixed += [[*dense[1 - max(2, most // rows[i].n_tokens) :], i] for i in long]
    for number, call in enumerate(mixed):
        fitting = _fitting(call, rows, most)
        if len(fitting) > 1:
            yield tuple(fitting[::-1] if number % 2 else fitting)
    if most == _MAX_TOKENS and len(dense) >= ROWS:
        yield tuple(_fitting(dense[-ROWS:], rows, _MAX_MERGED))


def _fitting(call: Sequence[int], rows: Sequence[Encoded], most: int) -> list[int]:
    """Return the longest rows of a call that together, padded, have at most ``most`` tokens (or two), in order."""
    longest = max((rows[i].n_tokens for i in call), default=1)
    kept = set(sorted(range(len(call)), key=lambda at: rows[call[at]].n_tokens)[-max(2, most // longest) :])
    return [i for at, i in enumerate(call) if at in kept]


def _cut(
    answer: Mapping[str, NDArray[Any]], position: int, i: int, probes: Probes, processor: TextProcessor, longest: int
) -> dict[str, NDArray[Any]]:
    """Return the outputs of row ``i``, which is at ``position`` of a call that is padded to ``longest`` tokens."""
    tokens = probes.rows[i].n_tokens
    start = longest - tokens if processor.config.padding_side == "left" else 0
    own = {}
    for name, value in answer.items():
        part = value[position : position + 1]
        if part.ndim > 1 and part.shape[1] == longest and is_per_token(processor.config, part):
            part = part[:, start : start + tokens]
        own[name] = _kept(part, i)
    return own


def is_per_token(config: TaskConfig, output: NDArray[Any]) -> bool:
    """Return True if the second axis of an output is tokens."""
    return output.ndim > 2 or config.task in PER_TOKEN


def _size(outputs: Mapping[str, NDArray[Any]]) -> float:
    return float(np.sqrt(sum(float(np.square(v, dtype=np.float64).sum()) for v in outputs.values())))


def _compared(
    row: int, call: int, true: Mapping[str, NDArray[Any]], found: Mapping[str, NDArray[Any]],
    usual_size: float,
) -> _Answer:  # fmt: skip
    t = np.concatenate([true[n].ravel() for n in true]).astype(np.float64)
    f = np.concatenate([found[n].ravel() for n in true]).astype(np.float64)
    if not np.isfinite(f).all():
        return _Answer(row, call, float("inf"), float("inf"))
    off = np.abs(t - f)
    size = max(float(np.linalg.norm(t)), usual_size)
    return _Answer(row, call, float(off.max()) / max(1.0, float(np.abs(t).max())),
                   float(np.linalg.norm(off)) / size)  # fmt: skip


def _verdict(probes: Probes, answers: Sequence[_Answer], difference: float) -> tuple[list[str], list[str]]:
    if np.isfinite(difference):
        beyond = _inexact(probes, answers, difference)
    else:
        beyond = _unusual(probes, [a for a in answers if not probes.is_vocabulary(a.row)])
        beyond += [a for a in answers if probes.is_vocabulary(a.row) and not a.share < _OTHER]
    if not beyond:
        return [], []
    where = _where(probes, beyond)
    if not all(np.isfinite(a.share) for a in beyond):
        return [f"{where}: the answer is not a number"], []
    worst = max(a.share for a in beyond)
    text = f"{where}: the answer differs from PyTorch's by {worst:.2g} of its size"
    return ([text], []) if worst >= _WRONG else ([], [text])


def _inexact(probes: Probes, answers: Sequence[_Answer], difference: float) -> list[_Answer]:
    """Return the answers that are further off than ``difference``, save those of rows that a threshold inside the model
    moves a little: alone, too, and never by more than so many times as much.
    """
    beyond = [a for a in answers if not a.difference <= difference]
    near = {a.row for a in beyond if len(probes.calls[a.call]) == 1 and a.share <= _AT_A_THRESHOLD * difference}
    return [a for a in beyond if a.row not in near or not a.share <= _AT_A_THRESHOLD * difference]


def _unusual(probes: Probes, answers: Sequence[_Answer]) -> list[_Answer]:
    """Return the answers that the rounding of a reduced precision does not explain, by what it usually does here."""
    usual = float(np.median([a.share for a in answers if probes.rows[a.row].n_tokens >= _SHORTEST_TEXT] or [0.0]))
    times, least, most = _ROW_NOISE
    return [a for a in answers if not a.share <= min(max(times * usual, least), most)]


def _where(probes: Probes, beyond: Sequence[_Answer]) -> str:
    """Return what the wrong answers have in common, in words."""
    sizes = {number: len(call) for number, call in enumerate(probes.calls)}
    if all(probes.is_vocabulary(a.row) for a in beyond):
        return f"{len(beyond)} of the {probes.vocabulary_rows} rows that together contain the whole vocabulary"
    beyond = [a for a in beyond if not probes.is_vocabulary(a.row)]
    alone = [probes.rows[a.row].n_tokens for a in beyond if sizes[a.call] == 1]
    if alone:
        return f"rows of {_some(alone)} tokens"
    return f"batches of {_some(sizes[a.call] for a in beyond)} rows, each of which is right alone"


def _some(numbers: Iterable[int]) -> str:
    chosen = sorted(set(numbers))
    return ", ".join(map(str, chosen[:4])) + (f" … {chosen[-1]}" if len(chosen) > 4 else "")


def _kept(output: NDArray[Any], number: int) -> NDArray[Any]:
    step = -(-output.size // _MAX_KEPT)
    return output if step <= 1 else np.ascontiguousarray(output[..., number % step :: step])


def _cells(row: Encoded) -> list[tuple[int, int]]:
    types = row.type_ids
    return list(zip(row.ids.tolist(), [0] * row.n_tokens if types is None else types.tolist(), strict=True))


def _part(row: Encoded, start: int, end: int) -> tuple[list[int], list[int]]:
    cells = _cells(row)[start:end]
    return [i for i, _ in cells], [t for _, t in cells]


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
