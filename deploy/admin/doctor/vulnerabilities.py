"""Known vulnerabilities of Triton by version: NVIDIA's security bulletins until ``AS_OF`` as a table.

Sources: https://github.com/NVIDIA/product-security (one folder for each bulletin: YEAR/NUMBER) with its CVSS scores;
versions and releases: the tags of https://github.com/triton-inference-server/server. Called by ``local`` and ``kube``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from deploy.admin.doctor.finding import Finding

AS_OF: Final = "2026-09-08"
"""Date of the newest bulletin in the table."""
WHEELS: Final[Mapping[str, str]] = {"0.7.0": "2.51.0"}
"""Version of the nvidia-pytriton wheel → version of the Triton in it."""
RELEASES: Final[Mapping[str, str]] = {
    "2.40.0": "23.11", "2.41.0": "23.12", "2.42.0": "24.01", "2.43.0": "24.02", "2.44.0": "24.03", "2.45.0": "24.04",
    "2.46.0": "24.05", "2.47.0": "24.06", "2.48.0": "24.07", "2.49.0": "24.08", "2.50.0": "24.09", "2.51.0": "24.10",
    "2.52.0": "24.11", "2.53.0": "24.12", "2.54.0": "25.01", "2.55.0": "25.02", "2.56.0": "25.03", "2.57.0": "25.04",
    "2.58.0": "25.05", "2.59.0": "25.06", "2.59.1": "25.07", "2.60.0": "25.08", "2.61.0": "25.09", "2.62.0": "25.10",
    "2.63.0": "25.11", "2.64.0": "25.12", "2.65.0": "26.01", "2.66.0": "26.02", "2.67.0": "26.03", "2.68.0": "26.04",
    "2.69.0": "26.05", "2.70.0": "26.06", "2.71.0": "26.07", "2.72.0": "26.08",
}  # fmt: skip
"""Version of the server → release of NVIDIA's container."""


@dataclass(frozen=True, slots=True)
class Fix:
    """The vulnerabilities of one bulletin that one release fixed."""

    version: str
    """The first version of the server without them."""
    release: str
    """The release of the container with that version."""
    bulletin: int
    scores: Mapping[str, float]
    """CVE → its CVSS base score (0 to 10)."""
    since: str = "0"
    """The first version of the server with them."""


FIXES: Final = (
    Fix("2.40.0", "23.11", 5509, {"CVE-2023-31036": 7.5}),
    Fix("2.45.0", "24.04", 5535, {
        "CVE-2024-0087": 9.0, "CVE-2024-0100": 6.5, "CVE-2024-0088": 5.5,
    }),
    Fix("2.46.0", "24.05", 5546, {
        "CVE-2024-0103": 5.4, "CVE-2024-0095": 4.3,
    }),
    Fix("2.50.0", "24.09", 5565, {"CVE-2024-0116": 4.9}),
    Fix("2.53.0", "24.12", 5612, {"CVE-2024-53880": 4.9}, since="2.52.0"),
    Fix("2.58.0", "25.05", 5687, {
        "CVE-2025-23323": 7.5, "CVE-2025-23324": 7.5, "CVE-2025-23325": 7.5, "CVE-2025-23326": 7.5,
        "CVE-2025-23327": 7.5, "CVE-2025-23335": 4.4,
    }),
    Fix("2.59.0", "25.06", 5687, {
        "CVE-2025-23322": 7.5, "CVE-2025-23331": 7.5,
    }),
    Fix("2.59.1", "25.07", 5687, {
        "CVE-2025-23310": 9.8, "CVE-2025-23311": 9.8, "CVE-2025-23317": 9.1, "CVE-2025-23318": 8.1,
        "CVE-2025-23319": 8.1, "CVE-2025-23268": 8.0, "CVE-2025-23320": 7.5, "CVE-2025-23321": 7.5,
        "CVE-2025-23333": 5.9, "CVE-2025-23334": 5.9,
    }),
    Fix("2.60.0", "25.08", 5691, {
        "CVE-2025-23316": 9.8, "CVE-2025-23328": 7.5, "CVE-2025-23329": 7.5, "CVE-2025-23336": 4.4,
    }),
    Fix("2.61.0", "25.09", 5723, {"CVE-2025-33202": 7.5}),
    Fix("2.62.0", "25.10", 5734, {
        "CVE-2025-33201": 7.5, "CVE-2025-33211": 7.5,
    }),
    Fix("2.65.0", "26.01", 5790, {
        "CVE-2025-33238": 7.5, "CVE-2025-33254": 7.5, "CVE-2026-24158": 7.5,
    }),
    Fix("2.66.0", "26.02", 5816, {
        "CVE-2026-24146": 7.5, "CVE-2026-24173": 7.5, "CVE-2026-24174": 7.5, "CVE-2026-24175": 7.5,
        "CVE-2026-24147": 4.8,
    }),
    Fix("2.67.0", "26.03", 5828, {
        "CVE-2026-24207": 9.8, "CVE-2026-24213": 8.0, "CVE-2026-24214": 8.0, "CVE-2026-24209": 7.5,
        "CVE-2026-24210": 7.5, "CVE-2026-24206": 7.3, "CVE-2026-24215": 5.7, "CVE-2026-24208": 5.3,
    }),
    Fix("2.67.0", "26.03", 5860, {"CVE-2026-47487": 4.4}),
    Fix("2.68.0", "26.04", 5848, {
        "CVE-2026-24264": 7.5, "CVE-2026-24266": 5.9,
    }),
    Fix("2.68.0", "26.04", 5875, {"CVE-2026-47625": 7.5}),
    Fix("2.69.0", "26.05", 5853, {
        "CVE-2026-47476": 7.5, "CVE-2026-47477": 7.5, "CVE-2026-47478": 7.5, "CVE-2026-47479": 7.5,
        "CVE-2026-47480": 7.5, "CVE-2026-47482": 7.5, "CVE-2026-47481": 6.5,
    }),
    Fix("2.70.0", "26.06", 5865, {
        "CVE-2026-47627": 9.8, "CVE-2026-47628": 7.5, "CVE-2026-47629": 7.5, "CVE-2026-47606": 6.5,
        "CVE-2026-47630": 5.5,
    }),
    Fix("2.71.0", "26.07", 5875, {"CVE-2026-16497": 7.5}),
)  # fmt: skip
BEHIND_THE_KEY: Final = frozenset({
    "CVE-2023-31036", "CVE-2024-0087", "CVE-2024-0088", "CVE-2024-0100", "CVE-2024-0116", "CVE-2024-53880",
    "CVE-2025-23268", "CVE-2025-23316", "CVE-2025-23336", "CVE-2026-24147",
})  # fmt: skip
"""Vulnerabilities of APIs that need the key, by their bulletins: loading models, logs, traces, shared memory."""
_CRITICAL: Final = 9.0
"""The CVSS score from which a vulnerability is called critical."""
ROUND_THE_KEY: Final = frozenset({"CVE-2026-24206", "CVE-2026-24207", "CVE-2026-47481"})
"""Vulnerabilities that bypass the key."""


def known(version: str) -> tuple[Fix, ...]:
    """Return the fixes released after ``version`` of the server (like ``2.51.0``); empty if it is no version."""
    numbers = _numbers(version)
    return tuple(fix for fix in FIXES if numbers and _numbers(fix.since) <= numbers < _numbers(fix.version))


def look(version: str, subject: str, *, has_key: bool, is_wheel: bool = False) -> Finding:
    """Return the finding on the vulnerabilities of ``version``, with what protects until it is replaced.

    ``has_key``: the control APIs of ``subject`` need a key. ``is_wheel``: it is the embedded Triton, which has no newer
    version.
    """
    subject = f"known vulnerabilities of {subject}"
    shown = f"{version} ({RELEASES.get(version, 'unknown release')})"
    if not _numbers(version):
        return Finding(
            subject, "note", f"unknown: its version is {version}" if version else "unknown: no version found"
        )
    fixes = known(version)
    if not fixes:
        return Finding(subject, "ok", f"none for {shown} in NVIDIA's bulletins until {AS_OF}")
    count = sum(len(fix.scores) for fix in fixes)
    newest = max(fixes, key=lambda fix: _numbers(fix.version)).release
    remedy = f"use NVIDIA's container {newest} or newer; until then let only gateways and model sync reach its ports"
    if is_wheel:
        remedy = (
            f"the wheel has no newer Triton: keep it on loopback or behind a network policy; in production {remedy}"
        )
    named = [f"fixed in {fix.release}: {_scored(fix.scores)}" for fix in fixes]
    worst = _scored({cve: score for fix in fixes for cve, score in fix.scores.items() if score >= _CRITICAL})
    detail = f"{shown} has {count}, published until {AS_OF}. {_about_key(fixes, has_key=has_key)}"
    detail += f" Critical are {worst}." if worst else ""
    detail += " `doctor --json` lists all."
    return Finding(subject, "note", detail, f"{remedy} (docs/triton.md#known-vulnerabilities)", listed="; ".join(named))


def _scored(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{cve} ({score:g})" for cve, score in scores.items())


def _about_key(fixes: Iterable[Fix], *, has_key: bool) -> str:
    if not has_key:
        return "It needs no key: anyone who can reach it can load models, even without these vulnerabilities."
    cves = {cve for fix in fixes for cve in fix.scores}
    text = f"Its key protects against {len(BEHIND_THE_KEY & cves)} of them"
    if past := ROUND_THE_KEY & cves:
        text += f"; {', '.join(sorted(past))} bypass the key"
    return f"{text}."


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
