"""The tables of a text-generation bundle's report. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deploy.bundles.generation.parity import TextParity
from deploy.bundles.generation.speed import Pace
from deploy.bundles.pack import report
from deploy.bundles.speed import ORIGINAL


def parity_rows(found: Sequence[TextParity]) -> list[list[str]]:
    """Return the accuracy table, its header first."""
    rows = [["candidate", "largest difference", "mean cosine", "min cosine", "same next token", "same text until",
             "with and without cache", "verdict"]]  # fmt: skip
    for p in found:
        verdict = "within tolerance" if p.is_within else "; ".join((*p.faults, *p.excesses))
        if p.mean_cosine == 0.0 and p.faults:
            rows.append([p.candidate, *["–"] * 6, verdict])
            continue
        rows.append([p.candidate, f"{p.max_difference:.1e}", f"{p.mean_cosine:.5f}", f"{p.min_cosine:.5f}",
                     f"{p.decisions:.1%}", f"{p.continued:.1%}", f"{p.companions:.1e}", verdict])  # fmt: skip
    return rows


def speed_rows(paces: Sequence[Pace]) -> list[list[str]]:
    """Return the speed table, its header first."""
    names = [n for n in paces[0].first_ms if n != ORIGINAL] if paces else []
    rows = [["threads", "prompt", "", "PyTorch generate", *names]]
    for p in paces:
        rows.append([
            str(p.threads), str(p.prompt), "first token", f"{p.first_ms[ORIGINAL]:.1f} ms",
            *(f"×{p.ratios(n)[0]:.2f} ({p.first_ms[n]:.1f} ms)" for n in names),
        ])  # fmt: skip
        rows.append([
            str(p.threads), str(p.prompt), "each after it", f"{p.tokens_per_second(ORIGINAL):.1f} tokens/s",
            *(f"×{p.ratios(n)[1]:.2f} ({p.tokens_per_second(n):.1f} tokens/s)" for n in names),
        ])  # fmt: skip
    return rows


def render(manifest: Mapping[str, Any], parities: Sequence[TextParity], paces: Sequence[Pace], line: str) -> str:
    """Return the report."""
    samples = manifest["samples"]
    return report.page(
        manifest,
        f"{samples['judged']} prompts ({samples['source']}), each continued by {samples['new_tokens']} tokens, against "
        "transformers' greedy `generate` in fp32: logits less their mean, at every step after PyTorch's own tokens. "
        "*same text until* is the share of the text before the first token that differs from PyTorch's.",
        parity_rows(parities),
        "Times as fast as `generate` of transformers in PyTorch, eager, fp32, in the same rounds; one text at a time.",
        speed_rows(paces),
        line,
    )


def cells(paces: Sequence[Pace]) -> list[tuple[str, dict[str, float]]]:
    """Return what the picture shows."""
    found = []
    for p in paces:
        names = [n for n in p.first_ms if n != ORIGINAL]
        for part, what in ((0, "first"), (1, "each")):
            found.append((f"{p.threads} thr · {p.prompt} · {what}", {n: p.ratios(n)[part] for n in names}))
    return found
