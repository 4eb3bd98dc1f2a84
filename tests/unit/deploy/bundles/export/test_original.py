"""What is said of a model that cannot be exported: the real reason, in one sentence."""

from __future__ import annotations

import pytest

from deploy.bundles.export.original import not_exported

ADVICE = "Failed to export the model with torch.export.\n- Modify the model code\n\n## Exception summary\n\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{ADVICE}<class 'AttributeError'>: no attribute x\n\nx", "<class 'AttributeError'>: no attribute x"),
        ("", "RuntimeError"),
    ],
)
def test_the_exporters_pages_become_one_reason(text, says):
    """Not its advice, not a heading whose text stands below, and never nothing."""
    told = not_exported(RuntimeError(text))
    assert told.message == f"torch cannot export this model to ONNX: {says}"
    assert told.hint
