"""Names of labels that mean others."""

from __future__ import annotations

import pytest

from gateway.metrics.mirrored import renamed, with_names


@pytest.mark.parametrize(
    ("stable", "canary", "names"),
    [
        (["A", "B"], ["B", "A"], {}),
        (["LABEL_0", "LABEL_1"], ["no", "yes"], {"no": "LABEL_0", "yes": "LABEL_1"}),
        (["A", "B", "C"], ["A", "X", "C"], {"X": "B"}),
        (["A", "B"], ["A", "B", "C"], {}),
        (["O", "B-PER"], ["O", "B-WHO"], {"B-WHO": "B-PER", "WHO": "PER"}),
    ],
)  # fmt: skip
def test_a_new_name_means_the_label_at_its_position(
    stable: list[str], canary: list[str], names: dict[str, str]
) -> None:
    """A name that both have means itself; so a new order alone, and a new label at the end, change nothing."""
    assert names == renamed(stable, canary)


def test_only_labels_of_an_answer_are_renamed() -> None:
    """Words of the text may look like labels."""
    names = {"no": "BAD", "WHO": "PER"}
    answer = {"label": "no", "scores": {"no": 1.0}, "tokens": 3, "entities": [{"entity_group": "WHO", "word": "no"}]}
    meant = {"label": "BAD", "scores": {"BAD": 1.0}, "tokens": 3, "entities": [{"entity_group": "PER", "word": "no"}]}
    assert {"results": [meant]} == with_names({"results": [answer]}, names)
