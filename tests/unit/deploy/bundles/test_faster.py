"""What a run says of candidates that are much faster than the one that is served, and of a busy machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.bundles import faster
from deploy.bundles.other_load import OtherLoad, sentence
from deploy.bundles.pack import manifest


def row(threads: int, **ms: float) -> dict[str, Any]:
    """Return a cell of the speed table; names have - for _."""
    return {"threads": threads, "batch": 1, "length": 16, "ms": {name.replace("_", "-"): v for name, v in ms.items()}}


def values(
    chosen: str, speed: list[dict[str, Any]], *, beyond: str = "", wrong: str = "", **more: Any
) -> dict[str, Any]:
    """Return a manifest whose candidates are those of the speed table."""
    names = [name for name in speed[0]["ms"] if name != "pytorch"]
    return {
        "source": {"digest": "d"}, "target": "cpu", "chosen": {"candidate": chosen, "load": "throughput"},
        "parity": [
            {"candidate": name, "excesses": ["min cosine 0.9"] if name == beyond else [],
             "faults": ["it is wrong"] if name == wrong else []}
            for name in names
        ],
        "speed": speed, **more,
    }  # fmt: skip


MEASURED = [row(1, pytorch=90, ort_fp32=30, openvino_int8=10), row(2, pytorch=60, ort_fp32=20, openvino_int8=19)]


def test_a_faster_bundle_than_deploys_own_choice_says_how_to_serve_it() -> None:
    """`deploy` takes ort-fp32 without trying others, so its user never hears of them."""
    (line,) = faster.lines(values("openvino-int8", MEASURED), Path("optimized/m-openvino-int8-1"))
    assert line.startswith("openvino-int8 is 3.0 times as fast as ort-fp32, which `deploy` takes")
    assert line.endswith("triton-gateway deploy optimized/m-openvino-int8-1")


def test_a_faster_candidate_beyond_tolerance_is_told_with_its_reason() -> None:
    """And how to take it. One that is wrong is not."""
    (line,) = faster.lines(values("ort-fp32", MEASURED, beyond="openvino-int8"), Path("b"))
    assert "openvino-int8 is 3.0 times as fast as ort-fp32, but beyond tolerance (min cosine 0.9)" in line
    assert '--candidate openvino-int8 --accept "REASON"' in line
    assert [] == list(
        faster.lines(values("ort-fp32", MEASURED, beyond="openvino-int8", wrong="openvino-int8"), Path("b"))
    )


def test_little_faster_is_not_told() -> None:
    """It would be noise. For latency, the cells with all threads count."""
    found = values("openvino-int8", MEASURED)
    found["chosen"]["load"] = "latency"
    assert [] == list(faster.lines(found, Path("b")))


def test_a_run_for_deploy_alone_tells_of_the_report_of_an_earlier_run(tmp_path: Path) -> None:
    """Of the same files, for the same target; other files in the folder are no obstacle."""
    for name, content in {
        "m-openvino-int8-1": values("openvino-int8", MEASURED),
        "other-model": values(
            "openvino-int8", [row(1, pytorch=90, ort_fp32=90, openvino_int8=1)], source={"digest": "e"}
        ),
        "for-a-gpu": values("gpu-fp16", [row(1, pytorch=90, ort_fp32=90, gpu_fp16=1)], target="gpu"),
        "no-manifest-of-ours": [],
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps(content))
    own = values("ort-fp32", [row(1, pytorch=90, ort_fp32=30)])
    (line,) = faster.lines(own, tmp_path / "m-ort-fp32-2")
    assert "openvino-int8 was 3.0 times as fast as ort-fp32 in an earlier run" in line
    assert line.endswith(f"deploy {tmp_path / 'm-openvino-int8-1'}")


def test_without_a_speed_table_nothing_is_told(tmp_path: Path) -> None:
    """As for a GPU that is not here."""
    found = {**values("gpu-fp16", MEASURED), "speed": []}
    assert [] == list(faster.lines(found, tmp_path / "b"))


@pytest.mark.parametrize(
    ("others", "share", "told"), [(0.0, 0.0, ""), (1.0, 0.05, ""), (6.0, 0.3, "30%"), (99.0, 1.0, "100%")]
)
def test_a_busy_machine_is_told(others: float, share: float, told: str) -> None:
    """×136 was measured and stored beside other load."""
    seconds = iter([(1000.0, 50.0), (1000.0 + 10 + others, 60.0)])
    clock = iter([0.0, 10.0]).__next__
    load = OtherLoad(seconds.__next__, clock, cores=2)
    assert share == pytest.approx(load.share())
    assert told in sentence(share)
    assert bool(told) == bool(sentence(share))


def test_this_machines_load_is_a_share() -> None:
    """Whatever else runs here."""
    assert 0 <= OtherLoad().share() <= 1


@pytest.mark.parametrize(("used", "stored"), [(0.0, "136.00"), (0.5, "136.00 (measured beside other load)")])
def test_the_registry_is_told_of_it(used: float, stored: str) -> None:
    """Beside the number itself, which is what people see there."""
    parity = {"mean_cosine": 1.0, "min_cosine": 1.0, "max_difference": 0.0, "decisions": 1.0, "neighbours": None}
    facts = manifest.short({
        "chosen": {"candidate": "c", "engine": "e", "precision": "fp32", "times_pytorch": 136.0, "needs": [],
                   "parity": parity},
        "source": {"given": "g", "digest": "d", "task": "t"}, "samples": {"count": 1, "source": "built in"},
        "target": "cpu", "machine": {"cpu": "x", "used_by_others": used}, "accepted": "", "versions": {},
    })  # fmt: skip
    assert stored == facts["times_pytorch"]
