"""What the section of published tables says of a run."""

from __future__ import annotations

from benchmarks.questions import lengths_of_hf_infinity as infinity

ROUND = {
    "load": 2.0,
    "pipeline": {"1": 10.0, "8": 20.0, "32": 25.0},
    "gateway": {"2x1": {"1": 50.0, "8": 60.0, "32": 60.0}, "1x2": {"1": 40.0, "8": 70.0, "32": 70.0}},
}
SLOWER = {**ROUND, "pipeline": {"1": 5.0, "8": 40.0, "32": 25.0}}
FOUND = {
    "machine": {"cpu": "A CPU", "cores": 2, "features": ["avx2"]},
    "versions": {"torch": "2"},
    "chosen": {
        "candidate": "openvino-bf16",
        "precision": "bf16",
        "parity": {"mean_cosine": 0.99999, "min_cosine": 0.9999},
    },
    "judged": {"openvino-bf16": []},
    "accepted": "",
    "clients": 16,
    "lengths": {"8": {"rounds": [ROUND, SLOWER, ROUND]}},
}


def test_ratios_are_of_one_round_each():
    """The best list of a round against the gateway of the same round; the faster setting by its median."""
    header, row = infinity.summary(FOUND)
    assert ["8", "50.0", "10.0", "5.0 (5.0–10.0)", "25.0", "2.0 (1.2–2.0)", "248"] == row
    assert len(header) == len(row)


def test_the_section_says_what_passed_the_gate_and_that_others_worked():
    """The candidate, its parity, the load, and lists beside lists."""
    text = infinity.section(FOUND)
    assert "made with `triton-gateway optimize --precision bf16`: `openvino-bf16`, which passes the gate" in text
    assert "(cosine of logits to PyTorch: mean 0.99999, minimum 0.99990)" in text
    assert "load average 2.0 to 2.0 on 2 cores" in text
    assert "| 8 | 8 | 70.0 | 20.0 | 3.5 (1.8–3.5) |" in text
