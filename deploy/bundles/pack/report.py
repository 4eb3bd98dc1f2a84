"""The report of a bundle: parity and speed as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deploy.bundles.judge.parity import Parity
from deploy.bundles.speed import ORIGINAL, Timing


def parity_rows(found: Sequence[Parity]) -> list[list[str]]:
    """Return the accuracy table, its header first."""
    rows = [["candidate", "largest difference", "mean cosine", "min cosine", "same answer",
             "same neighbour", "verdict"]]  # fmt: skip
    for p in found:
        verdict = "within tolerance" if p.is_within else "; ".join((*p.faults, *p.excesses))
        if p.mean_cosine == 0.0 and p.faults:
            rows.append([p.candidate, *["–"] * 5, verdict])
            continue
        nearest = "–" if p.neighbours is None else f"{p.neighbours:.1%}"
        rows.append([p.candidate, f"{p.max_difference:.1e}", f"{p.mean_cosine:.5f}", f"{p.min_cosine:.5f}",
                     f"{p.decisions:.1%}", nearest, verdict])  # fmt: skip
    return rows


def speed_rows(timings: Sequence[Timing]) -> list[list[str]]:
    """Return the speed table, its header first."""
    names = [n for n in timings[0].ms if n != ORIGINAL]
    return [
        ["batch", "tokens", "PyTorch", *names],
        *([str(t.cell.batch), str(t.cell.length), f"{t.ms[ORIGINAL]:.1f} ms",
           *(f"×{t.ratio(n):.2f} ({t.ms[n]:.1f} ms)" for n in names)] for t in timings),
    ]  # fmt: skip


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table; the first is its header."""
    lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join([lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]])


def render(manifest: Mapping[str, Any], parities: Sequence[Parity], timings: Sequence[Timing], line: str) -> str:
    """Return the report; ``line`` is the command that serves the bundle."""
    chosen, machine, samples = manifest["chosen"], manifest["machine"], manifest["samples"]
    rows = max((p.rows for p in parities), default=0)
    batches = max((p.batches for p in parities), default=0)
    besides = f", and {rows} rows of every length in {batches} batches of every size" if rows else ""
    parts = [
        f"# {manifest['name']}: {chosen['candidate']}",
        f"{chosen['about']}. Made from `{manifest['source']['given']}` ({manifest['source']['architecture']}, "
        f"{manifest['source']['task']}) on {machine['cpu']}, {machine['cores']} cores.",
    ]
    if manifest["accepted"]:
        parts.append(f"**Accepted beyond tolerance:** {manifest['accepted']}")
    parts += [f"*{note}*" for note in manifest["notes"]]
    parts += [
        f"## Accuracy\n\n{samples['count']} texts ({samples['source']}) of {samples['shortest']} to "
        f"{samples['longest']} tokens{besides}, against PyTorch in fp32.",
        table(parity_rows(parities)),
    ]
    if timings:
        about = f"Times as fast as PyTorch eager fp32 in the same round; model only, for {chosen['load']}."
        parts += [f"## Speed\n\n{about}", table(speed_rows(timings))]
    if manifest["left_out"]:
        parts.append("Left out: " + "; ".join(f"{n} ({why})" for n, why in manifest["left_out"].items()) + ".")
    parts += ["## Serve it", f"```console\n$ {line}\n```"]
    return "\n\n".join(parts) + "\n"
